/** Errors of a device: each says what is wrong and what to do, and has no secret. */

/** The study asks for more than the device's policy allows, or its server breaks a promise. */
export class RefusedError extends Error {
  name = "RefusedError";

  /** `limit` is its name in `Policy`, or the broken promise; `needed` is its value that would do.
   * @param {string} limit @param {string} reason @param {number | null} [needed] */
  constructor(limit, reason, needed = null) {
    const advice = needed === null ? "" : `; a policy with ${limit} = ${needed} accepts it`;
    super(`the study ${reason} (${limit})${advice}`);
    this.limit = limit;
    this.needed = needed;
  }
}

/** The service refused a request, or was out of reach for too long: `status` is then 0. */
export class ServiceError extends Error {
  name = "ServiceError";

  /** `type` is that of the problem, such as "no-round"; `retryAfter` is in seconds. @param {string}
   * message @param {number} [status] @param {string} [type] @param {number} [retryAfter] */
  constructor(message, status = 0, type = "", retryAfter = 0) {
    super(message);
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

/** Bytes or JSON that no honest service or program sends. */
export class MalformedError extends Error {
  name = "MalformedError";
}

/** The journal cannot be read or written, so nothing may be sent. */
export class JournalError extends Error {
  name = "JournalError";
}

/** Refuse what devices in JavaScript do not do. @type {(limit: string, what: string) => never} */
export function inPython(limit, what) {
  throw new RefusedError(limit, `needs devices in Python, which alone have ${what}`);
}

/** Throw a TypeError unless a program's argument can be right. @type {(holds: any, advice: string)
 * => void} */
export function expect(holds, advice) {
  if (!holds) throw new TypeError(advice);
}

/** Return a number that follows from fields of a plan, if it is in its range, as they are in
 * theirs. @type {(value: number, least: number, most: number) => number} */
export function checked(value, least, most) {
  must(value >= least && value <= most);
  return value;
}

/** Throw a MalformedError unless a condition holds. @type {(holds: any, fault?: string) => void} */
export function must(holds, fault = "a plan's numbers do not fit each other: no study has them") {
  if (!holds) throw new MalformedError(fault);
}
