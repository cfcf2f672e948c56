/**
 * SHA-256 [FIPS 180-4]. WebCrypto has it too, but a message needs 70 hashes of few bytes, and each
 * call of WebCrypto takes longer than the hash. Its steps take the same time for all bytes.
 *
 * The constants are the first 32 bits after the point of the roots of primes.
 */

import { isPrime, range } from "./arithmetic.js";

const PRIMES = range(310, 2).filter(isPrime);
const fraction = (/** @type {number} */ root) => (root % 1) * 2 ** 32;
const ROUNDS = Int32Array.from(PRIMES, (prime) => fraction(Math.cbrt(prime)));
const START = Int32Array.from(PRIMES.slice(0, 8), (prime) => fraction(Math.sqrt(prime)));

/** Return a word rotated to the right. @type {(x: number, bits: number) => number} */
const turned = (x, bits) => (x >>> bits) | (x << -bits);

/** Return the 32 bytes of the hash. @type {(bytes: Uint8Array) => Uint8Array} */
export function digest(bytes) {
  const { length } = bytes;
  const padded = new Uint8Array(length + 72 - ((length + 8) % 64));
  padded.set(bytes);
  padded[length] = 128;
  const view = new DataView(padded.buffer);
  view.setInt32(padded.length - 4, 8 * length); // of half a gigabyte at most
  const state = START.slice();
  const w = new Int32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    for (let i = 0; i < 16; i++) w[i] = view.getInt32(block + 4 * i);
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15];
      const y = w[i - 2];
      w[i] = w[i - 16] + (turned(x, 7) ^ turned(x, 18) ^ (x >>> 3)) + w[i - 7]
        + (turned(y, 17) ^ turned(y, 19) ^ (y >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const one = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g))
        + ROUNDS[i] + w[i]) | 0;
      const two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      // An array in place of these eight takes twice as long.
      h = g; g = f; f = e; e = (d + one) | 0;
      d = c; c = b; b = a; a = (one + two) | 0;
    }
    [a, b, c, d, e, f, g, h].forEach((word, i) => (state[i] += word));
  }
  state.forEach((word, i) => view.setInt32(4 * i, word));
  return padded.subarray(0, 32);
}
