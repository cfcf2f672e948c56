/** Counters of known items, pieces of their strings, and a table of samples of the others. */

import { big, bitLength, ceil, digitsOf, firstTrue, floor } from "../arithmetic.js";
import { max, min, range, sum, zeros } from "../arithmetic.js";
import { hex, unhex, utf8 } from "../bytes.js";
import { largestCommittee, maxDevices, primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { checked, must } from "../errors.js";
import { packedBytes } from "../field.js";
import { draw, toFloat } from "../hashing.js";
import { messageBytes } from "../message.js";
import { sample, tableFormat } from "./table.js";

/** @import { Encoder } from "../encode.js" */

// Of thinned counts: the first bit of a coin in a random word, and its bits.
const LEVELS = [[0, 2], [2, 4], [6, 5]];
const MIN_PIECE_NUMBERS = 3;
const MAX_NUMBER_BITS = 32;
const NUMBER_BYTES = 3;

/** @typedef {{name: string, piece: number}} Piece of the string behind a name */

/** Return the least vector of a message with any prime, in bytes. @type {(terms: any, message:
 * number) => number} */
function leastVectorBytes(terms, message) {
  const parameters = largestCommittee(terms);
  const rho = parameters.threshold - parameters.corrupt;
  const sizes = range(21, 5).map((bits) => {
    const p = primeAbove(terms, 2 ** bits - 1);
    const columns = firstTrue(1, 2 ** 31, (count) =>
      messageBytes(p, count * rho, parameters, terms.registrar ? 64 : 0) > message) - 1;
    return columns ? packedBytes(p, columns * rho + 1) - 1 : 0;
  });
  return min(...sizes);
}

/** Return the bytes in a piece of a string. @param {any} plan */
function pieceBytes({ question, terms, rounds }) {
  const needed = ceil(question.domain.max_bytes / (NUMBER_BYTES * max(1, floor(rounds / 3))));
  const fitting = floor(leastVectorBytes(terms, question.message_bytes) / MAX_NUMBER_BITS);
  return NUMBER_BYTES * max(1, min(max(MIN_PIECE_NUMBERS, needed), fitting));
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

/** Return what no earlier rounds of an honest study can explain. @param {any} plan @param {number}
 * nbytes of a piece */
function faultOf({ question, round, rounds, terms, counter_groups, string_pieces: pieces }, nbytes) {
  const { domain, threshold, contribution } = question;
  if (round === 1 && counter_groups.length) return "tracks items in the first round";
  if (!pieces.length) return;
  const last = max(...pieces.map((/** @type {Piece} */ { piece }) => piece));
  const heavy = floor((rounds * maxDevices(terms) * contribution) / threshold);
  const isImpossible = !domain.key_bits || last > round - 2 || last * nbytes >= domain.max_bytes
    || threshold <= contribution || pieces.length > 2 * heavy;
  if (isImpossible) return "fetches strings that no earlier round can explain";
}

/** @type {Encoder} */
export function tracked(plan) {
  const { question, terms, prime: p, string_pieces: pieces } = plan;
  const { counter_classes: classes, table_classes: tableClasses } = plan;
  checked(tableClasses, 1, 2 ** 16);
  checked(plan.max_value, 1, p - 1);
  must(primeAbove(terms, p - 1) === p);
  const rows = new Map(); // the first counter of each name, and the number of its counters
  let counters = 0;
  for (const { counters: each, items } of plan.counter_groups) {
    for (const name of items) {
      must(!rows.has(name));
      rows.set(name, { start: counters, each });
      counters += each;
    }
  }
  must(sum(classes) === counters);
  const evidence = floor(15 * 2 ** (question.hash_bits - 4));
  const table = tableFormat(p, domainOf(question.domain), plan.cells, evidence);
  const nbytes = pieces.length && pieceBytes(plan);
  const bits = bitLength(p) - 1; // of an element of a piece
  const size = ceil((8 * nbytes) / bits);
  const thinnedLength = LEVELS.length * (classes.length + tableClasses);
  return {
    p, length: counters + size * pieces.length + table.length + thinnedLength,
    fault: faultOf(plan, nbytes),
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
        .sort((a, b) => a.start - b.start);
      const words = await draw(random, copies.length);
      const places = copies.map(({ start, each }, i) => start + floor(toFloat(words[i]) * each));
      const classOf = classes.flatMap((/** @type {number} */ count, /** @type {number} */ i) =>
        Array(count).fill(i));
      const counts = zeros(counters);
      for (const place of places) counts[place] += 1;
      const thinnedCounts = thin(places.map((place) => classOf[place]), words, classes.length);

      const strings = pieces.flatMap((/** @type {Piece} */ { name, piece }) => {
        const sums = zeros(size);
        for (const { item, count } of held.filter((each) => each.name === name)) {
          const raw = hex(utf8(item).subarray(piece * nbytes, (piece + 1) * nbytes));
          const digits = digitsOf(big(`0x${raw.padEnd(2 * nbytes, "0")}`), 2 ** bits, size);
          digits.reverse().forEach((digit, i) => (sums[i] = (sums[i] + count * digit) % p));
        }
        return sums;
      });
      return [...counts, ...thinnedCounts, ...strings, ...elements, ...thinned].map((x) => x % p);
    },
  };
}
