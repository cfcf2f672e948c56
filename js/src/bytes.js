/** Bytes as `Uint8Array`: hexadecimal texts, hashes, and the statements that devices sign. */

import { MalformedError } from "./errors.js";

const encoder = new TextEncoder();

/** Return two lower-case digits for each byte. @type {(bytes: Uint8Array) => string} */
export const hex = (bytes) =>
  Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** Return the bytes of hexadecimal digits; throws a MalformedError for any other text.
 * @type {(text: string) => Uint8Array} */
export function unhex(text) {
  if (typeof text !== "string" || !/^([0-9a-fA-F]{2})*$/.test(text)) {
    throw new MalformedError("a text of hexadecimal digits expected, two for each byte");
  }
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => parseInt(digits, 16));
}

/** Return the bytes of a text in UTF-8. @type {(text: string) => Uint8Array} */
export const utf8 = (text) => encoder.encode(text);

/** Return the bytes of all parts. @type {(...parts: Uint8Array[]) => Uint8Array} */
export function concat(...parts) {
  const joined = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let start = 0;
  for (const part of parts) {
    joined.set(part, start);
    start += part.length;
  }
  return joined;
}

/** Return the four bytes of a number below 2^32, big-endian. @type {(n: number) => Uint8Array} */
export const u32 = (n) => Uint8Array.of(n >>> 24, n >>> 16, n >>> 8, n);

/** Return random bytes of the system. @type {(size: number) => Uint8Array} */
export const systemRandom = (size) => crypto.getRandomValues(new Uint8Array(size));

/** Return whether both have the same bytes. @type {(a: Uint8Array, b: Uint8Array) => boolean} */
export const equal = (a, b) => a.length === b.length && a.every((byte, i) => byte === b[i]);

/** Return the 32 bytes of SHA-256. @type {(...parts: Uint8Array[]) => Promise<Uint8Array>} */
export const sha256 = async (...parts) =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", concat(...parts)));

/** Return the statement `name` that participant `slot` signs, for a label of 32 bytes.
 * @type {(name: string, label: Uint8Array, slot: number, ...payload: Uint8Array[]) =>
 *   Promise<Uint8Array>} */
export const statement = async (name, label, slot, ...payload) =>
  concat(utf8(`blindtally v1 ${name}\0`), label, u32(slot), await sha256(...payload));
