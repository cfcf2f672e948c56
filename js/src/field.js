/**
 * Prime fields GF(p) with p < 2^26, so that products are exact: primes, interpolation, packed bytes.
 *
 * Elements are packed in base p: g of them become one integer of b bits, where b is at most 53 and
 * b / g is smallest. The integers follow each other, the lowest bits first.
 */

const MAX_PRIME = 2 ** 26;
const LIMB = 2 ** 13; // two limbs have 26 bits

/** @typedef {ArrayLike<number>} Elements whole numbers from 0 to below p */

/** @param {number} n below 2^53 @returns {number} the number of its bits, 0 of 0 */
export const bitLength = (n) =>
  n < 2 ** 32 ? 32 - Math.clz32(n) : 32 + bitLength(Math.floor(n / 2 ** 32));

/** @param {number} n below 2^53 @returns {boolean} whether it is prime */
export function isPrime(n) {
  for (let divisor = 2; divisor * divisor <= n; divisor++) {
    if (n % divisor === 0) return false;
  }
  return Number.isInteger(n) && n > 1;
}

/** @param {number} p @param {number} points other than 0 @returns {boolean} whether both fit */
export const isField = (p, points) => points < p && p < MAX_PRIME && isPrime(p);

/** @param {number} least @returns {number} the smallest prime p >= least, 1 modulo 12 or 20 */
export function suitablePrime(least) {
  let p = Math.max(least, 2);
  while (!((p % 12 === 1 || p % 20 === 1) && isPrime(p))) p++;
  return p;
}

/**
 * Return `count` exactly uniform elements: 32-bit words of the stream, without bits beyond p.
 *
 * @param {number} p @param {number} count
 * @param {{read(nbytes: number): Promise<Uint8Array>}} stream
 */
export async function uniform(p, count, stream) {
  const elements = new Uint32Array(count);
  const range = 2 ** bitLength(p - 1);
  for (let filled = 0; filled < count; ) {
    const bytes = await stream.read(4 * (count - filled));
    const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    for (let place = 0; place < bytes.length; place += 4) {
      const element = words.getUint32(place, true) % range;
      if (element < p) elements[filled++] = element;
    }
  }
  return elements;
}

/**
 * Return the weights of the values at `nodes` in the value at each of `points`, one row each.
 *
 * @param {number} p @param {number[]} nodes distinct @param {number[]} points none of the nodes
 */
export function lagrangeMatrix(p, nodes, points) {
  const inverses = smallInverses(p, Math.max(...nodes, ...points) - Math.min(...nodes, ...points));
  const invert = (/** @type {number} */ gap) => (gap < 0 ? p - inverses[-gap] : inverses[gap]);
  const product = (/** @type {number[]} */ factors) => factors.reduce((all, x) => (all * x) % p, 1);
  const ofNodes = nodes.map((node) => product(nodes.map((other) => invert(node - other))));
  return points.map((point) => {
    const whole = product(nodes.map((node) => (point - node + p) % p));
    return nodes.map((node, i) => product([whole, ofNodes[i], invert(point - node)]));
  });
}

/** @param {number} p @param {number} last @returns {number[]} of 0 to last; that of 0 is 1 */
function smallInverses(p, last) {
  const inverses = [1, 1];
  for (let n = 2; n <= last; n++) inverses.push(((p - Math.floor(p / n)) * inverses[p % n]) % p);
  return inverses;
}

/**
 * Return the sum of `rows`, each times its weight, modulo p.
 *
 * @param {number} p @param {Elements} weights @param {Elements[]} rows fewer than 2^14, of one size
 */
export function combine(p, weights, rows) {
  return Uint32Array.from({ length: rows[0].length }, (_, column) => {
    let high = 0;
    let low = 0;
    for (let i = 0; i < rows.length; i++) {
      high += Math.floor(weights[i] / LIMB) * rows[i][column];
      low += (weights[i] % LIMB) * rows[i][column];
    }
    return ((high % p) * LIMB + low) % p;
  });
}

/** @param {number} p @param {number} count @returns {number} p^count, exact up to 2^53 */
const choices = (p, count) => Array(count).fill(p).reduce((product, each) => product * each, 1);

/** @param {number} p @param {number} count @returns {number} the bits of `count` elements */
const groupBits = (p, count) => bitLength(choices(p, count) - 1);

/** @param {number} p @returns {number} how many elements share an integer */
function groupSize(p) {
  let best = 1;
  for (let size = 2; choices(p, size) <= 2 ** 53; size++) {
    if (groupBits(p, size) / size < groupBits(p, best) / best) best = size;
  }
  return best;
}

/** @param {number} p @param {number} length @returns {number} the bytes of so many elements */
export function packedBytes(p, length) {
  const group = groupSize(p);
  const bits = Math.floor(length / group) * groupBits(p, group) + groupBits(p, length % group);
  return Math.ceil(bits / 8);
}

/** @param {number} p @param {Elements} elements @returns {Uint8Array} their packed bytes */
export function pack(p, elements) {
  const packed = new Uint8Array(packedBytes(p, elements.length));
  const group = groupSize(p);
  let place = 0; // in bits
  for (let start = 0; start < elements.length; start += group) {
    const end = Math.min(start + group, elements.length);
    let integer = 0;
    for (let i = end; i-- > start; ) integer = integer * p + elements[i];
    for (let bits = groupBits(p, end - start); bits > 0; ) {
      const taken = Math.min(8 - (place % 8), bits);
      packed[place >>> 3] |= integer % 2 ** taken << place % 8;
      integer = Math.floor(integer / 2 ** taken);
      [place, bits] = [place + taken, bits - taken];
    }
  }
  return packed;
}
