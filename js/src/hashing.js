/**
 * Hash functions of a plan's seed, and what a device draws by chance, without BigInt.
 *
 * A *long* is a natural number as a list of 16-bit limbs, the lowest first; a *word* has four of
 * them. `protocol/hashing.py` and `protocol/randomness.py` have the reasons.
 */

import { sha256, utf8 } from "./bytes.js";
import { bitLength } from "./field.js";
import { keystream } from "./keys.js";

/** @typedef {number[]} Long */
/** @typedef {(nbytes: number) => Uint8Array | Promise<Uint8Array>} Random */

const LIMB = 2 ** 16;
const PRIME_BITS = 61; // of the prime 2^61 - 1
const STAFFORD = [
  [0xe5b9, 0x1ce4, 0x476d, 0xbf58],
  [0x11eb, 0x1331, 0x49bb, 0x94d0],
];

/** @param {number} count @returns {number[]} the numbers from 0 on */
export const range = (count) => [...Array(count).keys()];

/** @param {number} n below 2^53 @returns {Long} */
export const toLong = (n) => (n < 1 ? [] : [n % LIMB, ...toLong(Math.floor(n / LIMB))]);

/** @param {Long} a @returns {number} exact below 2^53 */
export const toNumber = (a) => a.reduceRight((sum, limb) => sum * LIMB + limb, 0);

/** @param {Long} a @param {Long} b @param {Long} [c] @returns {Long} a b + c */
export function multiplyAdd(a, b, c = []) {
  const sum = range(Math.max(a.length + b.length, c.length) + 1).map((i) => c[i] ?? 0);
  a.forEach((limb, i) => {
    for (let j = 0, carry = 0; i + j < sum.length; j++) {
      carry += sum[i + j] + limb * (b[j] ?? 0);
      sum[i + j] = carry % LIMB;
      carry = Math.floor(carry / LIMB);
    }
  });
  return sum;
}

/** @param {Long} a @param {number} d below 2^37 @returns {[Long, number]} quotient, remainder */
export function divide(a, d) {
  let rest = 0;
  const quotient = a.reduceRight((/** @type {Long} */ above, limb) => {
    const part = rest * LIMB + limb;
    rest = part % d;
    return [Math.floor(part / d), ...above];
  }, []);
  return [quotient, rest];
}

/** @param {Long} a @param {Long} b @returns {boolean} whether a > b */
export function isAbove(a, b) {
  let i = Math.max(a.length, b.length) - 1;
  while (i > 0 && (a[i] ?? 0) === (b[i] ?? 0)) i--;
  return (a[i] ?? 0) > (b[i] ?? 0);
}

/** @param {Long} a @param {number} bits @returns {Long} the lowest bits of a */
export const low = (a, bits) =>
  a.slice(0, Math.ceil(bits / 16)).map((limb, i) => limb % 2 ** Math.min(16, bits - 16 * i));

/** @param {Long} a @param {number} bits @returns {Long} a without its lowest bits */
export const shift = (a, bits) =>
  a.slice(Math.floor(bits / 16)).map((limb, i, rest) =>
    Math.floor((limb + (rest[i + 1] ?? 0) * LIMB) / 2 ** (bits % 16)) % LIMB);

/** @param {Long} a @param {Long} b @returns {Long} a word */
const xor = (a, b) => range(4).map((i) => (a[i] ?? 0) ^ (b[i] ?? 0));

/** @param {Long} word @returns {[number, number]} its upper and lower 32 bits */
export const halves = (word) => [word[3] * LIMB + word[2], word[1] * LIMB + word[0]];

/** @param {number} half below 2^32 @param {number} bound to 2^32 @returns {number} below `bound` */
export const scale = (half, bound) =>
  toNumber(shift(multiplyAdd(toLong(half), toLong(bound)), 32));

/** @param {Uint8Array} bytes @returns {Long[]} its words, in little-endian order */
const toWords = (bytes) =>
  range(bytes.length / 8).map((i) =>
    [0, 2, 4, 6].map((j) => bytes[8 * i + j] + 256 * bytes[8 * i + j + 1]));

/** @param {Long} x @returns {Long} the finaliser of SplitMix64, one-to-one */
function mix(x) {
  const first = low(multiplyAdd(xor(x, shift(x, 30)), STAFFORD[0]), 64);
  const second = low(multiplyAdd(xor(first, shift(first, 27)), STAFFORD[1]), 64);
  return xor(second, shift(second, 31));
}

/** @param {Long} a below 2^61 @returns {boolean} whether it is the prime 2^61 - 1 */
const isPrime = (a) => shift(multiplyAdd([1], a, [1]), PRIME_BITS).some(Boolean);

/** @param {Long} a @returns {Long} a modulo 2^61 - 1 */
function reduce(a) {
  const high = shift(a, PRIME_BITS);
  if (high.some(Boolean)) return reduce(multiplyAdd([1], high, low(a, PRIME_BITS)));
  return isPrime(a) ? [] : low(a, PRIME_BITS);
}

/** @param {Uint8Array} seed @param {string} purpose @returns the stream of a plan's seed */
export const seededStream = async (seed, purpose) =>
  keystream(await sha256(utf8("blindtally hashing v1\0"), seed, utf8(purpose)));

/**
 * Return the hash functions of a seed and purpose for keys of `chunks` numbers below 2^32.
 *
 * @param {Uint8Array} seed 32 bytes @param {string} purpose
 * @param {number} chunks @param {number} outputs words of a hash
 */
export async function hashFamily(seed, purpose, chunks, outputs) {
  const stream = await seededStream(seed, purpose);
  const /** @type {Long[]} */ factors = [];
  while (factors.length <= chunks) {
    const drawn = toWords(await stream.read(8 * (chunks + 1 - factors.length)));
    factors.push(...drawn.map((word) => low(word, PRIME_BITS)).filter((a) => !isPrime(a)));
  }
  const keys = toWords(await stream.read(16 * outputs));
  /** @param {number[]} key @returns {Long} below 2^61 - 1 */
  const fingerprint = (key) =>
    reduce(key.reduce((sum, x, i) => multiplyAdd(factors[i + 1], toLong(x), sum), factors[0]));
  /** @param {number[]} key @param {number} [from] @param {number} [to] @returns {Long[]} words */
  const hash = (key, from = 0, to = outputs) => {
    const print = fingerprint(key);
    return keys.slice(from, to).map((first, i) =>
      mix(low(multiplyAdd([1], mix(xor(print, first)), keys[outputs + from + i]), 64)));
  };
  return { fingerprint, hash };
}

/** What a device draws from random words. */
export class Chance {
  /** @param {Random} random */
  constructor(random) {
    this.random = random;
  }

  /** @param {number} count @returns {Promise<Long[]>} */
  async words(count) {
    return toWords(await this.random(8 * count));
  }

  /** @param {number} count @returns {Promise<number[]>} multiples of 2^-53 below 1 */
  async floats(count) {
    return (await this.words(count)).map(toFloat);
  }

  /**
   * Flip coins that are true with probability floor(2^64 p / q) / 2^64, without a word if p >= q.
   *
   * @param {number} count @param {number} p @param {number} q @returns {Promise<boolean[]>}
   */
  async coins(count, p, q) {
    if (p >= q) return Array(count).fill(true);
    const limit = [0, 0, 0, 0];
    for (let bit = 63, rest = p; bit >= 0; bit--) {
      const digit = 2 * rest >= q ? 1 : 0; // all of these numbers are exact
      rest = 2 * rest - digit * q;
      limit[bit >> 4] += digit * 2 ** (bit % 16);
    }
    return (await this.words(count)).map((word) => isAbove(limit, word));
  }

  /** @param {number} bound to 2^53 @returns {Promise<number>} exactly uniform below `bound` */
  async below(bound) {
    const size = 2 ** bitLength(bound - 1);
    for (;;) {
      const [drawn] = await this.floats(1);
      if (drawn * size < bound) return Math.floor(drawn * size);
    }
  }
}

/** @param {Long} word @returns {number} its upper 53 bits, as a number below 1 */
export const toFloat = (word) => toNumber(shift(word, 11)) * 2 ** -53;
