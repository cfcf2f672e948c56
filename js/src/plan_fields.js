/**
 * Fields of plans, with the type and range of each: a plan has all of them, and no others.
 *
 * A shape says which values a field has: a number `n` stands for whole numbers from 1 to n, or from
 * 0 to -n if it is negative; a pattern for texts; a record for a record with the same fields. A
 * function decides itself.
 */

import { areDistinct, isWhole } from "./arithmetic.js";
import { HEX_32, KEY } from "./bytes.js";
import { committeeParameters } from "./committee.js";
import { checked, inPython, must } from "./errors.js";

/** @typedef {any} Shape @typedef {(value: any) => boolean} Check */

/** Return whether a value has a shape; throws a MalformedError for a field of a record that does
 * not. @type {(shape: Shape, value: any) => boolean} */
function fits(shape, value) {
  if (typeof shape === "function") return shape(value);
  if (shape instanceof RegExp) {
    // UTF-8 cannot hold half a character.
    return typeof value === "string" && shape.test(value) && !/\p{Surrogate}/u.test(value);
  }
  if (typeof shape === "number") {
    return isWhole(value) && value >= (shape < 0 ? 0 : 1) && value <= Math.abs(shape);
  }
  const names = Object.keys(shape).sort();
  must(`${Object.keys(Object(value))}` === `${names}`, `a plan has other fields than ${names}`);
  for (const name of names) must(fits(shape[name], value[name]), `a plan has another ${name}`);
  return true;
}

/** @type {(least: number, most: number) => Check} */
const number = (least, most) => (x) => x === +x && x >= least && x <= most;
/** @type {(shape: Shape, most: number, isSet?: boolean) => Check} */
const list = (shape, most, isSet = true) => (x) => Array.isArray(x) && fits(most, x.length)
  && x.every((each) => fits(shape, each)) && (areDistinct(x) || !isSet);
/** @type {Check} */
const piece = (x) => Array.isArray(x) && fits([-(2 ** 21 - 1), -4095, 4098], x);
/** @type {(shape: Shape) => Check} */
const orNull = (shape) => (x) => x === null || fits(shape, x);
const any = (/** @type {any} */ x) => x !== undefined; // for what a device does not read
/** @type {Check} */
const truth = (x) => x === !!x;
const ABOVE_ZERO = 5e-324;
const BELOW_ONE = 1 - 2 ** -53;
const float = number(-Infinity, Infinity); // no text of JSON is canonical and infinite
const rate = number(0, BELOW_ONE);
const share = number(ABOVE_ZERO, BELOW_ONE);
const probability = number(ABOVE_ZERO, 1);
const items = list(/^/, 2 ** 20);
const message_bytes = 2 ** 27;

/** @type {any} */
const DOMAINS = {
  __proto__: null,
  alphabet: { characters: /^.{2,4096}$/su, length: 256, pad: /^.?$/su },
  utf8: { max_bytes: 1024 }, interval: { low: float, high: float, alpha: 256, length: 48 },
  hashed: { max_bytes: 4096, key_bits: (/** @type {any} */ x) => [24, 32, 40, 48, 72].includes(x),
    salt: /^[ -~]{0,16}$/ },
  listed: { items },
};
/** @type {Check} */
const domain = (x) => {
  const kind = `${x?.kind}`;
  const fields = DOMAINS[kind] ?? inPython("domain", `${kind} items`);
  return fits({ kind: /^/, ...fields }, x);
};

const rates = { corrupt: rate, dropout: rate };
const drawn = { ...rates, sigma: 128, eta: 128 };
/** @type {Check} */
const committee = (x) => fits(x?.volunteers ? { ...drawn, volunteers: 5000, size: 1000 }
  : { ...rates, members: list(KEY, 100), size: orNull(100) }, x);
const terms = {
  ...drawn, cohort_size: 1e5, minimum: 1e5, cohorts: 1, registrar: orNull(KEY),
  sum: /^one-shot$/, committee,
};
const noise = {
  epsilon: any, delta: share, colluders: any, mode: any, relation: any, theta: any,
  probability: any, every_round: truth, join_probability: probability,
};
/** @type {Check} */
const table_shape = (x) => x === null || inPython("mechanism", "vote tables");
const release = { probability, threshold: 2 ** 31, variance: number(0, 2 ** 24) };

/** What the question and the plan of each mechanism add. @type {any} */
const MECHANISMS = {
  __proto__: null,
  tracked: [
    { hash_bits: -24, message_bytes: -message_bytes },
    {
      cells: 12_582_912, max_value: 2 ** 31 - 1, prime: 1 - 2 ** 26, table_classes: -(2 ** 16),
      counter_classes: list(2 ** 53, -(2 ** 16), false), string_pieces: list(piece, -(2 ** 16)),
      phrases: list(/^.{1,32}$/su, -254), counter_groups: list({ items, counters: 4096 }, -64),
    },
  ],
  "hierarchical-histogram": [{ ...noise, contribution: 1 }, { release }],
  "number-sums": [{ contribution: 1, confidence: number(0.5, 0.5) }, {}],
  triehh: [
    { ...noise, stride: 8, truncate: truth, vote_tables: any },
    { release, level: 1024, frontier: list(/^[0-9a-f]*$/, 2 ** 20), table_shape },
  ],
};

/** Check the fields of a plan; return the numbers of its largest committee. Throws a RefusedError
 * if devices in JavaScript do not have its mechanism, and a MalformedError if a field is missing,
 * unknown or beyond its range. @type {(plan: any) => import("./committee.js").Parameters} */
export function checkFields(plan) {
  const name = `${plan?.mechanism}`;
  const [asked, more] = MECHANISMS[name] ?? inPython("mechanism", name);
  if (plan.terms?.sum === "pairwise") inPython("sum", "pairwise sums");
  const mechanism = (/** @type {any} */ x) => x === name;
  fits({
    mechanism, study: /^.{1,64}$/su, round: 1e4, rounds: 1e4, terms, seed: HEX_32,
    t: number(1, 1e15), ...more,
    question: {
      mechanism, threshold: number(1, 1e12), contribution: 1e4, domain, confidence: share,
      message_bytes, ...asked,
    },
  }, plan);
  const { committee: { volunteers, size }, registrar, minimum, cohort_size } = plan.terms;
  const whole = committeeParameters(plan.terms.committee);
  const { corrupt, members, dropouts } = whole;
  // A registrar draws volunteers. If no member may be corrupt, each one could read devices.
  must((registrar || !volunteers) && corrupt && minimum <= cohort_size);
  return { ...whole, members: checked(size ?? members, members - dropouts, members) };
}
