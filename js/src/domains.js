/**
 * Domains of items: their canonical form, their keys, and the digits that some have.
 *
 * `protocol/domains` has the reasons. An item is a text; a key is a list of numbers, its chunks.
 */

import { bitLength, ceil, digitsOf, firstTrue, floor, joined, max, min } from "./arithmetic.js";
import { power, range } from "./arithmetic.js";
import { hex, taggedHash, utf8 } from "./bytes.js";
import { must } from "./errors.js";

const CHUNK_LIMIT = 2 ** 24;

/** @typedef {(item: string) => string | null} Form an item, or null if there is none */
/**
 * @typedef {object} Digits of a domain; there are none if the base is 0
 * @property {number} base @property {number} width
 * @property {(item: string) => number[] | Uint8Array} digits of an item inside
 * @property {Form} canonical null for an item outside
 * @property {Form} [truncate] the longest beginning that is inside, if that is another form
 *
 * @typedef {object} Keys
 * @property {(item: string) => number[]} digits of the same number for all items
 * @property {number} chunks of a key @property {number} bound of each chunk
 * @property {(item: string) => Promise<{name: string, key: number[]}>} keyed of an item inside
 * @property {string[]} segments none if the domain has none
 *
 * @typedef {Omit<Digits, "digits"> & Keys} Domain
 */

/** Return the domain of a plan's document. @type {(document: any) => Domain} */
export function domainOf(document) {
  const make = KINDS.get(document.kind);
  must(make, `a plan has a domain of the unknown kind ${document.kind}`);
  return /** @type {any} */ (make)(document);
}

/** @type {Map<string, (document: any) => Domain>} */
const KINDS = new Map([
  ["alphabet", alphabet], ["utf8", shortText], ["listed", listed], ["interval", interval],
  ["product", product], ["hashed", hashed], ["hashed-product", hashed],
]);
const withoutDigits = { digits: () => [], base: 0, width: 0 };

/** Return a domain of digits, of which chunks have as many as stay below 2^24. The digit `pad` fills
 * those of short items. @type {(domain: Digits, pad?: number) => Domain} */
function withKeys(domain, pad = 0) {
  const { base, width } = domain;
  const most = firstTrue(1, 24, (count) => power(base, count + 1) > CHUNK_LIMIT);
  const chunks = ceil(width / most);
  const size = ceil(width / chunks);
  const padded = (/** @type {string} */ item, /** @type {number} */ count) => {
    const row = domain.digits(item);
    return range(count).map((i) => row[i] ?? pad);
  };
  const digits = (/** @type {string} */ item) => padded(item, width);
  const keyed = async (/** @type {string} */ name) => {
    const row = padded(name, chunks * size);
    return { name, key: range(chunks).map((i) => joined(row.slice(i * size, (i + 1) * size), base)) };
  };
  return { ...domain, digits, chunks, bound: power(base, size), keyed, segments: [] };
}

/** Return texts of known characters. @type {(document: any) => Domain} */
function alphabet({ characters, length, pad }) {
  const letters = [...characters];
  const digits = (/** @type {string} */ item) => [...item].map((letter) => letters.indexOf(letter));
  const canonical = (/** @type {string} */ item) => {
    const row = digits(item);
    const fits = pad ? row.length <= length && !item.endsWith(pad) : row.length === length;
    return fits && !row.includes(-1) ? item : null;
  };
  const truncate = (/** @type {string} */ item) => canonical([...item].slice(0, length).join(""));
  const domain = { canonical, truncate, digits, base: letters.length, width: length };
  return withKeys(domain, max(0, letters.indexOf(pad)));
}

/** Return texts of few bytes. @type {(document: any) => Domain} */
function shortText({ max_bytes: width }) {
  const canonical = (/** @type {string} */ item) =>
    utf8(item).length <= width && !item.includes("\0") ? item : null;
  const truncate = (/** @type {string} */ item) => {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return canonical(decoder.decode(utf8(item).subarray(0, width), { stream: true }));
  };
  return withKeys({ canonical, truncate, digits: utf8, base: 256, width });
}

/** Return listed texts. @type {(document: any) => Domain} */
function listed({ items }) {
  const places = new Map(items.map((/** @type {string} */ item, /** @type {number} */ i) =>
    [item, i]));
  const keyed = async (/** @type {string} */ name) => ({ name, key: [places.get(name)] });
  const canonical = (/** @type {string} */ item) => (places.has(item) ? item : null);
  return { ...withoutDigits, canonical, chunks: 1, bound: items.length, keyed, segments: [] };
}

/** Return numbers, whose canonical form is the middle of a cell. @type {(document: any) => Domain} */
function interval({ low, high, alpha, length }) {
  const cells = power(alpha, length);
  const decimals = ceil(-Math.log10((high - low) / cells / 4));
  const cellOf = (/** @type {string} */ item) =>
    min(floor(((Number(item) - low) / (high - low)) * cells), cells - 1);
  const canonical = (/** @type {string} */ item) => {
    const isNumber = /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(item);
    if (!isNumber || !(low <= Number(item) && Number(item) <= high)) return null;
    const middle = low + ((cellOf(item) + 0.5) / cells) * (high - low);
    return numberText(rounded(min(max(middle, low), high), decimals));
  };
  const digits = (/** @type {string} */ item) => digitsOf(cellOf(item), alpha, length).reverse();
  return withKeys({ canonical, digits, base: alpha, width: length });
}

/** Return pairs of a segment and an item of another domain. @type {(document: any) => Domain} */
function product({ segments, inner: document }) {
  const inner = domainOf(document);
  const shared = segments.length * inner.bound; // if one chunk has room for both
  const isShared = shared <= CHUNK_LIMIT;
  const bound = isShared ? shared : max(inner.bound, segments.length);
  const canonical = (/** @type {string} */ item) => {
    const [segment, rest] = partition(item);
    const name = segments.includes(segment) && rest !== undefined ? inner.canonical(rest) : null;
    return name === null ? null : `${segment}:${name}`;
  };
  const rest = (/** @type {string} */ item) => partition(item)[1] ?? "";
  const keyed = async (/** @type {string} */ name) => {
    const { key } = await inner.keyed(rest(name));
    const place = segments.indexOf(partition(name)[0]);
    if (isShared) key[0] += place * inner.bound;
    return { name, key: isShared ? key : [place, ...key] };
  };
  const digits = (/** @type {string} */ item) => inner.digits(rest(item));
  const chunks = inner.chunks + (isShared ? 0 : 1);
  return { ...inner, chunks, bound, canonical, keyed, digits, segments };
}

/** Return texts of any length, by the first bits of their hash. @type {(document: any) => Domain} */
function hashed({ key_bits: bits, max_bytes: most, salt, segments = [] }) {
  const chunks = ceil(bits / 24);
  const size = bits / chunks / 4; // hexadecimal digits of a chunk
  const bound = 16 ** size - (size === 4 ? 15 : 3); // a prime
  const canonical = (/** @type {string} */ item) => {
    const [segment, rest] = partition(item);
    const isInSegment = !segments.length || (rest !== undefined && segments.includes(segment));
    const isText = utf8(item).length <= most && !item.includes("\0");
    const isName = item.length === 1 + bits / 4 && /^#[0-9a-f]*$/.test(item);
    return isText && !isName && isInSegment ? item : null;
  };
  const keyed = async (/** @type {string} */ item) => {
    let text = hex(await taggedHash("item v1", utf8(`${salt}\0${item}`)));
    if (segments.length) {
      const rest = 2 ** (24 - bitLength(segments.length)); // the first bits are the segment's place
      const place = segments.indexOf(partition(item)[0]);
      const first = place * rest + (parseInt(text.slice(0, 6), 16) % rest);
      text = first.toString(16).padStart(6, "0") + text.slice(6);
    }
    const key = range(chunks).map((i) => parseInt(text.slice(i * size, (i + 1) * size), 16) % bound);
    const name = key.map((chunk) => chunk.toString(16).padStart(size, "0")).join("");
    return { name: `#${name}`, key: key.reverse() };
  };
  return { ...withoutDigits, canonical, chunks, bound, keyed, segments };
}

/** Return what is before and after the first ":". @type {(item: string) => [string, string?]} */
function partition(item) {
  const end = item.indexOf(":");
  return end < 0 ? [item] : [item.slice(0, end), item.slice(end + 1)];
}

/** Return a rounded number, of two nearest ones the even one.
 * @type {(x: number, decimals: number) => number} */
function rounded(x, decimals) {
  const scale = 10 ** Math.abs(decimals);
  if (decimals > 0) {
    const isTie = Math.abs(x * 2 ** (decimals + 1)) % 2 === 1;
    return isTie ? (2 * Math.round((x * scale) / 2)) / scale : Number(x.toFixed(min(100, decimals)));
  }
  const below = floor(x / scale);
  const rest = 2 * (x - below * scale) - scale;
  return (below + (rest > 0 || (rest === 0 && below % 2) ? 1 : 0)) * scale;
}

/** Return a number as Python writes a float: with a point or an exponent.
 * @type {(x: number) => string} */
export function numberText(x) {
  const [digits, exponent] = x.toExponential().split("e");
  const isShort = Number(exponent) >= -4 && Number(exponent) < 16;
  if (isShort) return Number.isInteger(x) ? `${Object.is(x, -0) ? "-0" : x}.0` : `${x}`;
  return `${digits}e${exponent.replace(/\b\d$/, "0$&")}`;
}
