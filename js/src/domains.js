/**
 * Domains of items: their canonical form, their keys, and the digits that some have.
 *
 * `protocol/domains` has the reasons. An item is a text; a key is a list of numbers, its chunks.
 */

import { hex, sha256, utf8 } from "./bytes.js";
import { MalformedError } from "./errors.js";
import { bitLength } from "./field.js";
import { range } from "./hashing.js";

const CHUNK_LIMIT = 2 ** 24;
const PRIME_GAPS = { 16: 15, 20: 3, 24: 3 }; // from 2^b down to a prime, by the bits of a chunk
const NUMBER = /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i;

/** @typedef {(item: string) => string | null} Form an item, or null if there is none */
/**
 * @typedef {object} Digits of a domain; there are none if the base is 0
 * @property {number} base @property {number} width
 * @property {(item: string) => number[]} digits of an item inside
 * @property {Form} canonical null for an item outside
 * @property {Form} truncate the longest beginning that is inside
 *
 * @typedef {object} Keys
 * @property {number} chunks of a key @property {number} bound of each chunk
 * @property {(item: string) => Promise<{name: string, key: number[]}>} keyed of an item inside
 * @property {string[]} segments none if the domain has none
 *
 * @typedef {Digits & Keys} Domain
 */

/** @param {number} base @param {number} exponent @returns {number} exact below 2^53 */
export const power = (base, exponent) => range(exponent).reduce((product) => product * base, 1);

/** @param {number[]} digits @param {number} base @returns {number} the first digit counts most */
export const joined = (digits, base) => digits.reduce((sum, digit) => sum * base + digit, 0);

/**
 * Return the domain of a plan's document.
 *
 * @param {any} document @returns {Domain}
 * @throws {MalformedError} if its kind is unknown
 */
export function domainOf(document) {
  const make = KINDS.get(document?.kind);
  if (!make) throw new MalformedError(`a plan has a domain of the unknown kind ${document?.kind}`);
  return make(document);
}

/** @type {Map<string, (document: any) => Domain>} */
const KINDS = new Map([
  ["alphabet", alphabet], ["utf8", shortText], ["listed", listed], ["interval", interval],
  ["product", product], ["hashed", hashed], ["hashed-product", hashed],
]);

/** @param {Form} canonical @returns {Digits} of a domain without digits */
const withoutDigits = (canonical) =>
  ({ canonical, truncate: () => null, digits: () => [], base: 0, width: 0 });

/**
 * Return a domain of digits, of which chunks have as many as stay below 2^24.
 *
 * @param {Digits} domain @param {number} [pad] the digit after those of an item in its last chunk
 * @returns {Domain}
 */
function withKeys(domain, pad = 0) {
  const { base, width, digits } = domain;
  const fitting = range(25).filter((count) => power(base, count) <= CHUNK_LIMIT);
  const most = Math.max(1, fitting.length - 1);
  const chunks = Math.ceil(width / most);
  const size = Math.ceil(width / chunks);
  const keyed = async (/** @type {string} */ name) => {
    const padded = [...digits(name), ...Array(chunks * size - width).fill(pad)];
    const starts = range(chunks).map((i) => i * size);
    return { name, key: starts.map((start) => joined(padded.slice(start, start + size), base)) };
  };
  return { ...domain, chunks, bound: power(base, size), keyed, segments: [] };
}

/** @param {any} document @returns {Domain} texts of known characters */
function alphabet({ characters, length, pad }) {
  const letters = [...characters];
  const padPlace = Math.max(0, letters.indexOf(pad));
  const ifInside = (/** @type {string[]} */ item) => {
    const fits = pad ? item.length <= length && item.at(-1) !== pad : item.length === length;
    return fits && item.every((letter) => letters.includes(letter)) ? item.join("") : null;
  };
  const digits = (/** @type {string} */ item) => {
    const places = [...item].map((letter) => letters.indexOf(letter));
    return range(length).map((i) => places[i] ?? padPlace);
  };
  const canonical = (/** @type {string} */ item) => ifInside([...item]);
  const truncate = (/** @type {string} */ item) => ifInside([...item].slice(0, length));
  return withKeys({ canonical, truncate, digits, base: letters.length, width: length }, padPlace);
}

/** @param {any} document @returns {Domain} texts of few bytes */
function shortText({ max_bytes: most }) {
  const canonical = (/** @type {string} */ item) =>
    utf8(item).length <= most && !item.includes("\0") ? item : null;
  const truncate = (/** @type {string} */ item) => {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return canonical(decoder.decode(utf8(item).subarray(0, most), { stream: true }));
  };
  const digits = (/** @type {string} */ item) => {
    const bytes = utf8(item);
    return range(most).map((i) => bytes[i] ?? 0);
  };
  return withKeys({ canonical, truncate, digits, base: 256, width: most });
}

/** @param {any} document @returns {Domain} listed texts */
function listed({ items }) {
  const places = new Map(range(items.length).map((i) => [items[i], i]));
  const keyed = async (/** @type {string} */ name) => ({ name, key: [places.get(name) ?? 0] });
  const digits = withoutDigits((item) => (places.has(item) ? item : null));
  return { ...digits, chunks: 1, bound: items.length, keyed, segments: [] };
}

/** @param {any} document @returns {Domain} numbers, whose canonical form is the middle of a cell */
function interval({ low, high, alpha, length }) {
  const cells = power(alpha, length);
  const decimals = Math.ceil(-Math.log10((high - low) / cells / 4));
  const cellOf = (/** @type {string} */ item) =>
    Math.min(Math.floor(((Number(item) - low) / (high - low)) * cells), cells - 1);
  const canonical = (/** @type {string} */ item) => {
    if (!NUMBER.test(item) || !(low <= Number(item) && Number(item) <= high)) return null;
    const middle = low + ((cellOf(item) + 0.5) / cells) * (high - low);
    return numberText(rounded(Math.min(Math.max(middle, low), high), decimals));
  };
  const digits = (/** @type {string} */ item) => {
    const cell = cellOf(item);
    return range(length).map((i) => Math.floor(cell / power(alpha, length - 1 - i)) % alpha);
  };
  return withKeys({ canonical, truncate: canonical, digits, base: alpha, width: length });
}

/** @param {any} document @returns {Domain} pairs of a segment and an item of another domain */
function product({ segments, inner: document }) {
  const inner = domainOf(document);
  const shared = segments.length * inner.bound; // if one chunk has room for both
  const isShared = shared <= CHUNK_LIMIT;
  const bound = isShared ? shared : Math.max(inner.bound, segments.length);
  const canonical = (/** @type {string} */ item) => {
    const [segment, rest] = partition(item);
    const name = rest === null || !segments.includes(segment) ? null : inner.canonical(rest);
    return name === null ? null : `${segment}:${name}`;
  };
  const keyed = async (/** @type {string} */ name) => {
    const [segment, rest] = partition(name);
    const { key } = await inner.keyed(rest ?? "");
    const place = segments.indexOf(segment);
    if (!isShared) return { name, key: [place, ...key] };
    return { name, key: [key[0] + place * inner.bound, ...key.slice(1)] };
  };
  const digits = (/** @type {string} */ item) => inner.digits(partition(item)[1] ?? "");
  const chunks = inner.chunks + (isShared ? 0 : 1);
  return { ...inner, chunks, bound, canonical, keyed, digits, segments };
}

/** @param {any} document @returns {Domain} texts of any length, by the first bits of their hash */
function hashed({ key_bits: bits, max_bytes: most, salt, segments = [] }) {
  const chunks = Math.ceil(bits / 24);
  const size = bits / chunks;
  const digits = size / 4; // hexadecimal ones of a chunk
  const bound = 2 ** size - PRIME_GAPS[/** @type {16 | 20 | 24} */ (size)];
  const keyName = new RegExp(`^#[0-9a-f]{${bits / 4}}$`);
  const canonical = (/** @type {string} */ item) => {
    const [segment, rest] = partition(item);
    const isInSegment = !segments.length || (rest !== null && segments.includes(segment));
    const isText = utf8(item).length <= most && !item.includes("\0") && !keyName.test(item);
    return isText && isInSegment ? item : null;
  };
  const keyed = async (/** @type {string} */ item) => {
    let text = hex(await sha256(utf8(`blindtally item v1\0${salt}\0${item}`)));
    if (segments.length) {
      const rest = 2 ** (24 - bitLength(segments.length)); // the first bits are the segment's place
      const place = segments.indexOf(partition(item)[0]);
      const first = place * rest + (parseInt(text.slice(0, 6), 16) % rest);
      text = first.toString(16).padStart(6, "0") + text.slice(6);
    }
    const parts = range(chunks).map((i) => text.slice(i * digits, (i + 1) * digits));
    const key = parts.map((part) => parseInt(part, 16) % bound);
    const name = key.map((chunk) => chunk.toString(16).padStart(digits, "0")).join("");
    return { name: `#${name}`, key: key.reverse() };
  };
  return { ...withoutDigits(canonical), chunks, bound, keyed, segments };
}

/** @param {string} item @returns {[string, string | null]} before and after the first ":" */
function partition(item) {
  const end = item.indexOf(":");
  return end < 0 ? [item, null] : [item.slice(0, end), item.slice(end + 1)];
}

/** @param {number} x @param {number} decimals @returns {number} of two nearest the even one */
function rounded(x, decimals) {
  const scale = 10 ** Math.abs(decimals);
  if (decimals > 0) {
    const isTie = Math.abs(x * 2 ** (decimals + 1)) % 2 === 1;
    if (isTie) return (2 * Math.round((x * scale) / 2)) / scale;
    return Number(x.toFixed(Math.min(100, decimals)));
  }
  const below = Math.floor(x / scale);
  const rest = 2 * (x - below * scale) - scale;
  return (below + (rest > 0 || (rest === 0 && below % 2) ? 1 : 0)) * scale;
}

/** @param {number} x @returns {string} as Python writes a float: with a point or an exponent */
export function numberText(x) {
  const [digits, exponent] = x.toExponential().split("e");
  const isShort = Number(exponent) >= -4 && Number(exponent) < 16;
  if (isShort) return Number.isInteger(x) ? `${Object.is(x, -0) ? "-0" : x}.0` : `${x}`;
  return `${digits}e${exponent[0]}${exponent.slice(1).padStart(2, "0")}`;
}
