/** The limits of a device, and the check of a plan against them (`protocol/device_policy`). */

import { floor, max } from "./arithmetic.js";
import { KEY } from "./bytes.js";
import { encodingOf } from "./encode.js";
import { expect, refuse } from "./errors.js";

const BYTES_PER_ELEMENT = 2;
const TOLERANCE = 1 + 1e-9;

/** @typedef {[limit: string, asked: any, isKept?: any, allowed?: any]} Rule a limit and what the
 * study asks for; by default a number or a truth value, which is compared with the policy's */

/** Limits of a device, with the names and defaults of `Policy` in Python. */
export class Policy {
  max_contribution = 100;
  min_cohort = 50;
  min_threshold = 5;
  min_corrupt = 0.1;
  max_upload_bytes = 4 * 2 ** 20;
  registrar = /** @type {string | null} */ (null); // public keys are hexadecimal texts
  committee = /** @type {string[]} */ ([]);
  min_committee = 5;
  min_committee_corrupt = 0.2;
  min_volunteers = /** @type {number | null} */ (null);
  trust_server_identities = false;
  max_epsilon = 4;
  max_delta = 1e-5;
  max_rounds = 32;
  max_round_seconds = 7 * 24 * 3600;
  repeat_exact = false;
  max_exact_studies = 1;
  accept_exact_estimates = false;

  /** Throws a TypeError if a limit is unknown, no number from 0 up, or no key. @param
   * {Partial<Policy>} [limits] those that differ from the defaults */
  constructor(limits = {}) {
    const own = /** @type {any} */ (this);
    const isKey = (/** @type {string} */ key) => KEY.test(key);
    for (const [name, limit] of Object.entries(/** @type {any} */ (limits))) {
      const isRight = name === "committee" ? limit.every(isKey)
        : limit === own[name] || (name === "registrar" ? isKey(limit)
          : limit >= 0 && typeof limit === typeof (own[name] ?? 0));
      expect(Object.hasOwn(own, name) && isRight, `a policy's ${name} cannot be ${limit}`);
      own[name] = limit;
    }
  }
}

/** Check the fields of a plan, and that it keeps the limits of a policy. Throws a RefusedError for
 * the first limit that it exceeds, and a MalformedError if the plan cannot be. @type {(plan: any,
 * policy: Policy) => void} */
export function checkPlan(plan, policy) {
  const { length, largest, nbytes, isImpossible, isExact } = encodingOf(plan);
  const { question, terms, round, rounds } = plan;
  const { committee, registrar } = terms;
  if (round > rounds || isImpossible) refuse("plan", "asks for what no honest service sends");
  const limits = /** @type {any} */ ({ ...policy, min_sigma: 40, confidence: 0.5 });
  /** @type {Rule[]} */
  const rules = [
    ["repeat_exact", !!question.every_round],
    ["registrar", registrar, [null, registrar].includes(policy.registrar)],
    ["trust_server_identities", !policy.registrar],
    ["min_cohort", terms.minimum], ["min_corrupt", terms.corrupt], ["min_sigma", terms.sigma],
    ...committeeRules(committee, largest.corrupt, policy), ["min_committee", largest.members],
    ["max_delta", plan.release ? question.delta : 0],
    ["min_threshold", plan.release?.threshold ?? question.threshold],
    ["confidence", question.confidence],
    ["accept_exact_estimates", !!isExact && policy.max_epsilon < Infinity],
    ["max_contribution", question.contribution],
    ["max_upload_bytes", max(length * BYTES_PER_ELEMENT, nbytes)],
  ];
  for (const [limit, asked, isKept, allowed = limits[limit]] of rules) {
    const isWithin = /^(min|conf)/.test(limit) ? asked >= allowed : asked <= allowed * TOLERANCE;
    if (isKept ?? isWithin) continue;
    const reason = `needs ${limit} ${asked}, and the policy has ${allowed}`;
    refuse(limit, reason, limit in policy ? asked : null);
  }
}

/** @type {(terms: any, tolerated: number, policy: Policy) => Rule[]} */
function committeeRules(terms, tolerated, policy) {
  const { volunteers, sigma, corrupt } = terms;
  const { committee, registrar, min_volunteers, min_committee_corrupt } = policy;
  if (volunteers) {
    const needed = registrar ? volunteers : `${volunteers} and a registrar`;
    return [
      ["min_volunteers", needed, !!registrar && volunteers >= (min_volunteers ?? Infinity)],
      ["min_corrupt", corrupt], ["min_sigma", sigma],
    ];
  }
  const named = terms.members.length;
  const pinned = terms.members.filter((/** @type {any} */ key) => committee.includes(key)).length;
  const least = max(1, floor(min_committee_corrupt * named + 1e-9));
  return [
    ["committee", `all ${named} members`, pinned === named, `${pinned} of them`],
    ["min_committee_corrupt", corrupt, tolerated >= least],
  ];
}

/** Return how often an item counts: once, except in trials.
 * @type {(plan: any, policy: Policy) => number} */
export const maxCopies = (plan, { min_threshold }) =>
  min_threshold < 1 ? plan.question.contribution : 1;
