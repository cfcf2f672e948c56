/** The limits of a device, and the check of a plan against them (`protocol/device_policy`). */

import { committeeParameters } from "./committee.js";
import { numberText } from "./domains.js";
import { encoderOf } from "./encode.js";
import { RefusedError } from "./errors.js";
import { messageBytes } from "./message.js";
import { largestCommittee } from "./moduli.js";

const MIN_SIGMA = 40;
const MIN_CONFIDENCE = 0.5;
const BYTES_PER_ELEMENT = 2;

/** @typedef {[string, boolean, string, number?]} Rule limit, is it exceeded, reason, needed */

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

  /**
   * @param {Partial<Policy>} [limits] those that differ from the defaults
   * @throws {TypeError} if a limit is unknown, no number from 0 up, or no key
   */
  constructor(limits = {}) {
    const usual = /** @type {Record<string, any>} */ ({ ...this, min_volunteers: 0 });
    Object.assign(this, limits);
    for (const [name, limit] of Object.entries(this)) {
      if (!(name in usual)) throw new TypeError(`${name} is no limit of a policy`);
      const isWrong = limit !== null && typeof limit !== typeof usual[name];
      if (typeof usual[name] !== "object" && (isWrong || !(limit >= 0))) {
        throw new TypeError(`${name} is a ${typeof usual[name]}, and a number is from 0 up`);
      }
    }
    const keys = [...this.committee, ...(this.registrar === null ? [] : [this.registrar])];
    if (!keys.every((key) => /^[0-9a-f]{64}$/.test(key))) {
      throw new TypeError("registrar and committee have public keys of 64 hexadecimal digits");
    }
  }
}

/**
 * Check that a plan keeps the limits of a policy.
 *
 * @param {any} plan of `readPlan` @param {Policy} policy
 * @param {Iterable<number>} [contributed] rounds of the plan's study to which the device has given
 * @throws {RefusedError} for the first limit that the plan exceeds
 * @throws {MalformedError} if the plan cannot be
 */
export function checkPlan(plan, policy, contributed = []) {
  const encoder = encoderOf(plan);
  const shape = encoder.shape(plan);
  const faults = plan.round > plan.rounds ? [`asks in round ${plan.round} of ${plan.rounds}`] : [];
  const [fault] = [...faults, ...(encoder.faults?.(plan) ?? [])];
  const isOfVolunteers = "volunteers" in plan.terms.committee;
  const rules = [
    planRule(fault),
    ...repetitionRules(plan, policy, new Set(contributed)),
    ...registrarRules(plan, policy),
    ...termsRules(plan, policy),
    ...(isOfVolunteers ? volunteerRules : operatorRules)(plan.terms.committee, policy),
    ...thresholdRules(plan, policy, encoder.showsOneDevice?.(plan) ?? false),
    ...sizeRules(plan, policy, shape),
  ];
  const broken = rules.find(([, isExceeded]) => isExceeded);
  if (broken) throw new RefusedError(broken[0], broken[2], broken[3]);
}

/** @param {any} plan @param {Policy} policy @returns {number} copies of an item that may count */
export function maxCopies(plan, policy) {
  const isAnyNumber = policy.max_epsilon === Infinity || policy.min_threshold < 1;
  if (isAnyNumber) return plan.question.contribution;
  return Math.max(1, Math.floor(leastCount(plan) / policy.min_threshold));
}

/** @param {any} plan @returns {number} the smallest count with which the service lists an item */
const leastCount = (plan) =>
  plan.release?.threshold ?? encoderOf(plan).leastCount?.(plan) ?? plan.question.threshold;

/** @param {string} [fault] @returns {Rule} */
const planRule = (fault) =>
  ["plan", Boolean(fault), `shows a plan that no honest study has: it ${fault}`];

/** @param {any} plan @param {Policy} policy @param {Set<number>} rounds @returns {Rule[]} */
function repetitionRules({ study, round, question }, policy, rounds) {
  const again = "asks for a second contribution to";
  const once = `${again} study ${study}`;
  if (!question.every_round) return [["once per study", rounds.size > 0, once]];
  const most = policy.max_rounds;
  const exact = "asks the same devices in every round, and adds no noise to the sums";
  return [
    ["repeat_exact", !policy.repeat_exact, exact],
    ["once per round", rounds.has(round), `${again} round ${round} of study ${study}`],
    ["max_rounds", rounds.size >= most, `asks for more than ${most} rounds of study ${study}`],
  ];
}

/** @param {any} plan @param {Policy} policy @returns {Rule[]} */
function registrarRules({ terms: { registrar } }, policy) {
  const { registrar: known, trust_server_identities: isTrusted } = policy;
  const other = `names ${registrar ?? "no registrar"} instead of ${known}`;
  const unverified = registrar
    ? "names a registrar whose key the device does not know: pass it as Policy.registrar, or trust "
    : "names no registrar, so its server could invent the other devices: name one, or trust ";
  const reason = `${unverified}the server with Policy.trust_server_identities`;
  return [
    ["registrar", known !== null && registrar !== known, other],
    ["trust_server_identities", known === null && !isTrusted, reason],
  ];
}

/** @param {any} plan @param {Policy} policy @returns {Rule[]} */
function termsRules({ terms: { minimum, corrupt, sigma } }, { min_cohort, min_corrupt }) {
  const few = `may sum as few as ${minimum} devices, below ${min_cohort}`;
  const rate = `assumes a corrupt fraction of ${numberText(corrupt)}`;
  const failures = `allows failures with probability 2^-${sigma}, above 2^-${MIN_SIGMA}`;
  return [
    ["min_cohort", minimum < min_cohort, few, minimum],
    ["min_corrupt", corrupt < min_corrupt, `${rate}, below ${numberText(min_corrupt)}`, corrupt],
    ["min_sigma", sigma < MIN_SIGMA, failures, sigma],
  ];
}

/** @param {number} largest @param {Policy} policy @returns {Rule} */
function committeeRule(largest, { min_committee: least }) {
  const reason = `asks for a committee of ${largest} members, below ${least}`;
  return ["min_committee", largest < least, reason, largest];
}

/** @param {any} terms @param {Policy} policy @returns {Rule[]} */
function operatorRules(terms, policy) {
  const known = new Set(policy.committee);
  const unknown = terms.members.filter((/** @type {string} */ member) => !known.has(member)).length;
  const { corrupt, members: named } = committeeParameters(terms);
  const least = Math.max(1, Math.floor(policy.min_committee_corrupt * named + 1e-9));
  const strange = `asks for a committee with ${unknown} members that are not in Policy.committee`;
  const few = `assumes ${corrupt} of ${named} operators that collude, below ${least}`;
  return [
    ["committee", unknown > 0, strange],
    ["min_committee_corrupt", corrupt < least, few, terms.corrupt],
    committeeRule(Math.min(terms.size ?? named, named), policy),
  ];
}

/** @param {any} terms @param {Policy} policy @returns {Rule[]} */
function volunteerRules({ volunteers, corrupt, sigma, size }, policy) {
  const { min_volunteers: least, min_corrupt: rate } = policy;
  const isRefused = least === null || policy.registrar === null;
  const reason =
    "asks for a committee of devices, which a registrar draws: accept it with " +
    "Policy.min_volunteers and Policy.registrar";
  const few = `draws its committee from ${volunteers} devices, below ${least}`;
  const low = `assumes a corrupt fraction of volunteers of ${short(corrupt)}, below ${short(rate)}`;
  const draw = `may draw a corrupt committee with probability 2^-${sigma}, above 2^-${MIN_SIGMA}`;
  return [
    ["min_volunteers", isRefused || volunteers < least, isRefused ? reason : few, volunteers],
    ["min_corrupt", corrupt < rate, low, corrupt],
    ["min_sigma", sigma < MIN_SIGMA, draw, sigma],
    committeeRule(size, policy),
  ];
}

/** @param {any} plan @param {Policy} policy @param {boolean} showsOneDevice @returns {Rule[]} */
function thresholdRules(plan, policy, showsOneDevice) {
  const { delta = 0, confidence, mechanism } = plan.question;
  const { max_delta: most, min_threshold: least } = policy;
  const threshold = leastCount(plan);
  const large = `asks for delta ${short(delta)}, above ${short(most)}`;
  const rare = `asks for items held ${short(threshold)} times, below ${short(least)}`;
  const unsure = `reports items by a confidence of ${short(confidence)}, below ${MIN_CONFIDENCE}`;
  const exact = `asks for exact ${mechanism}, which may show what one device holds`;
  const isExact = showsOneDevice && !policy.accept_exact_estimates && policy.max_epsilon < Infinity;
  return [
    ["max_delta", Boolean(plan.release) && delta > most * (1 + 1e-9), large, delta],
    ["min_threshold", threshold < least, rare, threshold],
    ["confidence", confidence < MIN_CONFIDENCE, unsure],
    ["accept_exact_estimates", isExact, exact],
  ];
}

/** @param {any} plan @param {Policy} policy @param {{p: number, length: number}} shape */
function sizeRules({ question: { contribution }, terms }, policy, { p, length }) {
  const { max_contribution: items, max_upload_bytes: most } = policy;
  const nbytes = messageBytes(p, length, largestCommittee(terms), terms.registrar ? 64 : 0);
  const memory = length * BYTES_PER_ELEMENT;
  const fitting = Math.floor(most / BYTES_PER_ELEMENT);
  const few = `asks for ${length} elements of few bits, above ${fitting}`;
  const many = `asks for up to ${contribution} items, above ${items}`;
  return /** @type {Rule[]} */ ([
    ["max_contribution", contribution > items, many, contribution],
    ["max_upload_bytes", nbytes > most, `asks for ${nbytes} bytes, above ${most}`, nbytes],
    ["max_upload_bytes", memory > most, few, memory],
  ]);
}

/** @param {number} x @returns {string} at most six digits of it, as Python's format "g" */
const short = (x) => numberText(Number(x.toPrecision(6))).replace(/\.0$/, "");
