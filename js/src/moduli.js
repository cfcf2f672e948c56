/** Numbers that follow from a plan, and the prime of its vectors (`secagg/oneshot/moduli.py`). */

import { committeeParameters } from "./committee.js";
import { MalformedError } from "./errors.js";
import { MAX_PRIME, suitablePrime } from "./field.js";

/**
 * Return a number that follows from several fields of a plan, each of which is in its range.
 *
 * @param {number} value @param {string} name @param {number} least @param {number} most
 * @returns {number}
 * @throws {MalformedError} if it is no number from `least` to `most`
 */
export function checked(value, name, least, most) {
  if (value >= least && value <= most) return value;
  throw new MalformedError(`${name} is a number from ${least} to ${most}, got ${value}`);
}

/** @param {number} low @param {number} high @param {(n: number) => boolean} holds from some n on */
export function firstTrue(low, high, holds) {
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    [low, high] = holds(middle) ? [low, middle] : [middle + 1, high];
  }
  return high;
}

/**
 * Return the smallest prime above `largest` that the committee of a plan's terms can share.
 *
 * @param {any} terms @param {number} largest
 * @returns {number}
 * @throws {MalformedError} if it is not below 2^26
 */
export function primeAbove(terms, largest) {
  const { members, corrupt, threshold } = committeeParameters(terms.committee);
  const least = Math.max(largest, members + threshold - corrupt) + 1;
  const p = least < MAX_PRIME ? suitablePrime(least) : least;
  if (p < MAX_PRIME) return p;
  throw new MalformedError(`one-shot sums count to less than 2^26, not to ${largest}`);
}

/** @param {any} terms @returns {import("./committee.js").Parameters} of the largest committee */
export function largestCommittee({ committee }) {
  const parameters = committeeParameters(committee);
  return { ...parameters, members: committee.size ?? parameters.members };
}

/** @param {any} terms @returns {number} the largest number of devices in a round */
export const maxDevices = (terms) => terms.cohorts * terms.cohort_size;
