// Times a device's message in this Node: `node js/benchmark.mjs`. Prints milliseconds and bytes.
import { hex } from "./src/bytes.js";
import { committeeParameters } from "./src/committee.js";
import { suitablePrime } from "./src/field.js";
import { agreementKey, signingKey } from "./src/keys.js";
import { makeMessage } from "./src/message.js";

const RUNS = 30;
const random = (size) => crypto.getRandomValues(new Uint8Array(size));

/** Return a session of `members` whose authority is checked: its operators have signed. */
async function sessionOf(members, corrupt, dropout) {
  const terms = { members: Array(members), corrupt, dropout };
  const { statement } = await import("./src/bytes.js");
  const planDigest = random(32);
  const entries = await Promise.all(
    Array.from({ length: members }, async () => {
      const { publicKey, sign } = await signingKey(random(32));
      const key = (await agreementKey(random(32))).publicKey;
      const signature = await sign(await statement("one-shot member key", planDigest, 0, key));
      return { identity: publicKey, key, signature };
    }),
  );
  const parameters = committeeParameters(terms);
  const operators = entries.map(({ identity }) => hex(identity));
  const committee = { planDigest, number: 0, parameters, entries, digest: random(32) };
  const authority = { operators, corrupt: parameters.corrupt, absent: parameters.dropouts };
  if (members <= 10) return { committee, authority, enrolmentBytes: 0 };
  const { publicKey, sign } = await signingKey(random(32));
  const signed = random(52 + 128 * members);
  const signature = await sign(await statement("one-shot committee", planDigest, 0, signed));
  return {
    committee: { ...committee, signed, signature },
    authority: { registrar: publicKey },
    enrolmentBytes: 0,
  };
}

for (const [name, members, rate, length, least] of [
  ["490 elements, 7 operators", 7, 0.15, 490, 20_000],
  ["1,000 elements, 7 operators", 7, 0.15, 1000, 20_000],
  ["1,000 elements, 100 members", 100, 0.1, 1000, 20_000],
]) {
  const session = await sessionOf(members, rate, rate);
  const identity = await signingKey(random(32));
  const p = suitablePrime(least);
  const elements = Array.from({ length }, (_, i) => i % p);
  const times = [];
  let bytes = 0;
  for (let run = 0; run < RUNS; run++) {
    const start = performance.now();
    bytes = (await makeMessage(session, identity, new Uint8Array(), { p, elements }, random)).length;
    times.push(performance.now() - start);
  }
  const [median] = times.sort((a, b) => a - b).slice(RUNS / 2);
  console.log(`${name}: ${median.toFixed(1)} ms, least ${times[0].toFixed(1)}, ${bytes} bytes`);
}
