/** Fields of plans, with the type and range of each: a plan has all of them, and no others. */

import { committeeParameters } from "./committee.js";
import { MalformedError, RefusedError } from "./errors.js";

/** @typedef {(value: any) => boolean} Check throws a MalformedError for a field of a record */
/** @typedef {Record<string, Check>} Fields */

const BELOW_ONE = 1 - Number.EPSILON / 2;
const ABOVE_ZERO = Number.MIN_VALUE;

/** @type {(least: number, most: number) => Check} */
const number = (least, most) => (value) =>
  typeof value === "number" && value >= least && value <= most;

/** @type {(least: number, most: number) => Check} */
const whole = (least, most) => (value) => Number.isSafeInteger(value) && number(least, most)(value);

/** @type {(least: number, most: number, pattern?: RegExp) => Check} */
const text = (least, most, pattern = /^/) => (value) =>
  typeof value === "string" && pattern.test(value) && whole(least, most)([...value].length);

/** @type {(...values: any[]) => Check} */
const oneOf = (...values) => (value) => values.includes(value);

/** @type {(each: Check, least: number, most: number) => Check} */
const list = (each, least, most) => (value) =>
  Array.isArray(value) && whole(least, most)(value.length) && value.every(each);

/** @type {(check: Check) => Check} */
const orNull = (check) => (value) => value === null || check(value);

/** @type {(value: any) => boolean} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @type {(fields: Fields) => Check} */
const record = (fields) => (value) => {
  if (!isObject(value)) return false;
  for (const name of new Set([...Object.keys(fields), ...Object.keys(value)])) {
    const isKnown = Object.hasOwn(fields, name) && Object.hasOwn(value, name);
    if (!isKnown || !fields[name](value[name])) {
      throw new MalformedError(`a plan's field ${name} is missing, unknown, or beyond its range`);
    }
  }
  return true;
};

/** @type {(name: string, records: Record<string, Fields>) => Check} */
const kinds = (name, records) => (value) =>
  isObject(value) &&
  Object.hasOwn(records, value[name]) &&
  record({ [name]: () => true, ...records[value[name]] })(value);

/** @type {(name: string, having: Fields, lacking: Fields) => Check} */
const either = (name, having, lacking) => (value) =>
  isObject(value) && record(name in value ? having : lacking)(value);

const bool = oneOf(true, false);
const hex32 = text(64, 64, /^[0-9a-f]*$/);
const rate = number(0, BELOW_ONE);
const exponent = whole(1, 128);
const float = number(-Number.MAX_VALUE, Number.MAX_VALUE);
const anyText = text(0, Infinity);
const cells = whole(1, 12_582_912);

const segments = list(text(1, 64, /^[^:\x00-\x1f]+$/), 2, 4096);
const HASHED = {
  max_bytes: whole(1, 4096), key_bits: oneOf(24, 32, 40, 48, 72), salt: text(0, 16, /^[ -~]*$/),
};
const DIGITS = {
  alphabet: { characters: text(2, 4096), length: whole(1, 256), pad: text(0, 1) },
  utf8: { max_bytes: whole(1, 1024) },
  interval: { low: float, high: float, alpha: whole(2, 256), length: whole(1, 48) },
};
const domain = kinds("kind", {
  ...DIGITS,
  hashed: HASHED,
  "hashed-product": { ...HASHED, segments },
  listed: { items: list(anyText, 2, 2 ** 20) },
  product: { segments, inner: kinds("kind", DIGITS) },
});

const OPERATORS = {
  corrupt: rate, dropout: rate, members: list(hex32, 3, 100), size: orNull(whole(3, 100)),
};
const VOLUNTEERS = {
  corrupt: rate, dropout: rate, volunteers: whole(3, 5000), size: whole(3, 1000),
  sigma: exponent, eta: exponent,
};
const terms = record({
  cohort_size: whole(3, 100_000), minimum: whole(3, 100_000), cohorts: whole(1, 1000),
  corrupt: rate, dropout: rate, sigma: exponent, eta: exponent,
  registrar: orNull(hex32), sum: oneOf("pairwise", "one-shot"),
  committee: orNull(either("volunteers", VOLUNTEERS, OPERATORS)),
});

const NOISE = {
  epsilon: number(1e-6, 40), delta: number(1e-11, BELOW_ONE), colluders: whole(0, 1000),
  mode: oneOf("sample-threshold", "noise", "both"), relation: oneOf("add-remove", "replace-one"),
  theta: orNull(whole(1, 10_000)), probability: orNull(number(1e-6, BELOW_ONE)),
  every_round: bool, join_probability: number(ABOVE_ZERO, 1),
};
const release = record({
  probability: number(ABOVE_ZERO, 1), threshold: whole(1, 2 ** 31), variance: number(0, 2 ** 24),
});
const voteTable = record({
  bound: whole(2, 2 ** 52), votes: whole(1, 2 ** 31 - 1), width: whole(1, 2 ** 21),
  evidence: whole(1, 2 ** 53),
});
const items = list(anyText, 1, 2 ** 20);
const WINDOW = { items, bits: whole(1, 40) };
const SPLIT = { items, counters: whole(1, 4096) };

/** @type {[Fields, Fields]} */
const SKETCH = [
  { rows: whole(1, 63), epsilon: orNull(NOISE.epsilon), delta: NOISE.delta },
  { width: whole(2, 2 ** 26), release: orNull(release) },
];

/** The fields that the question and the plan of each mechanism add.
 * @type {Record<string, [Fields, Fields]>} */
const MECHANISMS = {
  tracked: [
    { hash_bits: whole(0, 24), message_bytes: whole(0, 2 ** 27) },
    {
      cells, max_value: whole(1, 2 ** 31 - 1), prime: whole(0, 2 ** 26 - 1),
      counter_groups: list(either("bits", WINDOW, SPLIT), 0, 64),
      counter_classes: list(whole(1, Infinity), 0, 2 ** 16), table_classes: whole(0, 2 ** 16),
      string_pieces: list(record({ name: anyText, piece: whole(0, 1365) }), 0, 2 ** 16),
    },
  ],
  "adaptive-iblt": [{ hash_bits: whole(0, 24), rule: oneOf("paper", "steady") }, { cells }],
  "hierarchical-histogram": [{ ...NOISE, contribution: whole(1, 1) }, { release }],
  "number-sums": [{ contribution: whole(1, 1), confidence: oneOf(0.5) }, {}],
  triehh: [
    { ...NOISE, stride: whole(1, 8), truncate: bool, vote_tables: bool },
    {
      release, level: whole(1, 1024), table_shape: orNull(voteTable),
      frontier: list(text(0, 2048, /^([0-9a-f]{2})*$/), 1, 2 ** 20),
    },
  ],
  "count-median": SKETCH,
  "count-sketch": SKETCH,
  "approximate-histogram": [
    {
      rule: oneOf("practical", "theorem"), beta: number(ABOVE_ZERO, BELOW_ONE),
      repetitions: orNull(whole(1, 2000)), rows: orNull(whole(1, 63)),
    },
    {
      cells, tables: whole(1, 2000), rows: whole(0, 63), width: whole(0, 2 ** 26),
      location_seed: hex32,
    },
  ],
};
const QUESTION = {
  threshold: number(1, 1e12), contribution: whole(1, 10_000), domain,
  confidence: number(ABOVE_ZERO, BELOW_ONE), message_bytes: whole(1, 2 ** 27),
};
const PLAN = {
  study: text(1, 64), round: whole(1, 10_000), rounds: whole(1, 10_000), terms, seed: hex32,
  t: number(1, 1e15),
};

/** Check the fields of a plan. Throws a RefusedError if devices in JavaScript do not have its
 * mechanism, and a MalformedError if a field is missing, unknown or beyond its range.
 * @type {(plan: any) => void} */
export function checkFields(plan) {
  const name = plan?.mechanism;
  if (typeof name !== "string") throw new MalformedError("a plan is of no mechanism");
  if (!Object.hasOwn(MECHANISMS, name)) {
    throw new RefusedError("mechanism", `asks by ${name}, which only devices in Python answer`);
  }
  const [question, more] = MECHANISMS[name];
  const mechanism = oneOf(name);
  const asked = record({ mechanism, ...QUESTION, ...question });
  if (record({ mechanism, ...PLAN, ...more, question: asked })(plan)) checkTerms(plan.terms);
}

/** Check what fields of terms say together, as `checkFields`. @type {(terms: any) => void} */
function checkTerms({ sum, committee, registrar, cohorts }) {
  const isDrawn = committee !== null && "volunteers" in committee;
  const fault =
    ((sum === "one-shot") !== (committee !== null) && "a one-shot sum alone has a committee") ||
    (committee && cohorts !== 1 && `a one-shot sum has one cohort, not ${cohorts}`) ||
    (isDrawn && !registrar && "a committee of volunteers needs a registrar, which draws it") ||
    (committee && committeeParameters(committee).corrupt < 1 && "each member could read devices");
  if (fault) throw new MalformedError(`a plan's terms cannot be: ${fault}`);
}
