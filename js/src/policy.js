/** The limits of a device, and the check of a plan against them (`protocol/device_policy`). */

import { floor, max, min } from "./arithmetic.js";
import { HEX_32 } from "./bytes.js";
import { committeeParameters } from "./committee.js";
import { encodingOf } from "./encode.js";
import { expect, refuse, refuseBeyond } from "./errors.js";
import { messageBytes } from "./message.js";

const BYTES_PER_ELEMENT = 2;
const FIXED_LIMITS = { min_sigma: 40, confidence: 0.5 }; // of every policy
const TOLERANCE = 1 + 1e-9;

/** @import { Parameters } from "./committee.js" */
/** @typedef {[limit: string, asked: any, isKept?: any, allowed?: any]} Rule a limit and what the
 * study asks for; by default a number, which is compared with that of the policy */

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
    const isKey = (/** @type {string} */ key) => HEX_32.test(key);
    for (const [name, limit] of Object.entries(/** @type {any} */ (limits))) {
      const isRight = name === "committee" ? limit.every(isKey)
        : limit === own[name] || (name === "registrar" ? isKey(limit)
          : limit >= 0 && typeof limit === typeof (own[name] ?? 0));
      expect(Object.hasOwn(own, name) && isRight, `a policy has no ${name} = ${limit}`);
      own[name] = limit;
    }
  }
}

/** Check the fields of a plan, and that it keeps the limits of a policy. Throws a RefusedError for
 * the first limit that it exceeds, and a MalformedError if the plan cannot be. @type {(plan: any,
 * policy: Policy) => void} */
export function checkPlan(plan, policy) {
  const { p, length, fault: impossible, isExact } = encodingOf(plan);
  const { question, terms, round, rounds } = plan;
  const { committee, registrar } = terms;
  const parameters = committeeParameters(committee);
  const fault = round > rounds ? "has no such round" : impossible;
  if (fault) refuse("plan", `is impossible: it ${fault}`);
  const largest = { ...parameters, members: committee.size ?? parameters.members };
  const nbytes = messageBytes(p, length, largest, registrar ? 64 : 0);
  const needsNoise = isExact && policy.max_epsilon < Infinity;
  const limits = /** @type {any} */ ({ ...policy, ...FIXED_LIMITS });
  /** @type {Rule[]} */
  const rules = [
    ["repeat_exact", true, !question.every_round || policy.repeat_exact],
    ["registrar", registrar, [null, registrar].includes(policy.registrar)],
    ["trust_server_identities", true, policy.registrar || policy.trust_server_identities],
    ["min_cohort", terms.minimum], ["min_corrupt", terms.corrupt], ["min_sigma", terms.sigma],
    ...committeeRules(committee, parameters, policy),
    ["max_delta", plan.release ? question.delta : 0],
    ["min_threshold", plan.release?.threshold ?? question.threshold],
    ["confidence", question.confidence],
    ["accept_exact_estimates", true, !needsNoise || policy.accept_exact_estimates],
    ["max_contribution", question.contribution],
    ["max_upload_bytes", max(length * BYTES_PER_ELEMENT, nbytes)],
  ];
  for (const [limit, asked, isKept, allowed = limits[limit]] of rules) {
    const isWithin = limit.startsWith("max") ? asked <= allowed * TOLERANCE : asked >= allowed;
    if (isKept ?? isWithin) continue;
    refuseBeyond(limit, asked, allowed, limit in policy ? asked : null);
  }
}

/** @type {(terms: any, whole: Parameters, policy: Policy) => Rule[]} */
function committeeRules(terms, whole, policy) {
  const { volunteers, size, sigma, corrupt } = terms;
  const { committee, registrar, min_volunteers, min_committee_corrupt } = policy;
  if (volunteers) {
    const needed = registrar ? volunteers : `${volunteers} and a registrar`;
    return [
      ["min_volunteers", needed, !!registrar && volunteers >= (min_volunteers ?? Infinity)],
      ["min_corrupt", corrupt], ["min_sigma", sigma], ["min_committee", size],
    ];
  }
  const { corrupt: tolerated, members } = whole;
  const isPinned = (/** @type {string} */ key) => committee.includes(key);
  const pinned = terms.members.filter(isPinned).length;
  const least = max(1, floor(min_committee_corrupt * members + 1e-9));
  return [
    ["committee", `all ${members} members`, pinned === members, `${pinned} of them`],
    ["min_committee_corrupt", corrupt, tolerated >= least],
    ["min_committee", min(size ?? members, members)],
  ];
}

/** Return how often an item counts: once, except in trials.
 * @type {(plan: any, policy: Policy) => number} */
export const maxCopies = (plan, { min_threshold }) =>
  min_threshold < 1 ? plan.question.contribution : 1;
