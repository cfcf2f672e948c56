/**
 * Domains of items: their canonical form, their keys, and the digits that some have.
 *
 * `protocol/domains` has the reasons. An item is a text; a key is a list of numbers, its chunks.
 */

import { ceil, digitsOf, firstTrue, floor, joined, max, min } from "./arithmetic.js";
import { power, range } from "./arithmetic.js";
import { hex, taggedHash, utf8 } from "./bytes.js";

/** @typedef {(item: string) => string | null} Form an item, or null if there is none */
/**
 * @typedef {object} Digits of a domain; there are none if the base is 0
 * @property {number} base @property {number} width
 * @property {(item: string) => number[] | Uint8Array} digits of an item inside, the highest first
 * @property {Form} canonical null for an item outside
 * @property {Form} [truncate] the longest beginning that is inside, if that is another form
 *
 * @typedef {object} Keys
 * @property {(item: string) => number[]} digits as many as `width`
 * @property {number} chunks of a key @property {number} bound of each chunk
 * @property {(item: string) => Promise<{name: string, key: number[]}>} keyed of an item inside
 *
 * @typedef {Omit<Digits, "digits"> & Keys} Domain
 */

/** Return the domain of a plan's document. @type {(document: any) => Domain} */
export const domainOf = (document) =>
  ({ alphabet, utf8: shortText, listed, interval, hashed })[/** @type {"listed"} */ (document.kind)](
    document);

const WITHOUT_DIGITS = { digits: () => [], base: 0, width: 0 };

/** Return an item of few bytes, or null. @type {(item: string, most: number) => string | null} */
const textOf = (item, most) =>
  utf8(item).length <= most && !item.includes("\0") ? item : null;

/** Return a domain of digits, of which chunks have as many as stay below 2^24. The digit `pad` fills
 * those of short items. @type {(domain: Digits, pad?: number) => Domain} */
function withKeys(domain, pad = 0) {
  const { base, width } = domain;
  const most = firstTrue(1, 24, (count) => power(base, count + 1) > 2 ** 24);
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
  return { ...domain, digits, chunks, bound: power(base, size), keyed };
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
  const truncate = (/** @type {string} */ item) => {
    const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
    return textOf(decoder.decode(utf8(item).subarray(0, width), { stream: true }), width);
  };
  const canonical = (/** @type {string} */ item) => textOf(item, width);
  return withKeys({ canonical, truncate, digits: utf8, base: 256, width });
}

/** Return listed texts. @type {(document: any) => Domain} */
function listed({ items }) {
  const places = new Map(items.map((/** @type {string} */ item, /** @type {number} */ i) =>
    [item, i]));
  const keyed = async (/** @type {string} */ name) => ({ name, key: [places.get(name)] });
  const canonical = (/** @type {string} */ item) => (places.has(item) ? item : null);
  return { ...WITHOUT_DIGITS, canonical, chunks: 1, bound: items.length, keyed };
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

/** Return texts of any length, by the first bits of their hash. @type {(document: any) => Domain} */
function hashed({ key_bits: bits, max_bytes: most, salt }) {
  const chunks = ceil(bits / 24);
  const size = bits / chunks / 4; // hexadecimal digits of a chunk
  const bound = 16 ** size - (size === 4 ? 15 : 3); // a prime
  const canonical = (/** @type {string} */ item) => {
    const isName = item.length === 1 + bits / 4 && /^#[0-9a-f]*$/.test(item);
    return isName ? null : textOf(item, most);
  };
  const keyed = async (/** @type {string} */ item) => {
    const text = hex(await taggedHash("item v1", utf8(`${salt}\0${item}`)));
    const key = range(chunks).map((i) => parseInt(text.slice(i * size, (i + 1) * size), 16) % bound);
    const name = key.map((chunk) => chunk.toString(16).padStart(size, "0")).join("");
    return { name: `#${name}`, key: key.reverse() };
  };
  return { ...WITHOUT_DIGITS, canonical, chunks, bound, keyed };
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
