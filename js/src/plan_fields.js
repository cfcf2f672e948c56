/** Fields of plans, with the type and range of each: a plan has all of them, and no others. */

import { isWhole } from "./arithmetic.js";
import { committeeParameters } from "./committee.js";
import { MalformedError, RefusedError, must } from "./errors.js";

/** @typedef {(value: any) => boolean} Check throws a MalformedError for a field of a record */
/** @typedef {Record<string, Check>} Fields */

/** @type {(least: number, most: number) => Check} */
const number = (least, most) => (x) => typeof x === "number" && x >= least && x <= most;
/** @type {(least: number, most: number) => Check} */
const whole = (least, most) => (x) => isWhole(x) && x >= least && x <= most;
/** @type {(least: number, most?: number, pattern?: RegExp) => Check} */
const text = (least, most = Infinity, pattern = /^/) => (x) =>
  typeof x === "string" && pattern.test(x) && whole(least, most)([...x].length);
/** @type {(...values: any[]) => Check} */
const oneOf = (...values) => (x) => values.includes(x);
/** @type {(each: Check, least: number, most: number) => Check} */
const list = (each, least, most) => (x) =>
  Array.isArray(x) && whole(least, most)(x.length) && x.every(each);
/** @type {(check: Check) => Check} */
const orNull = (check) => (x) => x === null || check(x);

/** Check a record by the fields that `choose` returns for it. @type {(choose: (value: any) =>
 *   Fields | undefined) => Check} */
const record = (choose) => (value) => {
  const fields = Object(value) === value && !Array.isArray(value) && choose(value);
  if (!fields) return false;
  for (const name in { ...fields, ...value }) {
    const isKnown = Object.hasOwn(fields, name) && Object.hasOwn(value, name);
    must(isKnown && fields[name](value[name]),
      `a plan's field ${name} is missing, unknown, or beyond its range`);
  }
  return true;
};
/** @type {(fields: Fields) => Check} */
const fixed = (fields) => record(() => fields);
/** @type {(domains: Record<string, Fields>) => Check} */
const domainOf = (domains) => record(({ kind }) =>
  Object.hasOwn(domains, kind) ? { kind: () => true, ...domains[kind] } : undefined);

const BELOW_ONE = 1 - Number.EPSILON / 2;
const positive = (most = BELOW_ONE) => number(Number.MIN_VALUE, most);
const bool = oneOf(true, false);
const hex32 = text(64, 64, /^[0-9a-f]*$/);
const rate = number(0, BELOW_ONE);
const exponent = whole(1, 128);
const float = number(-Number.MAX_VALUE, Number.MAX_VALUE);
const many = 2 ** 20;
const items = list(text(0), 1, many);
const cells = whole(1, 12_582_912);
const segments = list(text(1, 64, /^[^:\x00-\x1f]+$/), 2, 4096);
const hashed = {
  max_bytes: whole(1, 4096), key_bits: oneOf(24, 32, 40, 48, 72), salt: text(0, 16, /^[ -~]*$/),
};
const digits = {
  alphabet: { characters: text(2, 4096), length: whole(1, 256), pad: text(0, 1) },
  utf8: { max_bytes: whole(1, 1024) },
  interval: { low: float, high: float, alpha: whole(2, 256), length: whole(1, 48) },
};
const domain = domainOf({
  ...digits, hashed, "hashed-product": { ...hashed, segments },
  listed: { items: list(text(0), 2, many) }, product: { segments, inner: domainOf(digits) },
});

const rates = { corrupt: rate, dropout: rate };
const drawn = { ...rates, sigma: exponent, eta: exponent };
const volunteers = { ...drawn, volunteers: whole(3, 5000), size: whole(3, 1000) };
const operators = { ...rates, members: list(hex32, 3, 100), size: orNull(whole(3, 100)) };
const terms = fixed({
  ...drawn, cohort_size: whole(3, 1e5), minimum: whole(3, 1e5), cohorts: whole(1, 1000),
  registrar: orNull(hex32), sum: oneOf("pairwise", "one-shot"),
  committee: orNull(record((value) => ("volunteers" in value ? volunteers : operators))),
});

const noise = {
  epsilon: number(1e-6, 40), delta: number(1e-11, BELOW_ONE), colluders: whole(0, 1000),
  mode: oneOf("sample-threshold", "noise", "both"), relation: oneOf("add-remove", "replace-one"),
  theta: orNull(whole(1, 1e4)), probability: orNull(number(1e-6, BELOW_ONE)),
  every_round: bool, join_probability: positive(1),
};
const release = fixed({
  probability: positive(1), threshold: whole(1, 2 ** 31), variance: number(0, 2 ** 24),
});
const windowed = { items, bits: whole(1, 40) };
const split = { items, counters: whole(1, 4096) };
const few = 2 ** 16;

/** The fields that the question and the plan of each mechanism add.
 * @type {Record<string, [Fields, Fields]>} */
const MECHANISMS = {
  tracked: [
    { hash_bits: whole(0, 24), message_bytes: whole(0, 2 ** 27) },
    {
      cells, max_value: whole(1, 2 ** 31 - 1), prime: whole(0, 2 ** 26 - 1),
      counter_groups: list(record((value) => ("bits" in value ? windowed : split)), 0, 64),
      counter_classes: list(whole(1, Infinity), 0, few), table_classes: whole(0, few),
      string_pieces: list(fixed({ name: text(0), piece: whole(0, 1365) }), 0, few),
    },
  ],
  "adaptive-iblt": [{ hash_bits: whole(0, 24), rule: oneOf("paper", "steady") }, { cells }],
  "hierarchical-histogram": [{ ...noise, contribution: whole(1, 1) }, { release }],
  "number-sums": [{ contribution: whole(1, 1), confidence: oneOf(0.5) }, {}],
  triehh: [
    { ...noise, stride: whole(1, 8), truncate: bool, vote_tables: bool },
    {
      release, level: whole(1, 1024), table_shape: orNull(fixed({
        bound: whole(2, 2 ** 52), votes: whole(1, 2 ** 31 - 1), width: whole(1, 2 ** 21),
        evidence: whole(1, 2 ** 53),
      })),
      frontier: list(text(0, 2048, /^([0-9a-f]{2})*$/), 1, many),
    },
  ],
  "approximate-histogram": [
    {
      rule: oneOf("practical", "theorem"), beta: positive(), repetitions: orNull(whole(1, 2000)),
      rows: orNull(whole(1, 63)),
    },
    {
      cells, tables: whole(1, 2000), rows: whole(0, 63), width: whole(0, 2 ** 26),
      location_seed: hex32,
    },
  ],
};
const question = {
  threshold: number(1, 1e12), contribution: whole(1, 1e4), domain, confidence: positive(),
  message_bytes: whole(1, 2 ** 27),
};
const shared = {
  study: text(1, 64), round: whole(1, 1e4), rounds: whole(1, 1e4), terms, seed: hex32,
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
  const [asked, more] = MECHANISMS[name];
  const mechanism = oneOf(name);
  fixed({
    mechanism, ...shared, ...more, question: fixed({ mechanism, ...question, ...asked }),
  })(plan);
  const { sum, committee, registrar, cohorts } = plan.terms;
  must((sum === "one-shot") === !!committee, "a one-shot sum alone has a committee");
  if (!committee) return;
  must(cohorts === 1, "a one-shot sum has one cohort");
  must(registrar || !committee.volunteers, "a registrar draws a committee of volunteers");
  must(committeeParameters(committee).corrupt, "each member of the committee could read devices");
}
