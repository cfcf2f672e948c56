import { unhex } from "../../js/src/bytes.js";
import { checkAuthority, committeeParameters, openSession } from "../../js/src/committee.js";
import { readPlan } from "../../js/src/plan.js";

const faultOf = async ({ plan, committee }) => {
  try {
    await checkAuthority(await openSession(await readPlan(plan), unhex(committee)));
    return null;
  } catch (error) {
    return error.message;
  }
};

const numbersOf = (terms) => {
  try {
    return Object.values(committeeParameters(terms));
  } catch {
    return null;
  }
};

/** Return why a device refuses each committee, null if it does not; and the numbers of terms. */
export const main = async ({ cases, terms }) => ({
  faults: await Promise.all(cases.map(faultOf)),
  numbers: terms.map(numbersOf),
});
