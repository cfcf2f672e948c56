/** Votes that secret coins hide: of a level of a trie, and of all prefixes of a value at once. */

import { joined, min, power, range, sum, zeros } from "../arithmetic.js";
import { hex } from "../bytes.js";
import { maxDevices, primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { checked, inPython, must } from "../errors.js";
import { flipCoins } from "../hashing.js";

/** @import { Domain } from "../domains.js" */
/** @import { Encoder } from "../encode.js" */
/** @import { Random } from "../hashing.js" */

/** Return the prime and the domain of votes without noise. @param {any} plan */
function votes({ question, release, terms }) {
  const { probability, variance } = release;
  checked(question.join_probability, probability, 1);
  if (variance || probability === 1) inPython("epsilon", "noise: ask for sample-threshold");
  const domain = domainOf(question.domain);
  checked(domain.base, 2, 256);
  return { p: primeAbove(terms, maxDevices(terms)), domain };
}

/** @type {(plan: any, random: Random, count: number) => Promise<boolean[]>} */
const voteCoins = ({ question, release }, random, count) =>
  flipCoins(random, count, release.probability, question.join_probability);

/** @type {Encoder} one cell for each prefix of each length, of which an item has one per length */
export const hierarchicalHistogram = {
  shape(plan) {
    const { p, domain: { base, width } } = votes(plan);
    checked(power(base, width), 2, 2 ** 22);
    return { p, length: sum(range(width, 1).map((level) => power(base, level))) };
  },
  async encode(plan, held, random) {
    const elements = zeros(this.shape(plan).length);
    const { base, digits } = domainOf(plan.question.domain);
    const row = held.length ? digits(held[0].item) : [];
    const coins = await voteCoins(plan, random, row.length);
    let first = 0; // cell of the level
    row.forEach((_, level) => {
      if (coins[level]) elements[first + joined(row.slice(0, level + 1), base)] = 1;
      first += power(base, level + 1);
    });
    return elements;
  },
};

/** Return the first digit for which a level votes, and the end of these. @param {any} plan */
function levelOf({ level, question: { domain, stride } }) {
  const { width } = domainOf(domain);
  const start = (level - 1) * stride;
  checked(start, 0, width - 1);
  return [start, min(start + stride, width)];
}

/** @type {Encoder} one cell for each continuation of each prefix of the plan's frontier */
export const trieHh = {
  shape(plan) {
    const { p, domain } = votes(plan);
    const [start, end] = levelOf(plan);
    const isOfLevel = (/** @type {string} */ prefix) => prefix.length === 2 * start;
    must(plan.frontier.every(isOfLevel));
    const cells = plan.frontier.length * power(domain.base, end - start);
    return { p, length: checked(cells, 1, 2 ** 24) };
  },
  async encode(plan, held, random) {
    const elements = zeros(this.shape(plan).length);
    const { base, digits } = domainOf(plan.question.domain);
    const [start, end] = levelOf(plan);
    const coins = await voteCoins(plan, random, held.length);
    const voted = new Set(); // a device votes once for a cell, by its first coin
    held.forEach(({ item }, i) => {
      const row = digits(item);
      const place = plan.frontier.indexOf(hex(row.slice(0, start)));
      const cell = place * power(base, end - start) + joined(row.slice(start, end), base);
      if (place >= 0 && !voted.has(cell) && coins[i]) elements[cell] = 1;
      voted.add(cell);
    });
    return elements;
  },
};

/** Return the form of an item that a trie counts; null if it is outside the domain. @type
 * {(question: any, domain: Domain, item: string) => string | null} */
export function canonicalOfTrie({ domain: { pad }, truncate }, domain, item) {
  const text = (truncate && domain.truncate ? domain.truncate : domain.canonical)(item);
  return text === null || (pad && text.includes(pad)) ? null : text;
}
