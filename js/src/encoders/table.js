/** Tables of sampled items, from which the items are read again (`protocol/sketches/iblt`). */

import { big, ceil, digitsOf, floor, isWhole, max, min, range, zeros } from "../arithmetic.js";
import { must } from "../errors.js";
import { halves, hashFunction, scale } from "../hashing.js";

const MAX_PARTS = 6;
const MIN_CELLS_WITHOUT_HASH_BITS = 48;
const MIN_LARGE_TABLE_CELLS = 216;
const HEAVY_BELOW = floor(0.11 * 2 ** 32);
const HEAVY_CELLS = 6; // of a heavy key in each sub-table
const DEFAULT_EVIDENCE = 120;

/** Return the number of elements of a table modulo p, and the function that makes an empty one of a
 * seed. Next to each chunk, which has `parts` elements, is a digit of the key's hash, so that a
 * false key passes with probability 1 / `evidence` at most. Throws a MalformedError if keys do not
 * fit. @param {number} p @param {{chunks: number, bound: number}} domain @param {number} cells
 * @param {number} evidence */
export function tableFormat(p, domain, cells, evidence, parts = 1) {
  const { chunks, bound } = domain;
  const least = max(evidence, cells < MIN_CELLS_WITHOUT_HASH_BITS ? DEFAULT_EVIDENCE : 1);
  const largest = big(p) ** big(parts) - 1n;
  const radix = min(Number(largest / big(max(1, bound - 1))), 2 ** 32); // of a hash's digits
  must(parts <= MAX_PARTS && largest < 2n ** 62n);
  if (radix ** chunks < least) return tableFormat(p, domain, cells, evidence, parts + 1);
  const isLarge = cells >= MIN_LARGE_TABLE_CELLS;
  const subtables = isLarge ? 3 : 4;
  const width = cells / subtables;
  must(isWhole(width));
  const length = cells * (1 + chunks * parts);
  const outputs = 1 + ceil((subtables * (isLarge ? HEAVY_CELLS : 1)) / 2); // of two hashes each
  const make = async (/** @type {Uint8Array} */ seed) => {
    const hash = await hashFunction(seed, "iblt", chunks, outputs);
    const elements = zeros(length);
    /** Add a value of a key, and return its fingerprint. @type {(key: number[], value: number) =>
     * bigint} */
    const insert = (key, value) => {
      const add = (/** @type {number} */ place, /** @type {number} */ x) => {
        elements[place] = (elements[place] + x * (value % p)) % p;
      };
      const [print, ...words] = hash(key);
      let [digit, lower, ...hashed] = words.flatMap(halves);
      const spread = isLarge && lower < HEAVY_BELOW ? HEAVY_CELLS : 1; // segments of a sub-table
      const added = key.flatMap((chunk) => {
        const [upper, rest] = halves(digit * big(radix));
        digit = rest;
        const whole = big(chunk) * big(radix) + upper;
        return digitsOf(whole > largest ? largest : whole, p, parts);
      });
      for (const i of range(subtables * spread)) {
        const [start, end] = range(2, i % spread).map((each) => floor((each * width) / spread));
        const place = floor(i / spread) * width + start + scale(hashed[i], end - start);
        add(place, 1);
        added.forEach((x, j) => add(cells + place * chunks * parts + j, x));
      }
      return print;
    };
    return { elements, insert };
  };
  return { length, make };
}

/** Return the sampled units of a count, for a device with at most `most` items, by a random number
 * below 1. @type {(t: number, most: number, count: number, random: number) => number} */
export function sample(t, most, count, random) {
  if (t >= most) return random * t < count ? 1 : 0;
  const lower = floor(t);
  const p = (lower * (lower + 1 - t)) / t;
  const level = random < p ? lower : lower + 1;
  const rest = random < p ? random / p : (random - p) / (1 - p);
  if (count >= level) return count;
  return rest * level < count ? level : 0;
}
