/** The limits of a device, and the check of a plan against them (`protocol/device_policy`). */

import { floor, max, min } from "./arithmetic.js";
import { committeeParameters, largestCommittee } from "./committee.js";
import { encoderOf } from "./encode.js";
import { RefusedError, expect } from "./errors.js";
import { messageBytes } from "./message.js";

const BYTES_PER_ELEMENT = 2;
const FIXED_LIMITS = { min_sigma: 40, confidence: 0.5 }; // of every policy
const TOLERANCE = 1 + 1e-9;

/**
 * @typedef {[limit: string, asked: any, isExceeded?: any, needed?: any]} Rule of a limit and the
 *   number that the study asks for; or the reason to refuse it, whether it holds, and what would do
 */

/** Limits of a device, with the names and defaults of `Policy` in Python. */
export class Policy {
  max_contribution = 100;
  min_cohort = 50;
  min_threshold = 5;
  min_corrupt = 0.1;
  max_upload_bytes = 4 * 2 ** 20;
  registrar = /** @type {string | null} */ (null); // public keys are hexadecimal texts
  committee = /** @type {Iterable<string>} */ ([]);
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
    for (const [name, limit] of Object.entries(/** @type {any} */ (limits))) {
      const isKey = (/** @type {any} */ key) => /^[0-9a-f]{64}$/.test(key);
      const isRight = name === "committee" ? [...limit].every(isKey)
        : name === "registrar" ? limit === null || isKey(limit)
          : limit >= 0 && (limit === own[name] || typeof limit === typeof (own[name] ?? 0));
      expect(Object.hasOwn(own, name) && isRight, `a policy has no ${name} = ${limit}: numbers are `
        + "from 0 up, and keys have 64 hexadecimal digits");
      own[name] = limit;
    }
  }
}

/** Check that a plan of `readPlan` keeps the limits of a policy. Throws a RefusedError for the
 * first limit that it exceeds, and a MalformedError if the plan cannot be. @type {(plan: any,
 * policy: Policy) => void} */
export function checkPlan(plan, policy) {
  const encoder = encoderOf(plan);
  const { p, length } = encoder.shape(plan);
  const { question, terms, round, rounds } = plan;
  const { registrar } = terms;
  const fault = round > rounds ? `is in round ${round} of ${rounds}` : encoder.fault?.(plan);
  const nbytes = messageBytes(p, length, largestCommittee(terms), registrar ? 64 : 0);
  const isExact = encoder.showsOneDevice?.(plan) && policy.max_epsilon < Infinity;
  const /** @type {Rule[]} */ rules = [
    ["plan", `has a plan that no honest study has: it ${fault}`, fault],
    ["repeat_exact", "asks the same devices in every round, without noise",
      question.every_round && !policy.repeat_exact, true],
    ["registrar", "has another registrar than the one of the policy",
      policy.registrar && policy.registrar !== registrar],
    ["trust_server_identities", "has no registrar that this policy pins, so that the server could "
      + "invent the other devices", !policy.registrar && !policy.trust_server_identities, true],
    ["min_cohort", terms.minimum],
    ["min_corrupt", terms.corrupt],
    ["min_sigma", terms.sigma],
    ...committeeRules(terms.committee, policy),
    ["max_delta", plan.release ? question.delta : 0],
    ["min_threshold", leastCount(plan)],
    ["confidence", question.confidence],
    ["accept_exact_estimates", "may show what one device holds",
      isExact && !policy.accept_exact_estimates, true],
    ["max_contribution", question.contribution],
    ["max_upload_bytes", max(length * BYTES_PER_ELEMENT, nbytes)],
  ];
  for (const rule of rules) checkLimit(policy, ...rule);
}

/** @type {(terms: any, policy: Policy) => Rule[]} */
function committeeRules(terms, { committee, registrar, min_volunteers, min_committee_corrupt }) {
  const { volunteers, size, sigma, corrupt } = terms;
  if (volunteers) {
    const isRefused = !registrar || volunteers < (min_volunteers ?? Infinity);
    return [
      ["min_volunteers", `has a committee that the policy's registrar must draw from ${volunteers} `
        + "devices", isRefused, registrar ? volunteers : null],
      ["min_corrupt", corrupt],
      ["min_sigma", sigma],
      ["min_committee", size],
    ];
  }
  const { corrupt: tolerated, members } = committeeParameters(terms);
  const unknown = new Set(terms.members);
  for (const member of committee) unknown.delete(member);
  const most = max(1, floor(min_committee_corrupt * members + 1e-9));
  return [
    ["committee", `has ${unknown.size} committee members that the policy does not pin`,
      unknown.size],
    ["min_committee_corrupt", `has ${members} operators of which ${tolerated} may collude, not `
      + most, tolerated < most, corrupt],
    ["min_committee", min(size ?? members, members)],
  ];
}

/** Throw a RefusedError if a limit of a policy is exceeded. @type {(policy: Policy, ...rule: Rule)
 * => void} */
function checkLimit(policy, limit, asked, isExceeded, needed) {
  if (typeof asked === "string") {
    if (isExceeded) throw new RefusedError(limit, asked, needed);
    return;
  }
  const allowed = /** @type {any} */ ({ ...policy, ...FIXED_LIMITS })[limit];
  const isMost = limit.startsWith("max");
  if (isMost ? asked <= allowed * TOLERANCE : asked >= allowed) return;
  const bound = `at ${isMost ? "most" : "least"} ${allowed}`;
  const reason = `asks for ${asked}, and this device allows ${bound}`;
  throw new RefusedError(limit, reason, limit in policy ? asked : null);
}

/** Return how many copies of an item may count. @type {(plan: any, policy: Policy) => number} */
export function maxCopies(plan, { max_epsilon, min_threshold }) {
  if (max_epsilon === Infinity || min_threshold < 1) return plan.question.contribution;
  return max(1, floor(leastCount(plan) / min_threshold));
}

/** Return the smallest count with which the service lists an item. @type {(plan: any) => number} */
const leastCount = (plan) =>
  plan.release?.threshold ?? encoderOf(plan).leastCount?.(plan) ?? plan.question.threshold;
