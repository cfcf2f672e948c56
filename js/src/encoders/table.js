/** Tables of sampled items, from which the items are read again (`protocol/sketches/iblt`). */

import { big, ceil, digitsOf, floor, max, min, range, zeros } from "../arithmetic.js";
import { must } from "../errors.js";
import { halves, hashFamily, scale } from "../hashing.js";

const MAX_PARTS = 6;
const MIN_CELLS_WITHOUT_HASH_BITS = 48;
const MIN_LARGE_TABLE_CELLS = 216;
const HEAVY_BELOW = floor(0.11 * 2 ** 32);
const HEAVY_CELLS = 6; // of a heavy key in each sub-table
export const DEFAULT_EVIDENCE = 120;

/** A format of keys: `parts` elements for each chunk and its hash digit, which is below `radix`.
 * @typedef {{p: number, chunks: number, parts: number, radix: number, largest: bigint}} Cell */

/** Return the format of cells modulo the prime p, for which a false key passes with probability 1 /
 * `evidence` at most. Throws a MalformedError if keys of the domain do not fit. @type {(p: number,
 * domain: {chunks: number, bound: number}, cells: number, evidence: number) => Cell} */
export function cellFormat(p, { chunks, bound }, cells, evidence) {
  const least = max(evidence, cells < MIN_CELLS_WITHOUT_HASH_BITS ? DEFAULT_EVIDENCE : 1);
  for (let parts = 1; ; parts++) {
    const largest = big(p) ** big(parts) - 1n;
    const radix = min(Number(largest / big(max(1, bound - 1))), 2 ** 32);
    must(parts <= MAX_PARTS && largest < 2n ** 62n);
    if (radix ** chunks >= least) return { p, chunks, parts, radix, largest };
  }
}

/** Return the elements of a table. @type {(cell: Cell, cells: number) => number} */
export const tableLength = ({ chunks, parts }, cells) => cells * (1 + chunks * parts);

/** Return an empty table, and the function that adds a value of a key to it. @param {Cell} cell
 * @param {number} cells @param {Uint8Array} seed */
export async function makeTable(cell, cells, seed) {
  const { p, chunks, parts, radix, largest } = cell;
  const isLarge = cells >= MIN_LARGE_TABLE_CELLS;
  const subtables = isLarge ? 3 : 4;
  const width = cells / subtables;
  must(Number.isInteger(width));
  const words = (/** @type {number} */ spread) => 1 + ceil((subtables * spread) / 2);
  const { fingerprint, hash } = await hashFamily(
    seed, "iblt", chunks, words(isLarge ? HEAVY_CELLS : 1));
  const elements = zeros(tableLength(cell, cells));
  const insert = (/** @type {number[]} */ key, /** @type {number} */ value) => {
    if (!value) return;
    const add = (/** @type {number} */ place, /** @type {number} */ x) => {
      elements[place] = (elements[place] + x * (value % p)) % p;
    };
    let [digit, lower] = halves(hash(key, 0, 1)[0]);
    const spread = isLarge && lower < HEAVY_BELOW ? HEAVY_CELLS : 1; // segments of a sub-table
    const added = key.flatMap((chunk) => {
      const [upper, rest] = halves(digit * big(radix));
      digit = rest;
      const whole = big(chunk) * big(radix) + upper;
      return digitsOf(whole > largest ? largest : whole, p, parts);
    });
    const hashed = hash(key, 1, words(spread)).flatMap(halves);
    for (const i of range(subtables * spread)) {
      const start = floor(((i % spread) * width) / spread);
      const end = floor((((i % spread) + 1) * width) / spread);
      const place = floor(i / spread) * width + start + scale(hashed[i], end - start);
      add(place, 1);
      added.forEach((x, j) => add(cells + place * chunks * parts + j, x));
    }
  };
  return { elements, insert, fingerprint };
}

/** Return the sampled units of a count, for a device with at most `most` items, by a random number
 * below 1. @type {(t: number, most: number, count: number, random: number) => number} */
export function sample(t, most, count, random) {
  if (t >= most) return random * t < count ? 1 : 0;
  const lower = floor(t);
  const p = (lower * (lower + 1 - t)) / t;
  const level = random < p ? lower : lower + 1;
  const rest = random < p ? random / p : (random - p) / max(1 - p, Number.EPSILON);
  if (count >= level) return count;
  return rest * level < count ? level : 0;
}
