/**
 * Hash functions of a plan's seed, and what a device draws by chance, in words of 64 bits.
 *
 * `protocol/hashing.py` and `protocol/randomness.py` have the reasons.
 */

import { big, bitLength, floor, range, sum } from "./arithmetic.js";
import { taggedHash, utf8 } from "./bytes.js";
import { keystream } from "./keys.js";

/** @import { Stream } from "./keys.js" */

/** @typedef {(nbytes: number) => Uint8Array | Promise<Uint8Array>} Random */

const PRIME = 2n ** 61n - 1n;
const low64 = (/** @type {bigint} */ x) => BigInt.asUintN(64, x);

/** Return the words of bytes, in little-endian order. @type {(bytes: Uint8Array) => bigint[]} */
function toWords(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  return range(bytes.length / 8).map((i) => view.getBigUint64(8 * i, true));
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
 * Promise<Stream>} */
export const seededStream = async (seed, purpose) =>
  keystream(await taggedHash("hashing v1", seed, utf8(purpose)));

/** Return the hash functions of a seed for keys of `chunks` numbers below 2^32: a fingerprint below
 * 2^61 - 1, and up to `outputs` words. @param {Uint8Array} seed @param {string} purpose @param
 * {number} chunks @param {number} outputs */
export async function hashFamily(seed, purpose, chunks, outputs) {
  const read = await seededStream(seed, purpose);
  const /** @type {bigint[]} */ factors = [];
  while (factors.length <= chunks) {
    const drawn = toWords(await read(8 * (chunks + 1 - factors.length)));
    factors.push(...drawn.map((word) => word & PRIME).filter((each) => each !== PRIME));
  }
  const keys = toWords(await read(16 * outputs));
  const fingerprint = (/** @type {number[]} */ key) =>
    key.reduce((sum, x, i) => sum + factors[i + 1] * big(x), factors[0]) % PRIME;
  const hash = (/** @type {number[]} */ key, from = 0, to = outputs) => {
    const print = fingerprint(key);
    return range(to - from, from).map((i) => mix(low64(mix(print ^ keys[i]) + keys[outputs + i])));
  };
  return { fingerprint, hash };
}

/** Return random words. @type {(random: Random, count: number) => Promise<bigint[]>} */
export const drawWords = async (random, count) => toWords(await random(8 * count));

/** Return a multiple of 2^-53 below 1, of a word's upper bits. @type {(word: bigint) => number} */
export const toFloat = (word) => Number(word >> 11n) * 2 ** -53;

/** Flip coins that are true with probability floor(2^64 p / q) / 2^64, without a word if p >= q.
 * @type {(random: Random, count: number, p: number, q: number) => Promise<boolean[]>} */
export async function flipCoins(random, count, p, q) {
  if (p >= q) return Array(count).fill(true);
  let limit = 0n;
  for (let bit = 0; bit < 64; bit++) {
    const digit = 2 * p >= q ? 1 : 0; // all of these numbers are exact
    p = 2 * p - digit * q;
    limit = 2n * limit + big(digit);
  }
  return (await drawWords(random, count)).map((word) => word < limit);
}

/** Return a number that is exactly uniform below a bound of up to 2^53. @type {(random: Random,
 * bound: number) => Promise<number>} */
export async function drawBelow(random, bound) {
  for (;;) {
    const [word] = await drawWords(random, 1);
    const drawn = floor(toFloat(word) * 2 ** bitLength(bound - 1));
    if (drawn < bound) return drawn;
  }
}
