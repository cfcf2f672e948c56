/** A device of one-shot sums: `takePart` with a policy, and a journal. */

export { browserJournal } from "./journal.js";
export { encode } from "./encode.js";
export { Policy, checkPlan } from "./policy.js";
export { takePart } from "./take_part.js";
