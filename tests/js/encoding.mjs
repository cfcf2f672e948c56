// Returns for each case (a plan, items, limits of a policy, and keys of random streams) the vector of
// the items, and the limit that refuses the plan; or the error.
import { hex, unhex } from "../../js/src/bytes.js";
import * as source from "../../js/src/index.js";
import { pack } from "../../js/src/field.js";
import { keystream } from "../../js/src/keys.js";
import { maxCopies } from "../../js/src/policy.js";

let { Policy, checkPlan, encode } = source;

const stream = (key) => keystream(unhex(key));

// Return the limit that refuses a plan; or the whole refusal if a policy that follows its advice
// refuses the plan once more for the same reason.
function refusalOf(plan, limits) {
  try {
    checkPlan(plan, new Policy(limits));
    return null;
  } catch ({ limit, needed, message }) {
    if (!limit || (needed !== null && limits[limit] === needed)) return message;
    const next = needed === null ? null : refusalOf(plan, { ...limits, [limit]: needed });
    return next?.startsWith("the study") ? next : limit;
  }
}

async function answer({ plan, items, policy: limits, random, choices }) {
  const policy = new Policy(limits);
  const refusal = refusalOf(plan, limits);
  try {
    const options = { maxCopies: maxCopies(plan, policy), choices: await stream(choices) };
    const vector = await encode(plan, new Map(items), await stream(random), options);
    const { p, elements, leftOut: left_out } = vector;
    return { p, length: elements.length, packed: hex(pack(p, elements)), left_out, refusal };
  } catch ({ name, message }) {
    return { error: `${name}: ${message}`, refusal };
  }
}

// The cases, or a bundle to try and its cases.
export async function main(given) {
  ({ Policy, checkPlan, encode } = given.bundle ? await import(given.bundle) : source);
  return Promise.all((given.cases ?? given).map(answer));
}
