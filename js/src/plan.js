/**
 * Plans: what one round asks of a device, in canonical JSON (RFC 8785), which is served and hashed.
 *
 * Two readers of one text must agree on the plan and on its digest. So a text is refused that this
 * reader would write otherwise: with another order of keys, `1.0` for `1`, or a key twice.
 */

import { concat, sha256, utf8 } from "./bytes.js";
import { MalformedError } from "./errors.js";
import { checkFields } from "./plan_fields.js";

const MAX_DEPTH = 16;

/** Return the canonical JSON of a value of JSON; throws a MalformedError if it is nested too often,
 * or a text has half a character. @type {(value: any, depth?: number) => string} */
export function canonicalText(value, depth = 0) {
  if (depth > MAX_DEPTH) throw new MalformedError(`JSON is nested more than ${MAX_DEPTH} times`);
  if (Array.isArray(value)) {
    return `[${value.map((each) => canonicalText(each, depth + 1)).join(",")}]`;
  }
  if (value !== null && typeof value === "object") {
    const pairs = Object.keys(value).sort().map((key) => [key, value[key]]);
    const texts = pairs.map((pair) => pair.map((each) => canonicalText(each, depth + 1)).join(":"));
    return `{${texts.join(",")}}`;
  }
  if (typeof value === "string" && /\p{Surrogate}/u.test(value)) {
    throw new MalformedError("a text has half a character, which UTF-8 cannot hold");
  }
  return JSON.stringify(value);
}

/** Return the plan in its canonical text, and the digest that stands for it. Throws a
 * MalformedError if it is no JSON or not canonical, and the errors of `checkFields`.
 * @type {(bytes: Uint8Array) => Promise<{plan: any, digest: Uint8Array, bytes: Uint8Array}>} */
export async function readPlan(bytes) {
  let text, plan;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    plan = JSON.parse(text);
  } catch {
    throw new MalformedError("a plan is not JSON in UTF-8");
  }
  if (canonicalText(plan) !== text) {
    throw new MalformedError("the plan's text is not in its canonical form (RFC 8785)");
  }
  checkFields(plan);
  return { plan, digest: await sha256(utf8("blindtally plan v2\0"), bytes), bytes };
}

/** Return the 32 bytes for which a registrar signs the identities of a plan's study.
 * @type {(plan: any) => Promise<Uint8Array>} */
export async function enrolmentScope({ question, rounds, study, terms }) {
  const facts = await sha256(utf8(canonicalText({ question, rounds, terms })));
  return sha256(utf8("blindtally study v3\0"), facts, utf8(study));
}
