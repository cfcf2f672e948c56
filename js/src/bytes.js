/** Bytes: hexadecimal texts, hashes, and the statements that devices sign. */

import { must } from "./errors.js";
import { digest } from "./sha256.js";

/** @typedef {Uint8Array} Bytes */

export const { subtle } = crypto; // undefined in a page without https
export const HEX_32 = /^[0-9a-f]{64}$/; // 32 bytes
/** A public key of Ed25519, without the points whose order divides 8: those are keys of nobody, and
 * an honest key begins like one with probability 2^-45. */
export const KEY = /^(?!0[01]0{10}|e[cde]f{10}|26e8958fc2b2|c7176a703d4d)[0-9a-f]{64}$/;

/** Return lower-case hexadecimal digits. @type {(n: number, count?: number) => string} */
export const hexDigits = (n, count = 2) => n.toString(16).padStart(count, "0");

/** Return two digits for each byte. @type {(bytes: ArrayLike<number>) => string} */
export const hex = (bytes) => Array.from(bytes, (byte) => hexDigits(byte)).join("");

/** Return the bytes of hexadecimal digits. @type {(text: string) => Bytes} */
export function unhex(text) {
  must(/^([0-9a-f]{2})*$/i.test(text));
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => parseInt(digits, 16));
}

/** Return the bytes of a text. @type {(text: string) => Bytes} */
export const utf8 = (text) => new TextEncoder().encode(text);

/** Return the bytes of all parts. @type {(...parts: Bytes[]) => Bytes} */
export function concat(...parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  parts.reduce((start, part) => (all.set(part, start), start + part.length), 0);
  return all;
}

/** Return the four bytes of a number, big-endian. @type {(n: number) => Bytes} */
export const u32 = (n) => Uint8Array.of(n >>> 24, n >>> 16, n >>> 8, n);

/** Return random bytes of the system. @type {(size: number) => Bytes} */
export function systemRandom(size) {
  const bytes = new Uint8Array(size);
  // A call of WebCrypto fills 65,536 bytes at most.
  for (let i = 0; i < size; i += 65536) crypto.getRandomValues(bytes.subarray(i, i + 65536));
  return bytes;
}

/** Return what WebCrypto makes. @type {(made: Promise<ArrayBuffer>) => Promise<Bytes>} */
export const bytesOf = async (made) => new Uint8Array(await made);

/** Return the 32 bytes of SHA-256. @type {(...parts: Bytes[]) => Bytes} */
export const sha256 = (...parts) => digest(concat(...parts));

/** Return the prefix of bytes for one purpose. @type {(purpose: string) => Bytes} */
export const prefix = (purpose) => utf8(`blindtally ${purpose}\0`);

/** Return SHA-256 with a prefix for the purpose of the hash. @type {(purpose: string, ...parts:
 * Bytes[]) => Bytes} */
export const taggedHash = (purpose, ...parts) => sha256(prefix(purpose), ...parts);

/** Return the statement `name` that participant `slot` signs, for a label of 32 bytes. @type
 * {(name: string, label: Bytes, slot: number, ...payload: Bytes[]) => Bytes} */
export const statement = (name, label, slot, ...payload) =>
  concat(prefix(`v1 ${name}`), label, u32(slot), sha256(...payload));
