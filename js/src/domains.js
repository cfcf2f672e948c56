/**
 * Domains of items: their canonical form, their keys, and the digits that some have.
 *
 * `protocol/domains` has the reasons. An item is a text; a key is a list of numbers, its chunks.
 */

import { areDistinct, ceil, digitsOf, firstTrue, floor } from "./arithmetic.js";
import { joined, log2, max, min, power, range } from "./arithmetic.js";
import { hex, hexDigits, taggedHash, utf8 } from "./bytes.js";
import { checked, must } from "./errors.js";

/**
 * @typedef {(item: string) => string | null} Form an item, or null if there is none
 *
 * @typedef {object} Domain
 * @property {Form} canonical null for an item outside
 * @property {Form} [truncate] the longest beginning that is inside, if that is another form
 * @property {number} chunks of a key @property {number} bound of each chunk
 * @property {(item: string) => {name: string, key: number[]}} keyed
 * @property {(item: string) => number[]} digits the highest first
 * @property {number} base of digits, undefined if there are none @property {number} width their
 *   number
 */

/** Return the domain of a plan's document. @type {(document: any) => Domain} */
export const domainOf = (document) => {
  const kinds = { alphabet, utf8: shortText, listed, interval, hashed };
  return kinds[/** @type {"utf8"} */ (document.kind)](document);
};

/** Return an item of few bytes, or null. @type {(item: string, most: number) => string | null} */
const textOf = (item, most) => utf8(item).length <= most && !item.includes("\0") ? item : null;

/** Return a domain of digits, of which chunks have as many as stay below 2^24. The digit `pad`
 * fills those of items for which `raw` has fewer. @type {(base: number, width: number, raw: (item:
 * string) => number[], forms: {canonical: Form, truncate?: Form}, pad?: number) => Domain} */
function withDigits(base, width, raw, forms, pad = 0) {
  const most = firstTrue(1, 24, (count) => power(base, count + 1) > 2 ** 24);
  const chunks = ceil(width / most);
  const size = ceil(width / chunks);
  const padded = (/** @type {string} */ item, count = width) => {
    const row = raw(item);
    return range(count).map((i) => row[i] ?? pad);
  };
  const keyed = (/** @type {string} */ name) => {
    const row = padded(name, chunks * size);
    return { name, key: range(chunks).map((i) => joined(row.splice(0, size), base)) };
  };
  return { ...forms, chunks, bound: power(base, size), keyed, digits: padded, base, width };
}

/** Return texts of known characters. @type {(document: any) => Domain} */
function alphabet({ characters, length, pad }) {
  const letters = [...characters];
  must(areDistinct(letters) && characters.includes(pad));
  const raw = (/** @type {string} */ item) => [...item].map((letter) => letters.indexOf(letter));
  const canonical = (/** @type {string} */ item) => {
    const row = raw(item);
    const fits = pad ? row.length <= length && !item.endsWith(pad) : row.length === length;
    return fits && !row.includes(-1) ? item : null;
  };
  const truncate = (/** @type {string} */ item) => canonical([...item].slice(0, length).join(""));
  const padding = max(0, letters.indexOf(pad));
  return withDigits(letters.length, length, raw, { canonical, truncate }, padding);
}

/** Return texts of few bytes. @type {(document: any) => Domain} */
const shortText = ({ max_bytes: width }) => withDigits(256, width, (item) => [...utf8(item)], {
  canonical: (item) => textOf(item, width),
  truncate(item) {
    const { read } = new TextEncoder().encodeInto(item, new Uint8Array(width)); // cuts no character
    return textOf(item.slice(0, read), width);
  },
});

/** Return numbers, of which the middle of a cell is canonical. @type {(document: any) => Domain} */
function interval({ low, high, alpha, length }) {
  const size = high - low;
  const cells = checked(power(alpha, length), 2, 2 ** 48);
  const finest = 2 ** (floor(log2(max(-low, high))) - 50); // four units in the last place
  must(size > 0 && size < Infinity && size / cells >= finest);
  const decimals = ceil(-Math.log10(size / cells / 4));
  const cellOf = (/** @type {any} */ x) => min(floor(((x - low) / size) * cells), cells - 1);
  const canonical = (/** @type {string} */ item) => {
    const isNumber = /^\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*$/i.test(item);
    const x = +item;
    if (!isNumber || x < low || x > high) return null;
    const middle = low + ((cellOf(x) + 0.5) / cells) * size;
    return numberText(rounded(min(max(middle, low), high), decimals));
  };
  const raw = (/** @type {string} */ item) => digitsOf(cellOf(item), alpha, length).reverse();
  return withDigits(alpha, length, raw, { canonical });
}

/** Return listed texts, which have no digits. @type {(document: any) => any} */
function listed({ items }) {
  must(items.length > 1);
  const places = new Map(items.map((/** @type {string} */ item, /** @type {number} */ i) =>
    [item, i]));
  return {
    chunks: 1, bound: items.length,
    canonical: (/** @type {string} */ item) => (places.has(item) ? item : null),
    keyed: (/** @type {string} */ name) => ({ name, key: [places.get(name)] }),
  };
}

/** Return texts of any length, by bits of their hash, without digits. @type {(document: any) =>
 * any} */
function hashed({ key_bits: bits, max_bytes: most, salt }) {
  const chunks = ceil(bits / 24);
  const size = bits / chunks / 4; // hexadecimal digits of a chunk
  const bound = 16 ** size - (size === 4 ? 15 : 3); // a prime
  const nameOf = RegExp(`^#[0-9a-f]{${bits / 4}}$`);
  return {
    chunks, bound,
    canonical: (/** @type {string} */ item) => (nameOf.test(item) ? null : textOf(item, most)),
    keyed(/** @type {string} */ item) {
      const text = hex(taggedHash("item v1", utf8(`${salt}\0${item}`)));
      const key = range(chunks).map((i) => parseInt(text.substr(i * size, size), 16) % bound);
      const digits = key.map((chunk) => hexDigits(chunk, size)).join("");
      return { name: `#${digits}`, key: key.reverse() };
    },
  };
}

/** Return a rounded number, of two nearest ones the even one. @type {(x: number, decimals: number)
 * => number} */
function rounded(x, decimals) {
  const scale = 10 ** Math.abs(decimals);
  if (decimals > 0) {
    const isTie = Math.abs(x * 2 ** (decimals + 1)) % 2 === 1;
    if (isTie) return (2 * Math.round((x * scale) / 2)) / scale;
    return +x.toFixed(min(100, decimals));
  }
  const below = floor(x / scale);
  const rest = 2 * (x - below * scale) - scale;
  return (below + (rest > 0 || (rest === 0 && below % 2) ? 1 : 0)) * scale;
}

/** Return a number as Python writes a float: with a point or an exponent. @type {(x: number) =>
 * string} */
export function numberText(x) {
  const [digits, exponent] = x.toExponential().split("e");
  const isShort = +exponent >= -4 && +exponent < 16;
  if (isShort) return Number.isInteger(x) ? `${Object.is(x, -0) ? "-0" : x}.0` : `${x}`;
  return `${digits}e${exponent.replace(/\b\d$/, "0$&")}`;
}
