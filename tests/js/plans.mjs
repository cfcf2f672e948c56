import { readPlan } from "../../js/src/plan.js";
import { checkFields } from "../../js/src/plan_fields.js";

const isRead = async (text) => {
  try {
    checkFields((await readPlan(text)).plan);
    return true;
  } catch (error) {
    if (["RefusedError", "MalformedError"].includes(error.name)) return false;
    throw error;
  }
};

/** Return for each text of a plan whether a device reads it. */
export const main = (texts) => Promise.all(texts.map(isRead));
