// Times a device's message: `node js/benchmark.mjs`. Returns medians of milliseconds, and bytes.
import { hex, statement, systemRandom as random } from "./src/bytes.js";
import { committeeParameters } from "./src/committee.js";
import { suitablePrime } from "./src/field.js";
import { agreementKey, signingKey } from "./src/keys.js";
import { makeMessage } from "./src/message.js";

const RUNS = 30;

/** Return a session of `members` whose authority is checked: its operators have signed. */
async function sessionOf(members, corrupt, dropout) {
  const terms = { members: Array(members), corrupt, dropout };
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

const CASES = [
  ["490 elements, 7 operators", 7, 0.15, 490],
  ["1,000 elements, 7 operators", 7, 0.15, 1000],
  ["1,000 elements, 100 members of a registrar", 100, 0.1, 1000],
];

/** Return one line of text for each case, of elements modulo a prime of 15 bits. */
export async function main() {
  const lines = [];
  for (const [name, members, rate, length] of CASES) {
    const session = await sessionOf(members, rate, rate);
    const identity = await signingKey(random(32));
    const p = suitablePrime(20_000);
    const vector = { p, elements: Array.from({ length }, (_, i) => i % p) };
    const times = [];
    let bytes = 0;
    for (let run = 0; run < RUNS; run++) {
      const start = performance.now();
      bytes = (await makeMessage(session, identity, new Uint8Array(), vector, random)).length;
      times.push(performance.now() - start);
    }
    times.sort((a, b) => a - b);
    const [least, median] = [times[0], times[RUNS / 2]].map((time) => time.toFixed(1));
    lines.push(`${name}: ${median} ms (least ${least}), ${bytes} bytes`);
  }
  return lines;
}

if (globalThis.process?.argv[1]?.endsWith("benchmark.mjs")) console.log((await main()).join("\n"));
