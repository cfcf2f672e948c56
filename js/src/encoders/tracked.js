/** Counters of known items, pieces of their strings, and a table of samples of the others. */

import { big, bitLength, ceil, digitsOf, firstTrue, floor } from "../arithmetic.js";
import { max, min, range, sum, zeros } from "../arithmetic.js";
import { hex, unhex, utf8 } from "../bytes.js";
import { largestCommittee, maxDevices, primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { checked, must } from "../errors.js";
import { packedBytes } from "../field.js";
import { drawWords, toFloat } from "../hashing.js";
import { messageBytes } from "../message.js";
import { cellFormat, makeTable, sample, tableLength } from "./table.js";

/** @import { Encoder, Held } from "../encode.js" */
/** @import { Random } from "../hashing.js" */

// Of thinned counts: the first bit of a coin in a random word, and its bits.
const LEVELS = [[0, 2], [2, 4], [6, 5]];
const MIN_PIECE_NUMBERS = 3;
const MAX_NUMBER_BITS = 32;
const NUMBER_BYTES = 3;

/** @typedef {{row: number, start: number, counters: number}} Counter of an item's name */
/** @typedef {{name: string, piece: number}} Piece of the string behind a name */

/** Return the counters of each tracked name. @type {(plan: any) => Map<string, Counter>} */
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

/** Return the least vector of a message with any prime, in bytes. @type {(terms: any, message:
 * number) => number} */
function leastVectorBytes(terms, message) {
  const parameters = largestCommittee(terms);
  const rho = parameters.threshold - parameters.corrupt;
  const sizes = range(21, 5).map((bits) => {
    const p = primeAbove(terms, 2 ** bits - 1);
    const isTooLarge = (/** @type {number} */ columns) =>
      messageBytes(p, columns * rho, parameters, terms.registrar ? 64 : 0) > message;
    const columns = firstTrue(1, 2 ** 31, isTooLarge) - 1;
    return columns ? packedBytes(p, columns * rho + 1) - 1 : 0;
  });
  return min(...sizes);
}

/** Return the bytes in a piece, its elements, and bits of each. @param {any} plan */
function pieceFormat({ question, terms, rounds, prime, string_pieces: pieces }) {
  const bits = bitLength(prime) - 1;
  if (!pieces.length) return { nbytes: 0, size: 0, bits };
  const fetchRounds = max(1, floor(rounds / 3));
  const needed = ceil(question.domain.max_bytes / (NUMBER_BYTES * fetchRounds));
  const fitting = floor(leastVectorBytes(terms, question.message_bytes) / MAX_NUMBER_BITS);
  const nbytes = NUMBER_BYTES * max(1, min(max(MIN_PIECE_NUMBERS, needed), fitting));
  return { nbytes, size: ceil((8 * nbytes) / bits), bits };
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

/** @type {Encoder} */
export const tracked = {
  shape(plan) {
    const { question, terms, prime: p, counter_classes: classes, string_pieces: pieces } = plan;
    const thinned = classes.length + checked(plan.table_classes, 1, 2 ** 16);
    checked(plan.max_value, 1, p - 1);
    must(primeAbove(terms, p - 1) === p);
    const counters = sum([...countersOf(plan).values()].map((each) => each.counters));
    must(sum(classes) === counters);
    const evidence = floor(15 * 2 ** (question.hash_bits - 4));
    const cell = cellFormat(p, domainOf(question.domain), plan.cells, evidence);
    const strings = pieceFormat(plan).size * pieces.length;
    const length = counters + strings + tableLength(cell, plan.cells) + LEVELS.length * thinned;
    return { p, length, cell };
  },
  async encode(plan, held, random) {
    const { p, cell } = this.shape(plan);
    const { question, cells, table_classes: classes } = plan;
    const rows = countersOf(plan);
    const rest = held.filter(({ name }) => !rows.has(name));
    const table = await makeTable(cell, cells, unhex(plan.seed));
    const drawn = (await drawWords(random, rest.length)).map(toFloat);
    const copies = rest.flatMap(({ key, count }, i) => {
      const units = sample(plan.t, question.contribution, count, drawn[i]);
      table.insert(key, units);
      return Array(units).fill(Number(table.fingerprint(key) % big(classes)));
    });
    const thinned = thin(copies, await drawWords(random, copies.length), classes);
    const counted = await counterElements(plan, rows, held, random);
    const strings = plan.string_pieces.flatMap(pieceEncoder(plan, held));
    return [...counted, ...strings, ...table.elements, ...thinned].map((x) => x % p);
  },
  /** Return what no earlier rounds of an honest study can explain. */
  fault(plan) {
    const { question: { domain, threshold, contribution }, round, rounds, terms } = plan;
    const { counter_groups: groups, string_pieces: pieces } = plan;
    if (round === 1 && groups.length) return "tracks items in the first round";
    if (!pieces.length) return;
    const last = max(...pieces.map((/** @type {Piece} */ { piece }) => piece));
    const heavy = floor((rounds * maxDevices(terms) * contribution) / threshold);
    const isImpossible = !domain.key_bits || last > round - 2
      || last * pieceFormat(plan).nbytes >= domain.max_bytes
      || threshold <= contribution || pieces.length > 2 * heavy;
    if (isImpossible) return "fetches strings too early, too long, too many, or of one device";
  },
};

/** Return the counters, of which each copy of an item takes one by a coin, and their thinned
 * counts. @type {(plan: any, rows: Map<string, Counter>, held: Held[], random: Random) =>
 * Promise<number[]>} */
async function counterElements({ counter_classes: classes }, rows, held, random) {
  const copies = held
    .flatMap(({ name, count }) => Array(rows.has(name) ? count : 0).fill(rows.get(name)))
    .sort((a, b) => a.row - b.row);
  const words = await drawWords(random, copies.length);
  const places = copies.map(({ start, counters }, i) =>
    start + floor(toFloat(words[i]) * counters));
  const classOf = classes.flatMap((/** @type {number} */ size, /** @type {number} */ i) =>
    Array(size).fill(i));
  const counts = zeros(classOf.length);
  for (const place of places) counts[place] += 1;
  return [...counts, ...thin(places.map((place) => classOf[place]), words, classes.length)];
}

/** Return the function that makes the sums of a piece of the items' bytes. @param {any} plan @param
 * {Held[]} held */
function pieceEncoder(plan, held) {
  const { nbytes, bits, size } = pieceFormat(plan);
  return (/** @type {Piece} */ { name, piece }) => {
    const sums = zeros(size);
    for (const { item, count } of held.filter((each) => each.name === name)) {
      const raw = hex(utf8(item).subarray(piece * nbytes, (piece + 1) * nbytes));
      const digits = digitsOf(big(`0x${raw.padEnd(2 * nbytes, "0")}`), 2 ** bits, size);
      digits.reverse().forEach((digit, i) => {
        sums[i] = (sums[i] + count * digit) % plan.prime;
      });
    }
    return sums;
  };
}
