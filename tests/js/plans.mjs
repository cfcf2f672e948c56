import { readPlan } from "../../js/src/plan.js";
import { encodingOf } from "../../js/src/encode.js";

const isRead = async (text) => {
  try {
    encodingOf((await readPlan(text)).plan);
    return true;
  } catch (error) {
    const isShown = error.message.length < 2100 && !/\p{C}/u.test(error.message);
    if (["RefusedError", "MalformedError"].includes(error.name) && isShown) return false;
    throw error;
  }
};

/** Return for each text of a plan whether a device reads it. */
export const main = (texts) => Promise.all(texts.map(isRead));
