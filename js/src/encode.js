/** Encoding of a device's items: the histogram that it contributes, and the vector of it. */

import { isWhole, sum } from "./arithmetic.js";
import { hex, systemRandom, utf8 } from "./bytes.js";
import { domainOf, numberText } from "./domains.js";
import { approximateHistogram } from "./encoders/histogram.js";
import { numberSums } from "./encoders/numbers.js";
import { tracked } from "./encoders/tracked.js";
import { canonicalOfTrie, hierarchicalHistogram, trieHh } from "./encoders/votes.js";
import { expect, inPython } from "./errors.js";
import { drawBelow } from "./hashing.js";

/** @import { Domain } from "./domains.js" */
/** @import { Random } from "./hashing.js" */

/**
 * @typedef {{item: string, count: number, name: string, key: number[]}} Held
 * @typedef {[item: string, count: number]} Count
 *
 * @typedef {object} Encoder of the vectors of a mechanism
 * @property {(plan: any) => {p: number, length: number, cell?: any}} shape the prime and the
 *   elements of a vector; throws a MalformedError if the plan cannot be
 * @property {(plan: any, held: Held[], random: Random) => Promise<number[]>} encode
 * @property {(plan: any) => string | undefined} [fault] what no honest study asks
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
};

/** Return the encoder of a plan's mechanism; throws a RefusedError if the plan is of no one-shot
 * sum that this device can encode. @type {(plan: any) => Encoder} */
export function encoderOf({ mechanism, terms }) {
  if (!Object.hasOwn(ENCODERS, mechanism)) inPython("mechanism", mechanism);
  if (terms.sum !== "one-shot") inPython("sum", "sums that are not one-shot");
  return ENCODERS[mechanism];
}

/** Return the elements of the vector of a device's items, modulo p, and how many are not in it.
 *
 * Items are texts and numbers, or a map of their counts. Of one item, `maxCopies` of the policy may
 * count. `choices` chooses among too many items, the same ones in all rounds of a study. Throws the
 * errors of `encoderOf`, and a TypeError if an item is none, or a count is not whole.
 * @param {any} plan which `checkPlan` has accepted @param {Map<any, number> | Iterable<any>} items
 * @param {Random} [random] the source of coins, by default the system
 * @param {{maxCopies?: number, choices?: Random}} [options] */
export async function encode(
  plan, items, random = systemRandom, { maxCopies = Infinity, choices = random } = {},
) {
  const encoder = encoderOf(plan);
  const { p } = encoder.shape(plan);
  const domain = domainOf(plan.question.domain);
  const counts = countItems(items);
  const limited = insideDomain(plan.question, domain, counts)
    .map(([item, count]) => /** @type {Count} */ ([item, Math.min(count, maxCopies)]));
  const kept = await clip(limited, plan.question.contribution, choices);
  const held = await Promise.all(
    kept.map(async ([item, count]) => ({ item, count, ...(await domain.keyed(item)) })));
  const elements = await encoder.encode(plan, held, random);
  return { p, elements, leftOut: total([...counts]) - total(kept) };
}

/** Return the sum of counts. @type {(counts: Count[]) => number} */
const total = (counts) => sum(counts.map(([, count]) => count));

/** Return the texts of items with their counts. @type {(items: Map<any, number> | Iterable<any>) =>
 * Map<string, number>} */
function countItems(items) {
  const counts = new Map();
  const pairs = items instanceof Map ? items : Array.from(items, (item) => [item, 1]);
  for (const [item, count] of pairs) {
    expect(isWhole(count) && count >= 0, `a count is a whole number, got ${count}`);
    const text = itemText(item);
    counts.set(text, (counts.get(text) ?? 0) + count);
  }
  return counts;
}

/** Return the same text of a number as in Python. @type {(item: any) => string} */
function itemText(item) {
  if (typeof item === "string") return item;
  expect(item === +item, "an item is a text or a number");
  return Math.abs(item) <= 2 ** 53 && Number.isInteger(item) ? `${item + 0}` : numberText(item);
}

/** Return the items inside a question's domain, sorted by code points. @type {(question: any,
 * domain: Domain, counts: Map<string, number>) => Count[]} */
function insideDomain(question, domain, counts) {
  const inside = new Map();
  for (const [item, count] of counts) {
    if (!count || /\p{Surrogate}/u.test(item)) continue; // half of a character has no bytes
    const isOfTrie = question.mechanism === "triehh";
    const text = isOfTrie ? canonicalOfTrie(question, domain, item) : domain.canonical(item);
    if (text !== null) inside.set(text, (inside.get(text) ?? 0) + count);
  }
  const order = new Map();
  for (const item of inside.keys()) order.set(item, hex(utf8(item)));
  return [...inside].sort(([a], [b]) => (order.get(a) < order.get(b) ? -1 : 1));
}

/** Return `most` of the copies, drawn without replacement by Floyd's algorithm, or all if fewer.
 * @type {(counts: Count[], most: number, choices: Random) => Promise<Count[]>} */
async function clip(counts, most, choices) {
  const all = total(counts);
  if (all <= most) return counts;
  expect(isWhole(all), "counts add up to less than 2^53");
  const chosen = new Set();
  for (let last = all - most; last < all; last++) {
    const drawn = await drawBelow(choices, last + 1);
    chosen.add(chosen.has(drawn) ? last : drawn);
  }
  let end = 0;
  return counts.flatMap(([item, count]) => {
    const start = end;
    end += count;
    const kept = [...chosen].filter((token) => token >= start && token < end).length;
    return kept ? [[item, kept]] : [];
  });
}
