/** Encoding of a device's items: the histogram that it contributes, and the vector of it. */

import { hex, systemRandom, utf8 } from "./bytes.js";
import { domainOf, numberText } from "./domains.js";
import { numberSums } from "./encoders/numbers.js";
import { approximateHistogram, frequencySketch } from "./encoders/sketches.js";
import { tracked } from "./encoders/tracked.js";
import { canonicalOfTrie, hierarchicalHistogram, trieHh } from "./encoders/votes.js";
import { RefusedError } from "./errors.js";
import { Chance } from "./hashing.js";

/** @typedef {{item: string, count: number, name: string, key: number[]}} Held */
/** @typedef {import("./hashing.js").Random} Random */
/**
 * @typedef {object} Encoder of the vectors of a mechanism
 * @property {(plan: any) => {p: number, length: number, cell?: any}} shape the prime and the
 *   elements of a vector; throws a MalformedError if the plan cannot be
 * @property {(plan: any, held: Held[], chance: Chance) => Promise<ArrayLike<number>>} encode
 * @property {(plan: any) => string[]} [faults] what no honest study asks
 * @property {(plan: any) => boolean} [showsOneDevice] whether sums may show what one device holds
 * @property {(plan: any) => number} [leastCount] of listed items; by default the threshold
 */

/** @type {Record<string, Encoder>} */
const ENCODERS = {
  tracked,
  triehh: trieHh,
  "hierarchical-histogram": hierarchicalHistogram,
  "number-sums": numberSums,
  "approximate-histogram": approximateHistogram,
  "count-median": frequencySketch,
  "count-sketch": frequencySketch,
};

/**
 * Return the encoder of a plan's mechanism.
 *
 * @param {any} plan @returns {Encoder}
 * @throws {RefusedError} if the plan is of no one-shot sum that this device can encode
 */
export function encoderOf({ mechanism, question, terms }) {
  if (!Object.hasOwn(ENCODERS, mechanism) || question?.mechanism !== mechanism) {
    const reason = `asks by ${mechanism}, which a device in JavaScript does not answer: it knows`;
    throw new RefusedError("mechanism", `${reason} ${Object.keys(ENCODERS).join(", ")}`);
  }
  if (terms?.sum !== "one-shot" || !terms.committee || terms.cohorts !== 1) {
    const reason = `asks by ${mechanism} for a sum in which devices wait for each other`;
    throw new RefusedError("sum", `${reason}, which JavaScript does not answer: make it one-shot`);
  }
  return ENCODERS[mechanism];
}

/**
 * Return the vector of a device's items for a plan.
 *
 * @param {any} plan of `readPlan`, which `checkPlan` has accepted
 * @param {Map<any, number> | Iterable<any>} items texts, numbers, and pairs of a segment and one of
 *   these; or a map of their counts
 * @param {Random} [random] the source of coins, by default the system
 * @param {{maxCopies?: number, choices?: Random}} [options] the copies of an item that may count
 *   (`maxCopies` of the policy); and the source of the choice among too many items, by default
 *   `random`, which should be the same in all rounds of a study
 * @returns {Promise<{p: number, elements: ArrayLike<number>, leftOut: number}>} elements modulo p,
 *   and how many items are not in them
 * @throws {RefusedError} as `encoderOf` @throws {MalformedError} if the plan cannot be
 * @throws {TypeError} if an item is neither text nor number, or a count is not whole
 */
export async function encode(
  plan, items, random = systemRandom, { maxCopies = Infinity, choices = random } = {},
) {
  const encoder = encoderOf(plan);
  const { p } = encoder.shape(plan);
  const domain = domainOf(plan.question.domain);
  const counts = countItems(items);
  const inside = insideDomain(plan.question, domain, counts);
  const limited = inside.map(([item, count]) => pair(item, Math.min(count, maxCopies)));
  const kept = await clip(limited, plan.question.contribution, new Chance(choices));
  const held = await Promise.all(
    kept.map(async ([item, count]) => ({ item, count, ...(await domain.keyed(item)) })));
  const elements = await encoder.encode(plan, held, new Chance(random));
  return { p, elements, leftOut: total([...counts]) - total(kept) };
}

/** @param {string} item @param {number} count @returns {[string, number]} */
const pair = (item, count) => [item, count];

/** @param {[string, number][]} counts @returns {number} */
const total = (counts) => counts.reduce((sum, [, count]) => sum + count, 0);

/** @param {Map<any, number> | Iterable<any>} items @returns {Map<string, number>} */
function countItems(items) {
  const counts = new Map();
  const pairs = items instanceof Map ? items : Array.from(items, (item) => [item, 1]);
  for (const [item, count] of pairs) {
    if (!Number.isSafeInteger(count) || count < 0) {
      throw new TypeError(`the count of an item is a whole number, got ${count}`);
    }
    const texts = Array.isArray(item) ? item.map(itemText) : [itemText(item)];
    if (texts.length > 2 || (texts.length === 2 && texts[0].includes(":"))) {
      throw new TypeError(`a pair has a segment without ":", and an item; got ${texts}`);
    }
    counts.set(texts.join(":"), (counts.get(texts.join(":")) ?? 0) + count);
  }
  return counts;
}

/** @param {any} item @returns {string} the same text of a number as in Python */
function itemText(item) {
  if (typeof item === "string") return item;
  if (typeof item !== "number" || Number.isNaN(item)) {
    throw new TypeError(`an item is a text or a number, got ${item}`);
  }
  return Math.abs(item) <= 2 ** 53 && Number.isInteger(item) ? `${item + 0}` : numberText(item);
}

/**
 * Return the items inside a question's domain, sorted by code points.
 *
 * @param {any} question @param {import("./domains.js").Domain} domain
 * @param {Map<string, number>} counts @returns {[string, number][]}
 */
function insideDomain(question, domain, counts) {
  const inside = new Map();
  for (const [item, count] of counts) {
    if (!count || /\p{Surrogate}/u.test(item)) continue; // half of a character has no bytes
    const isOfTrie = question.mechanism === "triehh";
    const text = isOfTrie ? canonicalOfTrie(question, domain, item) : domain.canonical(item);
    if (text !== null) inside.set(text, (inside.get(text) ?? 0) + count);
  }
  const ordered = [...inside].map(([item, count]) => ({ order: hex(utf8(item)), item, count }));
  ordered.sort((a, b) => (a.order < b.order ? -1 : 1));
  return ordered.map(({ item, count }) => pair(item, count));
}

/**
 * Return `most` of the copies, drawn without replacement by Floyd's algorithm, or all if fewer.
 *
 * @param {[string, number][]} counts @param {number} most @param {Chance} choices
 * @returns {Promise<[string, number][]>}
 */
async function clip(counts, most, choices) {
  const all = total(counts);
  if (all <= most) return counts;
  if (!Number.isSafeInteger(all)) throw new TypeError("counts add up to less than 2^53");
  const chosen = new Set();
  for (let last = all - most; last < all; last++) {
    const drawn = await choices.below(last + 1);
    chosen.add(chosen.has(drawn) ? last : drawn);
  }
  const tokens = [...chosen];
  let end = 0;
  return counts.flatMap(([item, count]) => {
    const start = end;
    end += count;
    const kept = tokens.filter((token) => token >= start && token < end).length;
    return kept ? [pair(item, kept)] : [];
  });
}
