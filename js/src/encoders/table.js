/** Tables of sampled items, from which the items are read again (`protocol/sketches/iblt`). */

import { MalformedError } from "../errors.js";
import {
  divide, halves, hashFamily, isAbove, low, multiplyAdd, range, scale, shift, toLong, toNumber,
} from "../hashing.js";

const MAX_PARTS = 6;
const MAX_RADIX = 2 ** 32;
const MIN_CELLS_WITHOUT_HASH_BITS = 48;
const MIN_LARGE_TABLE_CELLS = 216;
const HEAVY_BELOW = Math.floor(0.11 * 2 ** 32);
const HEAVY_CELLS = 6; // of a heavy key in each sub-table
export const DEFAULT_EVIDENCE = 120;

/** @typedef {import("../hashing.js").Long} Long */
/**
 * @typedef {{p: number, chunks: number, parts: number, radix: number, largest: Long}} Cell
 *   format of keys: `parts` elements for each chunk and its hash digit, which is below `radix`
 */

/**
 * Return the format of cells modulo the prime p.
 *
 * @param {number} p @param {import("../domains.js").Domain} domain @param {number} cells
 * @param {number} evidence the reciprocal probability that a false key passes
 * @returns {Cell}
 * @throws {MalformedError} if keys of the domain do not fit
 */
export function cellFormat(p, { chunks, bound }, cells, evidence) {
  const least = Math.max(evidence, cells < MIN_CELLS_WITHOUT_HASH_BITS ? DEFAULT_EVIDENCE : 1);
  for (let parts = 1, count = toLong(p); parts <= MAX_PARTS; parts++) {
    const largest = [count[0] - 1, ...count.slice(1)]; // p is odd
    const radix = Math.min(toNumber(divide(largest, Math.max(1, bound - 1))[0]), MAX_RADIX);
    if (toNumber(count) >= 2 ** 62) break;
    if (radix ** chunks >= least) return { p, chunks, parts, radix, largest };
    count = multiplyAdd(count, toLong(p));
  }
  throw new MalformedError(`keys below ${bound} do not fit in cells modulo ${p}`);
}

/** @param {Cell} cell @param {number} cells @returns {number} the elements of a table */
export const tableLength = ({ chunks, parts }, cells) => cells * (1 + chunks * parts);

/**
 * Return an empty table, and the function that adds a value of a key to it.
 *
 * @param {Cell} cell @param {number} cells @param {Uint8Array} seed
 */
export async function makeTable(cell, cells, seed) {
  const { p, chunks, parts } = cell;
  const isLarge = cells >= MIN_LARGE_TABLE_CELLS;
  const subtables = isLarge ? 3 : 4;
  if (cells % subtables) throw new MalformedError(`a table of ${cells} cells has no sub-tables`);
  const words = (/** @type {number} */ spread) => 1 + Math.ceil((subtables * spread) / 2);
  const family = await hashFamily(seed, "iblt", chunks, words(isLarge ? HEAVY_CELLS : 1));
  const elements = new Uint32Array(tableLength(cell, cells));
  const add = (/** @type {number} */ place, /** @type {number} */ x) => {
    elements[place] = (elements[place] + x) % p;
  };
  const insert = (/** @type {number[]} */ key, /** @type {number} */ value) => {
    const [digits, lower] = halves(family.hash(key, 0, 1)[0]);
    const spread = isLarge && lower < HEAVY_BELOW ? HEAVY_CELLS : 1;
    const added = elementsOf(cell, key, digits).map((x) => (x * (value % p)) % p);
    const hashed = family.hash(key, 1, words(spread)).flatMap(halves);
    for (const place of cellsOf(hashed, subtables, cells / subtables, spread)) {
      add(place, value);
      added.forEach((x, i) => add(cells + place * chunks * parts + i, x));
    }
  };
  return { elements, insert, fingerprint: family.fingerprint };
}

/** @param {Cell} cell @param {number[]} key @param {number} digits @returns {number[]} elements */
const elementsOf = ({ p, parts, radix, largest }, key, digits) =>
  key.flatMap((chunk) => {
    const product = multiplyAdd(toLong(digits), toLong(radix));
    digits = toNumber(low(product, 32));
    const whole = multiplyAdd(toLong(chunk), toLong(radix), shift(product, 32));
    return digitsOf(isAbove(whole, largest) ? largest : whole, p, parts);
  });

/** @param {Long} a @param {number} base @param {number} count @returns {number[]} lowest first */
export function digitsOf(a, base, count) {
  if (!count) return [];
  const [quotient, digit] = divide(a, base);
  return [digit, ...digitsOf(quotient, base, count - 1)];
}

/**
 * @param {number[]} hashed @param {number} subtables @param {number} width of each
 * @param {number} spread segments of a sub-table, of which each has a cell of the key
 */
const cellsOf = (hashed, subtables, width, spread) =>
  hashed.slice(0, subtables * spread).map((half, i) => {
    const [start, end] = [0, 1].map((next) => Math.floor((((i % spread) + next) * width) / spread));
    return Math.floor(i / spread) * width + start + scale(half, end - start);
  });

/**
 * Return the sampled units of a count, for a device with at most `most` items.
 *
 * @param {number} t @param {number} most @param {number} count @param {number} random below 1
 */
export function sample(t, most, count, random) {
  if (t >= most) return random * t < count ? 1 : 0;
  const floor = Math.floor(t);
  const p = (floor * (floor + 1 - t)) / t;
  const level = random < p ? floor : floor + 1;
  const rest = random < p ? random / p : (random - p) / Math.max(1 - p, Number.EPSILON);
  if (count >= level) return count;
  return rest * level < count ? level : 0;
}
