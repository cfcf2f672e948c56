import { readPlan } from "../../js/src/plan.js";
import { encodingOf } from "../../js/src/encode.js";

const isRead = async (text) => {
  try {
    encodingOf((await readPlan(text)).plan);
    return true;
  } catch (error) {
    if (["RefusedError", "MalformedError"].includes(error.name)) return false;
    throw error;
  }
};

/** Return for each text of a plan whether a device reads it. */
export const main = (texts) => Promise.all(texts.map(isRead));
