/**
 * Prime fields GF(p) with p < 2^26, whose products are exact: primes, interpolation, packing.
 *
 * Elements are packed in base p: g of them become one integer of b bits, where b is at most 53 and
 * b / g is smallest. The integers follow each other, the lowest bits first.
 */

import { bitLength, ceil, floor, isPrime, max, min, power } from "./arithmetic.js";

export const MAX_PRIME = 2 ** 26;

/** Return the least prime from `p` on that is 1 modulo 12 or 20. @type {(p: number) => number} */
export function suitablePrime(p) {
  while (!((p % 12 === 1 || p % 20 === 1) && isPrime(p))) p++;
  return p;
}

/** Return the weights of values at `nodes` in the value at each of other `points`, a row for each.
 * @type {(p: number, nodes: number[], points: number[]) => number[][]} */
export function lagrangeMatrix(p, nodes, points) {
  const inverses = [1, 1]; // the first one is for a gap of 0
  const last = max(...nodes, ...points) - min(...nodes, ...points);
  for (let n = 2; n <= last; n++) inverses.push(((p - floor(p / n)) * inverses[p % n]) % p);
  const invert = (/** @type {number} */ gap) => (gap < 0 ? p - inverses[-gap] : inverses[gap]);
  const product = (/** @type {number[]} */ factors) => factors.reduce((all, x) => (all * x) % p, 1);
  const ofNodes = nodes.map((node) => product(nodes.map((other) => invert(node - other))));
  return points.map((point) => {
    const whole = product(nodes.map((node) => (point - node + p) % p));
    return nodes.map((node, i) => product([whole, ofNodes[i], invert(point - node)]));
  });
}

/** Return the sum of rows of one length, each times its weight. @type {(p: number, weights:
 * number[], rows: number[][]) => number[]} */
export const combine = (p, weights, rows) =>
  rows[0].map((_, column) =>
    rows.reduce((total, row, i) => (total + weights[i] * row[column]) % p, 0));

/** Return the bits of `count` elements. @type {(p: number, count: number) => number} */
const groupBits = (p, count) => bitLength(power(p, count) - 1);

/** Return how many elements share an integer. @type {(p: number) => number} */
function groupSize(p) {
  let best = 1;
  for (let size = 2; power(p, size) <= 2 ** 53; size++) {
    if (groupBits(p, size) / size < groupBits(p, best) / best) best = size;
  }
  return best;
}

/** Return the size of packed elements in bytes. @type {(p: number, length: number) => number} */
export function packedBytes(p, length) {
  const group = groupSize(p);
  return ceil((floor(length / group) * groupBits(p, group) + groupBits(p, length % group)) / 8);
}

/** Return packed elements. @type {(p: number, elements: number[]) => Uint8Array} */
export function pack(p, elements) {
  const packed = new Uint8Array(packedBytes(p, elements.length));
  const group = groupSize(p);
  const bitsOfGroup = groupBits(p, group);
  let place = 0; // in bits
  for (let start = 0; start < elements.length; start += group) {
    let integer = 0;
    for (let i = min(start + group, elements.length); i-- > start; ) {
      integer = integer * p + elements[i];
    }
    // The last integer may have fewer bits, of which the others are 0.
    for (let taken, bits = bitsOfGroup; bits > 0; bits -= taken, place += taken) {
      taken = min(8 - (place % 8), bits);
      packed[place >>> 3] |= integer % 2 ** taken << place % 8;
      integer = floor(integer / 2 ** taken);
    }
  }
  return packed;
}
