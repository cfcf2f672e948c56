/** Counters of known items, pieces of their strings, and a table of samples of the others. */

import { areDistinct, big, bitLength, ceil, digitsOf } from "../arithmetic.js";
import { floor, max, range, sum, zeros } from "../arithmetic.js";
import { hex, unhex, utf8 } from "../bytes.js";
import { primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { must } from "../errors.js";
import { draw, toFloat } from "../hashing.js";
import { sample, tableFormat } from "./table.js";

/** @import { Encoder } from "../encode.js" */

// Of thinned counts: the first bit of a coin in a random word, and its bits.
const LEVELS = [[0, 2], [2, 4], [6, 5]];

/** @typedef {[row: number, start: number, size: number]} Piece of the string of a counted name */

/** Return the digits of bytes in hexadecimal, by the first phrase at each place, or by three digits
 * of a byte. @param {string} bytes @param {string[]} phrases @returns {number[]} */
function digitsOfBytes(bytes, phrases) {
  const texts = phrases.map((each) => hex(utf8(each)));
  const parts = bytes.match(RegExp([...texts, ".."].join("|"), "g")) ?? [];
  return parts.flatMap((part) => {
    const byte = parseInt(part, 16);
    return texts.indexOf(part) + 1 || (texts[0] ? [texts.length + 1, byte >> 4, byte & 15] : byte);
  });
}

/** Count random parts of copies, of which each has a class and a word, by level and class. They
 * show how often a sum left its window. @type {(classes: number[], words: bigint[], count: number)
 * => number[]} */
function thin(classes, words, count) {
  const kept = zeros(LEVELS.length * count);
  LEVELS.forEach(([first, bits], level) =>
    words.forEach((word, i) => {
      if (!BigInt.asUintN(bits, word >> big(first))) kept[level * count + classes[i]] += 1;
    }));
  return kept;
}

/** Return whether no earlier rounds of an honest study can explain a plan. @param {any} plan */
function isUnexplained({ question, round, rounds, terms, counter_groups, string_pieces: pieces }) {
  const { domain, threshold, contribution } = question;
  const end = max(...pieces.map((/** @type {Piece} */ [, start, size]) => start + size));
  const heavy = floor((rounds * terms.cohort_size * contribution) / threshold);
  const areImpossible = !domain.key_bits || end > domain.max_bytes + 2 || threshold <= contribution
    || pieces.length > 2 * heavy;
  return (round === 1 && counter_groups.length) || (pieces.length && areImpossible);
}

/** @type {Encoder} */
export function tracked(plan) {
  const { question, terms, prime: p, string_pieces: pieces, phrases } = plan;
  const { counter_classes: classes, table_classes: tableClasses } = plan;
  must(tableClasses && plan.max_value < p && primeAbove(terms, p - 1) === p);
  const rows = new Map(); // the first counter of each name, and the number of its counters
  let counters = 0;
  for (const { counters: each, items } of plan.counter_groups) {
    for (const name of items) {
      must(!rows.has(name));
      rows.set(name, [counters, each]);
      counters += each;
    }
  }
  must(sum(classes) === counters);
  const evidence = floor(15 * 2 ** (question.hash_bits - 4));
  const table = tableFormat(p, domainOf(question.domain), plan.cells, evidence);
  const bits = bitLength(p) - 1; // of an element of a piece
  must(!phrases[0] || (pieces[0] && phrases[13]));
  const base = big(phrases[0] ? phrases.length + 2 : 256);
  const elementsOf = (/** @type {Piece} */ [, , size]) =>
    ceil((base ** big(size) - 1n).toString(2).length / bits);
  const fetched = pieces.map((/** @type {Piece} */ [row]) => row);
  must(areDistinct(fetched) && max(...fetched) < rows.size);
  return {
    p, length: counters + sum(pieces.map(elementsOf)) + table.length
      + LEVELS.length * (classes.length + tableClasses),
    isImpossible: isUnexplained(plan),
    async encode(held, random) {
      const { elements, insert } = await table.make(unhex(plan.seed));
      const rest = held.filter(({ name }) => !rows.has(name));
      const drawn = await draw(random, rest.length);
      const sampled = rest.flatMap(({ key, count }, i) => {
        const units = sample(plan.t, question.contribution, count, toFloat(drawn[i]));
        return Array(units).fill(Number(insert(key, units) % big(tableClasses)));
      });
      const thinned = thin(sampled, await draw(random, sampled.length), tableClasses);

      // Each copy of an item with counters takes one of them by a coin.
      const copies = held
        .flatMap(({ name, count }) => Array(rows.has(name) ? count : 0).fill(rows.get(name)))
        .sort(([a], [b]) => a - b);
      const words = await draw(random, copies.length);
      const places = copies.map(([start, each], i) => start + floor(toFloat(words[i]) * each));
      const classOf = classes.flatMap((/** @type {number} */ count, /** @type {number} */ i) =>
        Array(count).fill(i));
      const counts = zeros(counters);
      for (const place of places) counts[place] += 1;
      const thinnedCounts = thin(places.map((place) => classOf[place]), words, classes.length);

      const names = [...rows.keys()];
      const strings = pieces.flatMap((/** @type {Piece} */ piece) => {
        const [row, start, size] = piece;
        const sums = zeros(elementsOf(piece));
        for (const { item, count } of held.filter((each) => each.name === names[row])) {
          const code = digitsOfBytes(hex(utf8(item).subarray(start)), phrases);
          const whole = range(size).reduce((n, i) => n * base + big(code[i] | 0), 0n);
          const digits = digitsOf(whole, 2 ** bits, sums.length);
          digits.reverse().forEach((digit, i) => (sums[i] += count * digit));
        }
        return sums;
      });
      return [...counts, ...thinnedCounts, ...strings, ...elements, ...thinned].map((x) => x % p);
    },
  };
}
