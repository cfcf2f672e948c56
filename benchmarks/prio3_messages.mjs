// Times messages of Prio3Histogram for two aggregators, in a folder where npm has installed it.
import { Prio3Histogram } from "@divviup/prio3";

const random = (size) => Buffer.from(crypto.getRandomValues(new Uint8Array(size)));

/** Return the least milliseconds of `runs` messages with so many entries, and their bytes. */
async function timed(length, runs) {
  const chunkLength = Math.floor(Math.sqrt(length)); // the proof is smallest
  const prio3 = new Prio3Histogram({ shares: 2, length, chunkLength });
  const times = [];
  let bytes = 0;
  for (let run = 0; run < runs; run++) {
    const start = performance.now();
    const { publicShare, inputShares } = await prio3.shard(3, random(16), random(prio3.randSize));
    const parts = [prio3.encodePublicShare(publicShare), ...inputShares.map((each) => prio3.encodeInputShare(each))];
    bytes = parts.reduce((sum, part) => sum + part.length, 0);
    times.push(performance.now() - start);
  }
  return { ms: Math.min(...times), bytes };
}

export const main = async ({ runs }) => ({ 490: await timed(490, runs), 1000: await timed(1000, runs) });
