// Times messages of a device in JavaScript, in Node or in a page.
import { hex, statement, systemRandom as random } from "../js/src/bytes.js";
import { committeeParameters } from "../js/src/committee.js";
import { encode } from "../js/src/encode.js";
import { suitablePrime } from "../js/src/field.js";
import { agreementKey, signingKey } from "../js/src/keys.js";
import { makeMessage } from "../js/src/message.js";

/** Return a session of `members` whose authority is checked: its operators have signed. */
async function sessionOf(members, corrupt, dropout) {
  const terms = { members: Array(members), corrupt, dropout };
  const planDigest = random(32);
  const entries = await Promise.all(
    Array.from({ length: members }, async () => {
      const { publicKey, sign } = await signingKey(random(32));
      const key = (await agreementKey(random(32))).publicKey;
      const signature = await sign(statement("one-shot member key", planDigest, 0, key));
      return { identity: publicKey, key, signature };
    }),
  );
  const parameters = committeeParameters(terms);
  const operators = entries.map(({ identity }) => hex(identity));
  const committee = { planDigest, number: 0, parameters, entries, digest: random(32) };
  if (members <= 10) return { committee, operators };
  const { publicKey, sign } = await signingKey(random(32));
  const signed = random(52 + 128 * members);
  const signature = await sign(statement("one-shot committee", planDigest, 0, signed));
  return { committee: { ...committee, signed, signature }, registrar: hex(publicKey) };
}

/** Return the least milliseconds of `runs` messages, and their bytes. */
async function timed(runs, session, vectorOf) {
  const identity = await signingKey(random(32));
  const times = [];
  let bytes = 0;
  for (let run = 0; run < runs; run++) {
    const start = performance.now();
    bytes = (await makeMessage(session, identity, new Uint8Array(), await vectorOf(), random)).length;
    times.push(performance.now() - start);
  }
  return { ms: Math.min(...times), bytes };
}

/**
 * Return time and bytes of messages by a plan of seven operators, with the encoding of its items,
 * and of vectors of 490 and 1,000 elements modulo a prime of 15 bits, by seven operators (which
 * Prio3 is compared with) and by 100 members of a registrar.
 */
export async function main({ plan, items, runs }) {
  const p = suitablePrime(20_000);
  const vector = (length) => () => ({ p, elements: Array.from({ length }, (_, i) => i % p) });
  const [operators, drawn] = [await sessionOf(7, 0.15, 0.15), await sessionOf(100, 0.1, 0.1)];
  return {
    plan: await timed(runs, operators, () => encode(plan, items)),
    490: await timed(runs, operators, vector(490)),
    1000: await timed(runs, operators, vector(1000)),
    drawn: await timed(runs, drawn, vector(1000)),
  };
}
