/** Errors of a device: each says what is wrong and what to do, and has no secret. A text that a
 * service chose is short, and has no character that a terminal obeys or a reader does not see. */

const MAX_CHARACTERS = 2000;

/** Return an error with one of four names. A `RefusedError` has the `limit` of the policy, or the
 * promise that the study breaks, and the value that would do; a `ServiceError` a status, 0 if the
 * service was out of reach, the `type` of the problem, and seconds to wait. `MalformedError`: no
 * honest service sends this. `JournalError`: nothing may be sent. @type {(name: string, message:
 * string, facts?: object) => Error} */
export const namedError = (name, message, facts) => {
  const shown = message.slice(0, MAX_CHARACTERS).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "?");
  return Object.assign(new Error(shown), { name, ...facts });
};

/** Refuse a study. @type {(limit: string, reason: string, needed?: any) => never} */
export function refuse(limit, reason, needed = null) {
  throw namedError("RefusedError", `the study ${reason} (${limit})`, { limit, needed });
}

/** Refuse what devices in JavaScript do not do. @type {(limit: string, what: string) => never} */
export function inPython(limit, what) {
  refuse(limit, `needs devices in Python, for ${what}`);
}

/** Throw a TypeError unless a program's argument can be right. @type {(holds: any, advice: string)
 * => void} */
export function expect(holds, advice) {
  if (!holds) throw new TypeError(advice);
}

/** Throw a MalformedError unless a condition holds. @type {(holds: any, fault?: string) => void} */
export function must(holds, fault = "no honest service sends this") {
  if (!holds) throw namedError("MalformedError", fault);
}

/** Return a number, which must be in a range. @type {(value: number, least: number, most: number)
 * => number} */
export function checked(value, least, most) {
  must(value >= least && value <= most);
  return value;
}
