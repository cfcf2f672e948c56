/** Counters of known items, pieces of their strings, and a table of samples of the others. */

import { unhex, utf8 } from "../bytes.js";
import { domainOf } from "../domains.js";
import { MalformedError } from "../errors.js";
import { bitLength, packedBytes } from "../field.js";
import { divide, halves, range, toFloat } from "../hashing.js";
import { messageBytes } from "../message.js";
import { checked, firstTrue, largestCommittee, maxDevices, primeAbove } from "../moduli.js";
import { cellFormat, makeTable, sample, tableLength } from "./table.js";

// Of thinned counts: the first bit of a coin in a random word, and its bits.
const LEVELS = [[0, 2], [2, 4], [6, 5]];
const MIN_PIECE_NUMBERS = 3;
const MAX_NUMBER_BITS = 32;
const NUMBER_BYTES = 3;

/** @typedef {import("../encode.js").Held} Held */
/** @typedef {{row: number, start: number, counters: number}} Counter of an item's name */
/** @typedef {{name: string, piece: number}} Piece of the string behind a name */

/** @param {any} plan @returns {Map<string, Counter>} the counters of each tracked name */
function countersOf({ counter_groups: groups }) {
  const rows = new Map();
  let start = 0;
  for (const { counters, items } of groups) {
    for (const name of items) {
      rows.set(name, { row: rows.size, start, counters });
      start += counters;
    }
  }
  return rows;
}

/** @param {any} terms @param {number} message @returns {number} the least vector with any prime */
function leastVectorBytes(terms, message) {
  const parameters = largestCommittee(terms);
  const rho = parameters.threshold - parameters.corrupt;
  const sizes = range(21).map((i) => {
    const p = primeAbove(terms, 2 ** (5 + i) - 1);
    const isTooLarge = (/** @type {number} */ columns) =>
      messageBytes(p, columns * rho, parameters, terms.registrar ? 64 : 0) > message;
    const columns = firstTrue(1, 2 ** 31, isTooLarge) - 1;
    return columns ? packedBytes(p, columns * rho + 1) - 1 : 0;
  });
  return Math.min(...sizes);
}

/** @param {any} plan @returns the numbers of 3 bytes in a piece, its elements, and bits of each */
function pieceFormat({ question, terms, rounds, prime, string_pieces: pieces }) {
  const bits = bitLength(prime) - 1;
  if (!pieces.length) return { numbers: 0, size: 0, bits };
  const fetchRounds = Math.max(1, Math.floor(rounds / 3));
  const needed = Math.ceil(question.domain.max_bytes / (NUMBER_BYTES * fetchRounds));
  const fitting = Math.floor(leastVectorBytes(terms, question.message_bytes) / MAX_NUMBER_BITS);
  const numbers = Math.max(1, Math.min(Math.max(MIN_PIECE_NUMBERS, needed), fitting));
  return { numbers, size: Math.ceil((8 * NUMBER_BYTES * numbers) / bits), bits };
}

/**
 * Count random parts of copies by level and class, which show how often a sum left its window.
 *
 * @param {number[]} classes of each copy @param {number[][]} words of each copy
 * @param {number} count of classes @returns {number[]}
 */
function thin(classes, words, count) {
  const kept = Array(LEVELS.length * count).fill(0);
  LEVELS.forEach(([first, bits], level) =>
    words.forEach((word, i) => {
      if ((halves(word)[1] >>> first) % 2 ** bits === 0) kept[level * count + classes[i]] += 1;
    }));
  return kept;
}

/** @type {import("../encode.js").Encoder} */
export const tracked = {
  faults: historyFaults,
  shape(plan) {
    const { question, terms, prime: p, counter_classes: classes, string_pieces: pieces } = plan;
    const thinned = classes.length + checked(plan.table_classes, "table_classes", 1, 2 ** 16);
    checked(plan.max_value, "max_value", 1, p - 1);
    if (primeAbove(terms, p - 1) !== p) throw new MalformedError(`${p} is no prime for this sum`);
    const counters = [...countersOf(plan).values()].reduce((sum, each) => sum + each.counters, 0);
    const sum = classes.reduce((/** @type {number} */ all, /** @type {number} */ n) => all + n, 0);
    if (sum !== counters) {
      throw new MalformedError(`counter_classes of ${counters} counters expected`);
    }
    const evidence = Math.floor(15 * 2 ** (question.hash_bits - 4));
    const cell = cellFormat(p, domainOf(question.domain), plan.cells, evidence);
    const strings = pieceFormat(plan).size * pieces.length;
    const length = counters + strings + tableLength(cell, plan.cells) + LEVELS.length * thinned;
    return { p, length, cell };
  },
  async encode(plan, held, chance) {
    const { p, cell } = this.shape(plan);
    const { question, cells, table_classes: classes } = plan;
    const rows = countersOf(plan);
    const rest = held.filter(({ name }) => !rows.has(name));
    const table = await makeTable(cell, cells, unhex(plan.seed));
    const random = await chance.floats(rest.length);
    const copies = rest.flatMap(({ key, count }, i) => {
      const units = sample(plan.t, question.contribution, count, random[i]);
      if (!units) return [];
      table.insert(key, units);
      return Array(units).fill(divide(table.fingerprint(key), classes)[1]);
    });
    const thinned = thin(copies, await chance.words(copies.length), classes);
    const counted = await counterElements(plan, rows, held, chance);
    const strings = plan.string_pieces.flatMap(pieceEncoder(plan, held));
    return [...counted, ...strings, ...table.elements, ...thinned].map((x) => x % p);
  },
};

/**
 * Return the counters, of which each copy of an item takes one by a coin, and their thinned counts.
 *
 * @param {any} plan @param {Map<string, Counter>} rows @param {Held[]} held
 * @param {import("../hashing.js").Chance} chance
 */
async function counterElements({ counter_classes: classes }, rows, held, chance) {
  const copies = held
    .flatMap(({ name, count }) => Array(rows.has(name) ? count : 0).fill(rows.get(name)))
    .sort((a, b) => a.row - b.row);
  const words = await chance.words(copies.length);
  const places = copies.map(({ start, counters }, i) =>
    start + Math.floor(toFloat(words[i]) * counters));
  const classOf = classes.flatMap((/** @type {number} */ size, /** @type {number} */ i) =>
    Array(size).fill(i));
  const counts = Array(classOf.length).fill(0);
  for (const place of places) counts[place] += 1;
  return [...counts, ...thin(places.map((place) => classOf[place]), words, classes.length)];
}

/** @param {any} plan @param {Held[]} held @returns the sums of a piece of the items' bytes */
function pieceEncoder(plan, held) {
  const { numbers, bits, size } = pieceFormat(plan);
  const nbytes = numbers * NUMBER_BYTES;
  return (/** @type {Piece} */ { name, piece }) => {
    const sums = Array(size).fill(0);
    for (const { item, count } of held.filter((each) => each.name === name)) {
      const raw = utf8(item).subarray(piece * nbytes, (piece + 1) * nbytes);
      const digits = Array.from(raw, (byte) => byte.toString(2).padStart(8, "0")).join("");
      const padded = digits.padEnd(8 * nbytes, "0").padStart(size * bits, "0");
      range(size).forEach((i) => {
        const part = parseInt(padded.slice(i * bits, (i + 1) * bits), 2);
        sums[i] = (sums[i] + count * part) % plan.prime;
      });
    }
    return sums;
  };
}

/** @param {any} plan @returns {string[]} what no earlier rounds of an honest study can explain */
function historyFaults(plan) {
  const { question: { domain, threshold, contribution }, round, rounds, terms } = plan;
  const { counter_groups: groups, string_pieces: pieces } = plan;
  const faults = round === 1 && groups.length ? ["tracks items in the first round"] : [];
  if (!pieces.length) return faults;
  if (!domain.key_bits) return [...faults, "fetches strings of a domain without hashes"];
  const last = Math.max(...pieces.map((/** @type {Piece} */ each) => each.piece));
  const isBeyond = last * NUMBER_BYTES * pieceFormat(plan).numbers >= domain.max_bytes;
  const heavy = Math.floor((rounds * maxDevices(terms) * contribution) / threshold);
  const manyStrings = `fetches ${pieces.length} strings, and ${heavy} items can be heavy`;
  const all = [
    [last > round - 2, `fetches piece ${last} of a string in round ${round}`],
    [isBeyond, `fetches piece ${last} of strings of ${domain.max_bytes} bytes`],
    [threshold <= contribution, "fetches strings that one device alone may make heavy"],
    [pieces.length > 2 * heavy, manyStrings],
  ];
  return [...faults, ...all.filter(([isFault]) => isFault).map(([, fault]) => String(fault))];
}
