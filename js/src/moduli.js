/** Numbers that follow from a plan, and the prime of its vectors (`secagg/oneshot/moduli.py`). */

import { max } from "./arithmetic.js";
import { committeeParameters } from "./committee.js";
import { must } from "./errors.js";
import { MAX_PRIME, suitablePrime } from "./field.js";

/** Return a number that follows from fields of a plan, each of which is in its range, if it is in
 * its own. @type {(value: number, least: number, most: number) => number} */
export function checked(value, least, most) {
  must(value >= least && value <= most);
  return value;
}

/** Return the smallest prime above `largest` that the committee of a plan's terms can share.
 * @type {(terms: any, largest: number) => number} */
export function primeAbove(terms, largest) {
  const { members, corrupt, threshold } = committeeParameters(terms.committee);
  const least = max(largest, members + threshold - corrupt) + 1;
  const p = least < MAX_PRIME ? suitablePrime(least) : least;
  return checked(p, 2, MAX_PRIME);
}

/** Return the numbers of the largest committee of a plan's terms.
 * @type {(terms: any) => import("./committee.js").Parameters} */
export function largestCommittee({ committee }) {
  const parameters = committeeParameters(committee);
  return { ...parameters, members: committee.size ?? parameters.members };
}

/** Return the largest number of devices in a round. @type {(terms: any) => number} */
export const maxDevices = (terms) => terms.cohorts * terms.cohort_size;
