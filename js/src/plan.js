/**
 * Plans: what one round asks of a device, in canonical JSON (RFC 8785), which is served and hashed.
 *
 * Two readers of one text must agree on the plan and on its digest. So a text is refused that this
 * reader would write otherwise: with another order of keys, `1.0` for `1`, or a key twice.
 */

import { sha256, taggedHash, utf8 } from "./bytes.js";
import { MalformedError, must } from "./errors.js";
import { checkFields } from "./plan_fields.js";

/** Return the canonical JSON of a value whose keys are names. @type {(value: any) => string} */
const canonicalText = (value) =>
  JSON.stringify(value, (_, part) => {
    must(!/\p{Surrogate}/u.test(part), "a text has half a character, which UTF-8 cannot hold");
    if (Object(part) !== part || Array.isArray(part)) return part;
    return Object.fromEntries(Object.keys(part).sort().map((key) => [key, part[key]]));
  });

/** Return the plan in its canonical text, and the digest that stands for it. Throws a
 * MalformedError if it is no JSON or not canonical, and the errors of `checkFields`. @type {(bytes:
 * Uint8Array) => Promise<{plan: any, digest: Uint8Array}>} */
export async function readPlan(bytes) {
  let text, plan;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    plan = JSON.parse(text);
  } catch {
    throw new MalformedError("a plan is not JSON in UTF-8");
  }
  checkFields(plan);
  must(canonicalText(plan) === text, "a plan's text is not in its canonical form (RFC 8785)");
  return { plan, digest: await taggedHash("plan v2", bytes) };
}

/** Return the 32 bytes for which a registrar signs the identities of a plan's study. @type {(plan:
 * any) => Promise<Uint8Array>} */
export async function enrolmentScope({ question, rounds, study, terms }) {
  const facts = await sha256(utf8(canonicalText({ question, rounds, terms })));
  return taggedHash("study v3", facts, utf8(study));
}
