/**
 * Hash functions of a plan's seed, and what a device draws by chance.
 *
 * `protocol/hashing.py` and `protocol/randomness.py` have the reasons.
 */

import { big, bitLength, floor, range } from "./arithmetic.js";
import { taggedHash, utf8 } from "./bytes.js";
import { keystream } from "./keys.js";

/** @typedef {(nbytes: number) => Uint8Array | Promise<Uint8Array>} Random */

const PRIME = 2n ** 61n - 1n;
const low64 = (/** @type {bigint} */ x) => BigInt.asUintN(64, x);

/** Return `count` values below a bound that are made of a stream's words of 64 bits, or of 32, in
 * little-endian order. Words with other values are passed over. @type {(read: Random, count:
 * number, bound?: number | bigint, valueOf?: (word: any) => any, bytes?: 4 | 8) => Promise<any[]>}
 */
export async function draw(read, count, bound = Infinity, valueOf = (/** @type {any} */ word) => word,
  bytes = 8) {
  const values = [];
  while (values.length < count) {
    const drawn = await read(bytes * (count - values.length));
    const view = new DataView(drawn.buffer, drawn.byteOffset);
    for (let i = 0; i < drawn.length; i += bytes) {
      const value = valueOf(bytes < 8 ? view.getUint32(i, true) : view.getBigUint64(i, true));
      if (value < bound) values.push(value);
    }
  }
  return values;
}

/** Return uniform elements modulo p: 32-bit words, without bits beyond those of p. @type {(p:
 * number, count: number, read: Random) => Promise<number[]>} */
export function uniform(p, count, read) {
  const size = 2 ** bitLength(p - 1);
  return draw(read, count, p, (word) => word % size, 4);
}

/** Return a multiple of 2^-53 below 1, of a word's upper bits. @type {(word: bigint) => number} */
export const toFloat = (word) => Number(word >> 11n) * 2 ** -53;

/** Return a number that is exactly uniform below a bound of up to 2^53. @type {(random: Random,
 * bound: number) => Promise<number>} */
export async function drawBelow(random, bound) {
  const size = 2 ** bitLength(bound - 1);
  const [drawn] = await draw(random, 1, bound, (word) => floor(toFloat(word) * size));
  return drawn;
}

/** Flip coins that are true with probability floor(2^64 p) / 2^64. @type {(random: Random, count:
 * number, p: number) => Promise<boolean[]>} */
export async function flipCoins(random, count, p) {
  const limit = big(floor(p * 2 ** 64));
  return (await draw(random, count)).map((word) => word < limit);
}

/** Return the finaliser of SplitMix64, which is one-to-one. @type {(x: bigint) => bigint} */
function mix(x) {
  x = low64((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n);
  x = low64((x ^ (x >> 27n)) * 0x94d049bb133111ebn);
  return x ^ (x >> 31n);
}

/** Return the upper and lower 32 bits of a word. @type {(word: bigint) => [bigint, bigint]} */
export const halves = (word) => [word >> 32n, word & 0xffffffffn];

/** Return 32 bits as a number below `bound`. @type {(half: bigint, bound: number) => number} */
export const scale = (half, bound) => Number((half * big(bound)) >> 32n);

/** Return the stream of a plan's seed. @type {(seed: Uint8Array, purpose: string) =>
 * Promise<Random>} */
export const seededStream = (seed, purpose) =>
  keystream(taggedHash("hashing v1", seed, utf8(purpose)));

/** Return the hash function of a seed for keys of `chunks` numbers below 2^32. It returns a key's
 * fingerprint below 2^61 - 1, and `outputs` words. @type {(seed: Uint8Array, purpose: string,
 * chunks: number, outputs: number) => Promise<(key: number[]) => bigint[]>} */
export async function hashFunction(seed, purpose, chunks, outputs) {
  const read = await seededStream(seed, purpose);
  const factors = await draw(read, chunks + 1, PRIME, (word) => word & PRIME);
  const keys = await draw(read, 2 * outputs);
  return (key) => {
    const print = key.reduce((sum, x, i) => sum + factors[i + 1] * big(x), factors[0]) % PRIME;
    const word = (/** @type {number} */ i) => mix(low64(mix(print ^ keys[i]) + keys[outputs + i]));
    return [print, ...range(outputs).map(word)];
  };
}
