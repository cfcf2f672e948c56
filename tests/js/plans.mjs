import { utf8 } from "../../js/src/bytes.js";
import { MalformedError, RefusedError } from "../../js/src/errors.js";
import { readPlan } from "../../js/src/plan.js";

const isRead = async (text) => {
  try {
    return Boolean(await readPlan(utf8(text)));
  } catch (error) {
    if (error instanceof MalformedError || error instanceof RefusedError) return false;
    throw error;
  }
};

/** Return for each text of a plan whether a device reads it. */
export const main = (texts) => Promise.all(texts.map(isRead));
