/**
 * Plans: what one round asks of a device, in canonical JSON (RFC 8785), which is served and hashed.
 *
 * Two readers of one text must agree on the plan and on its digest. So a text is refused that this
 * reader would write otherwise: with another order of keys, `1.0` for `1`, or a key twice.
 */

import { sha256, taggedHash, utf8 } from "./bytes.js";
import { must } from "./errors.js";

/** Return the plan in a text, and the digest that stands for it; throws a MalformedError if another
 * text is read as this one. `checkFields` checks the rest, which includes the order of fields.
 * @type {(text: string) => {plan: any, digest: Uint8Array}} */
export function readPlan(text) {
  const plan = readJson(text);
  must(JSON.stringify(plan) === text, "a plan has another form than RFC 8785");
  return { plan, digest: taggedHash("plan v2", utf8(text)) };
}

/** Return the value of a text of JSON, null for other texts. @type {(text: string) => any} */
export function readJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Return the 32 bytes for which a registrar signs the identities of a plan's study. @type {(plan:
 * any) => Uint8Array} */
export function enrolmentScope({ question, rounds, study, terms }) {
  const facts = sha256(utf8(JSON.stringify({ question, rounds, terms })));
  return taggedHash("study v3", facts, utf8(study));
}
