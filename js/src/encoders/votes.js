/** Votes that secret coins hide: of a level of a trie, and of all prefixes of a value at once. */

import { joined, min, power, range, sum, zeros } from "../arithmetic.js";
import { hex, unhex } from "../bytes.js";
import { primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { checked, inPython, must } from "../errors.js";
import { flipCoins } from "../hashing.js";

/** @import { Encoder } from "../encode.js" */

/** Return the prime, the domain and the probability of votes without noise. @param {any} plan */
function votes({ question, release, terms }) {
  const { probability, variance } = release;
  if (question.join_probability < 1) inPython("join_probability", "coins");
  if (variance || probability === 1) inPython("epsilon", "noise");
  const domain = domainOf(question.domain);
  checked(domain.base, 2, 256);
  return { p: primeAbove(terms, terms.cohort_size), domain, probability };
}

/** @type {Encoder} one cell for each prefix of each length, of which an item has one per length */
export function hierarchicalHistogram(plan) {
  const { p, domain: { base, width, digits }, probability } = votes(plan);
  checked(power(base, width), 2, 2 ** 22);
  const length = sum(range(width, 1).map((level) => power(base, level)));
  return {
    p, length,
    async encode(held, random) {
      const elements = zeros(length);
      const row = held.length ? digits(held[0].item) : [];
      let first = 0; // cell of the level
      (await flipCoins(random, row.length, probability)).forEach((coin, level) => {
        if (coin) elements[first + joined(row.slice(0, level + 1), base)] = 1;
        first += power(base, level + 1);
      });
      return elements;
    },
  };
}

/** @type {Encoder} one cell for each continuation of each prefix of the plan's frontier */
export function triehh(plan) {
  const { p, domain, probability } = votes(plan);
  const { base, width, digits } = domain;
  const { frontier, level, question: { stride, truncate, domain: { pad } } } = plan;
  const start = checked((level - 1) * stride, 0, width - 1); // the first digit that is voted for
  const end = min(start + stride, width);
  must(frontier.every((/** @type {string} */ prefix) =>
    prefix.length === 2 * start && unhex(prefix).every((digit) => digit < base)));
  const continuations = power(base, end - start);
  const length = checked(frontier.length * continuations, 1, 2 ** 24);
  return {
    p, length,
    canonical(item) {
      const text = (truncate && domain.truncate ? domain.truncate : domain.canonical)(item);
      return text === null || (pad && text.includes(pad)) ? null : text;
    },
    async encode(held, random) {
      const elements = zeros(length);
      const drawn = await flipCoins(random, held.length, probability);
      const voted = new Set(); // a device votes once for a cell, by its first coin
      held.forEach(({ item }, i) => {
        const row = digits(item);
        const place = frontier.indexOf(hex(row.slice(0, start)));
        const cell = place * continuations + joined(row.slice(start, end), base);
        if (place >= 0 && !voted.has(cell) && drawn[i]) elements[cell] = 1;
        voted.add(cell);
      });
      return elements;
    },
  };
}
