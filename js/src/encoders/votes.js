/** Votes that secret coins hide: of a level of a trie, and of all prefixes of a value at once. */

import { domainOf, joined, power } from "../domains.js";
import { MalformedError, RefusedError } from "../errors.js";
import { range } from "../hashing.js";
import { checked, maxDevices, primeAbove } from "../moduli.js";
import { withNoise } from "./sketches.js";

const MAX_CELLS = 2 ** 24;

/** @typedef {import("../encode.js").Encoder} Encoder */

/** @param {any} plan @returns {{p: number, domain: import("../domains.js").Domain}} checked */
function votes({ mechanism, question, release, terms }) {
  const { probability, variance } = release;
  checked(question.join_probability, "join_probability", probability, 1);
  if (variance !== 0 || probability === 1) {
    throw withNoise(mechanism, "ask for the mode sample-threshold");
  }
  const domain = domainOf(question.domain);
  checked(domain.segments.length ? 0 : domain.base, "the base of digits", 2, 256);
  return { p: primeAbove(terms, maxDevices(terms)), domain };
}

/** @param {any} plan @param {import("../hashing.js").Chance} chance @param {number} count */
const voteCoins = ({ question, release }, chance, count) =>
  chance.coins(count, release.probability, question.join_probability);

/** @type {Encoder} one cell for each prefix of each length, of which an item has one per length */
export const hierarchicalHistogram = {
  shape(plan) {
    const { p, domain: { base, width } } = votes(plan);
    checked(power(base, width), "the number of leaves", 2, 2 ** 22);
    return { p, length: range(width).reduce((sum, level) => sum + power(base, level + 1), 0) };
  },
  async encode(plan, held, chance) {
    const elements = new Uint32Array(this.shape(plan).length);
    const { base, digits } = domainOf(plan.question.domain);
    let first = 0; // cell of the level
    const cells = (held.length ? digits(held[0].item) : []).map((_, level, all) => {
      const cell = first + joined(all.slice(0, level + 1), base);
      first += power(base, level + 1);
      return cell;
    });
    const coins = await voteCoins(plan, chance, cells.length);
    cells.forEach((cell, level) => (elements[cell] = coins[level] ? 1 : 0));
    return elements;
  },
};

/** @param {any} plan @returns {{start: number, end: number}} the digits that a level votes for */
function levelOf({ level, question }) {
  const { width } = domainOf(question.domain);
  const start = (level - 1) * question.stride;
  checked(level, "level", 1, Math.ceil(width / question.stride));
  return { start, end: Math.min(start + question.stride, width) };
}

/** @type {Encoder} one cell for each continuation of each prefix of the plan's frontier */
export const trieHh = {
  shape(plan) {
    const { p, domain } = votes(plan);
    const { mechanism, level, frontier } = plan;
    const { start, end } = levelOf(plan);
    if (plan.table_shape) {
      const reason = `asks by ${mechanism} for a table of votes, which is not made in JavaScript`;
      throw new RefusedError("mechanism", `${reason}: leave out vote_tables`);
    }
    if (frontier.some((/** @type {string} */ each) => each.length !== 2 * start)) {
      throw new MalformedError(`level ${level} has prefixes of ${start} digits`);
    }
    const cells = frontier.length * power(domain.base, end - start);
    return { p, length: checked(cells, "the number of cells", 1, MAX_CELLS) };
  },
  async encode(plan, held, chance) {
    const elements = new Uint32Array(this.shape(plan).length);
    const { base, digits } = domainOf(plan.question.domain);
    const { start, end } = levelOf(plan);
    const coins = await voteCoins(plan, chance, held.length);
    const voted = new Set(); // a device votes once for a cell, by its first coin
    held.forEach(({ item }, i) => {
      const row = digits(item);
      const prefix = row.slice(0, start).map((digit) => digit.toString(16).padStart(2, "0"));
      const place = plan.frontier.indexOf(prefix.join(""));
      const cell = place * power(base, end - start) + joined(row.slice(start, end), base);
      if (place >= 0 && !voted.has(cell) && coins[i]) elements[cell] = 1;
      voted.add(cell);
    });
    return elements;
  },
};

/**
 * Return the form of an item that a trie counts; null if it is outside the domain.
 *
 * @param {any} question @param {import("../domains.js").Domain} domain @param {string} item
 */
export function canonicalOfTrie({ domain: { pad }, truncate }, domain, item) {
  const text = truncate ? domain.truncate(item) : domain.canonical(item);
  return text === null || (pad && text.includes(pad)) ? null : text;
}
