/** Encoding of a device's items: the histogram that it contributes, and the vector of it. */

import { isWhole, min, sum } from "./arithmetic.js";
import { hex, systemRandom, utf8 } from "./bytes.js";
import { domainOf, numberText } from "./domains.js";
import { numberSums } from "./encoders/numbers.js";
import { tracked } from "./encoders/tracked.js";
import { hierarchicalHistogram, triehh } from "./encoders/votes.js";
import { expect, must } from "./errors.js";
import { drawBelow } from "./hashing.js";
import { messageBytes } from "./message.js";
import { checkFields } from "./plan_fields.js";

/** @import { Form } from "./domains.js" */
/** @import { Random } from "./hashing.js" */

/**
 * @typedef {{item: string, count: number, name: string, key: number[]}} Held
 * @typedef {[item: string, count: number]} Count
 *
 * @typedef {object} Encoding of a plan
 * @property {number} p the prime @property {number} length the elements of a vector
 * @property {(held: Held[], random: Random) => Promise<number[]>} encode
 * @property {any} [isImpossible] whether no honest study asks this
 * @property {boolean} [isExact] whether sums may show what one device holds
 * @property {Form} [canonical] form of an item, by default that of the domain
 *
 * @typedef {(plan: any) => Encoding} Encoder throws a MalformedError if the plan cannot be
 */

/** @type {Record<string, Encoder>} */
const ENCODERS = {
  tracked, triehh, "hierarchical-histogram": hierarchicalHistogram, "number-sums": numberSums,
};

/** Check the fields of a plan and return its encoding; throws a RefusedError if this device has
 * none, and a MalformedError if the plan cannot be. @type {(plan: any) => Encoding & {largest:
 * import("./committee.js").Parameters, nbytes: number}} */
export function encodingOf(plan) {
  const largest = checkFields(plan);
  const encoding = ENCODERS[plan.mechanism](plan);
  const enrolment = plan.terms.registrar ? 64 : 0;
  const nbytes = messageBytes(encoding.p, encoding.length, largest, enrolment);
  must(nbytes <= plan.question.message_bytes, "message_bytes are too few");
  return { ...encoding, largest, nbytes };
}

/** Return the elements of the vector of a device's items, modulo p, and how many are not in it.
 *
 * Items are texts and numbers, or a map of their counts. Of one item, `maxCopies` of the policy may
 * count. `choices` chooses among too many items, the same ones in all rounds of a study. Throws the
 * errors of `encodingOf`, and a TypeError if an item is none, or a count is not whole.
 * @param {any} plan which `checkPlan` has accepted @param {Map<any, number> | Iterable<any>} items
 * @param {Random} [random] the source of coins, by default the system
 * @param {{maxCopies?: number, choices?: Random}} [options] */
export async function encode(plan, items, random = systemRandom, options = {}) {
  const { maxCopies = Infinity, choices = random } = options;
  const encoding = encodingOf(plan);
  const domain = domainOf(plan.question.domain);
  const { all, inside } = countItems(items, encoding.canonical ?? domain.canonical);
  for (const each of inside) each[1] = min(each[1], maxCopies);
  const kept = await clip(inside, plan.question.contribution, choices);
  const held = kept.map(([item, count]) => ({ item, count, ...domain.keyed(item) }));
  const elements = await encoding.encode(held, random);
  return { p: encoding.p, elements, leftOut: all - total(kept) };
}

/** Return the sum of counts. @type {(counts: Count[]) => number} */
const total = (counts) => sum(counts.map(([, count]) => count));

/** Return the number of all items, and the canonical ones with their counts, by code points. @type
 * {(items: Map<any, number> | Iterable<any>, canonical: Form) => {all: number, inside: Count[]}} */
function countItems(items, canonical) {
  const pairs = items instanceof Map ? items : [...items].map((item) => [item, 1]);
  const /** @type {Map<string, Count>} */ inside = new Map(); // by the bytes of an item
  let all = 0;
  for (const [item, count] of pairs) {
    all += count;
    const isCount = isWhole(count) && count >= 0 && isWhole(all);
    expect(isCount, "counts are whole numbers below 2^53");
    const text = itemText(item);
    // Half of a character has no bytes.
    const form = count && !/\p{Surrogate}/u.test(text) ? canonical(text) : null;
    if (form === null) continue;
    const bytes = hex(utf8(form));
    inside.set(bytes, [form, (inside.get(bytes)?.[1] ?? 0) + count]);
  }
  // As texts, pairs have a comma after the digits, which sorts before all digits.
  return { all, inside: [...inside].sort().map(([, held]) => held) };
}

/** Return the same text of a number as in Python. @type {(item: any) => string} */
function itemText(item) {
  if (typeof item === "string") return item;
  expect(Number.isFinite(item), "an item is a text or a number");
  return Math.abs(item) <= 2 ** 53 && Number.isInteger(item) ? `${item + 0}` : numberText(item);
}

/** Return `most` of the copies, drawn without replacement by Floyd's algorithm, or all if fewer.
 * @type {(counts: Count[], most: number, choices: Random) => Promise<Count[]>} */
async function clip(counts, most, choices) {
  const all = total(counts);
  if (all <= most) return counts;
  const chosen = new Set();
  for (let last = all - most; last < all; last++) {
    const drawn = await drawBelow(choices, last + 1);
    chosen.add(chosen.has(drawn) ? last : drawn);
  }
  let end = 0;
  return counts.flatMap(([item, count]) => {
    end += count;
    const kept = [...chosen].filter((token) => token >= end - count && token < end).length;
    return kept ? [[item, kept]] : [];
  });
}
