/**
 * Bytes: hexadecimal texts, joined parts, hashes, and the statements that devices sign.
 *
 * All functions take and return `Uint8Array`; numbers are big-endian.
 */

import { MalformedError } from "./errors.js";

const encoder = new TextEncoder();

/** @param {Uint8Array} bytes @returns {string} two lower-case digits for each byte */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * Return the bytes of a text of hexadecimal digits.
 *
 * @param {string} text lower or upper case, an even number of digits
 * @returns {Uint8Array}
 * @throws {MalformedError} if the text is no such text
 */
export function unhex(text) {
  if (typeof text !== "string" || text.length % 2 || !/^[0-9a-fA-F]*$/.test(text)) {
    throw new MalformedError("a text of hexadecimal digits expected, two for each byte");
  }
  const byteAt = (/** @type {unknown} */ _, /** @type {number} */ i) =>
    parseInt(text.slice(2 * i, 2 * i + 2), 16);
  return Uint8Array.from({ length: text.length / 2 }, byteAt);
}

/** @param {string} text @returns {Uint8Array} its bytes of UTF-8 */
export const utf8 = (text) => encoder.encode(text);

/** @param {...Uint8Array} parts @returns {Uint8Array} the bytes of all parts, one after the other */
export function concat(...parts) {
  const joined = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let start = 0;
  for (const part of parts) {
    joined.set(part, start);
    start += part.length;
  }
  return joined;
}

/** @param {number} n a whole number below 2^32 @returns {Uint8Array} its four bytes */
export const u32 = (n) => Uint8Array.of(n >>> 24, n >>> 16, n >>> 8, n);

/** @param {Uint8Array} a @param {Uint8Array} b @returns {boolean} whether both have the same bytes */
export const equal = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

/** @param {...Uint8Array} parts @returns {Promise<Uint8Array>} SHA-256 of the joined parts */
export async function sha256(...parts) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", concat(...parts)));
}

/**
 * Return the statement that participant `slot` signs over the parts of `payload`.
 *
 * @param {string} name what is stated, such as "one-shot message"
 * @param {Uint8Array} label 32 bytes
 * @param {number} slot below 2^32
 * @param {...Uint8Array} payload
 * @returns {Promise<Uint8Array>}
 */
export async function statement(name, label, slot, ...payload) {
  return concat(utf8(`blindtally v1 ${name}\0`), label, u32(slot), await sha256(...payload));
}
