// Times messages of a device in JavaScript, in Node or in a page.
import { concat, hex, statement, systemRandom as random, u32, unhex } from "../js/src/bytes.js";
import { committeeParameters, readCommittee } from "../js/src/committee.js";
import { encode } from "../js/src/encode.js";
import { suitablePrime } from "../js/src/field.js";
import { agreementKey, signingKey } from "../js/src/keys.js";
import { makeMessage } from "../js/src/message.js";

/** Return a committee's bytes, and the operators or the registrar who signed it, in hexadecimal. */
async function committeeOf(members, isDrawn, rate) {
  const planDigest = random(32);
  const entries = Array.from({ length: members }, async () => {
    const { publicKey, sign } = await signingKey(random(32));
    const key = (await agreementKey(random(32))).publicKey;
    return concat(publicKey, key, await sign(statement("one-shot member key", planDigest, 0, key)));
  });
  const terms = { members: Array(members), corrupt: rate, dropout: rate };
  const numbers = [0, ...Object.values(committeeParameters(terms))];
  const signed = concat(planDigest, ...numbers.map(u32), ...(await Promise.all(entries)));
  if (!isDrawn) {
    const operators = await Promise.all(entries.map(async (entry) => hex((await entry).subarray(0, 32))));
    return { committee: hex(signed), operators };
  }
  const { publicKey, sign } = await signingKey(random(32));
  const signature = await sign(statement("one-shot committee", planDigest, 0, signed));
  return { committee: hex(concat(signed, signature)), registrar: hex(publicKey) };
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
 * Return committees of seven operators and of 100 members of a registrar; with such `committees`,
 * return time and bytes of messages by a plan of the operators, with the encoding of its items, and
 * of vectors of 490 and 1,000 elements modulo a prime of 15 bits.
 */
export async function main({ plan, items, runs, committees }) {
  if (!committees) return [await committeeOf(7, false, 0.15), await committeeOf(100, true, 0.1)];
  const sessions = committees.map(async ({ committee, ...authority }) => ({
    committee: await readCommittee(unhex(committee)), ...authority,
  }));
  const [operators, drawn] = await Promise.all(sessions);
  const p = suitablePrime(20_000);
  const vector = (length) => () => ({ p, elements: Array.from({ length }, (_, i) => i % p) });
  return {
    plan: await timed(runs, operators, () => encode(plan, items)),
    490: await timed(runs, operators, vector(490)),
    1000: await timed(runs, operators, vector(1000)),
    drawn: await timed(runs, drawn, vector(1000)),
  };
}
