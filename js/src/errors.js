/** Errors of a device: each says what is wrong and what to do, and has no secret. */

// Promises that the server broke; all other limits are the policy's, and what a study chose.
const PROMISES = ["plan", "terms", "once per study", "once per round", "clock"];

/** The study asks for more than the device's policy allows, or its server breaks a promise. */
export class RefusedError extends Error {
  name = "RefusedError";

  /**
   * @param {string} limit its name in `Policy`, or the promise that was broken
   * @param {string} reason what the study or its server does, such as "asks for ..."
   * @param {number | string | null} [needed] the value of the limit that would accept the request
   */
  constructor(limit, reason, needed = null) {
    const advice = needed === null ? "" : `; a policy with ${limit} = ${needed} accepts it`;
    super(`the ${PROMISES.includes(limit) ? "server" : "study"} ${reason} (${limit})${advice}`);
    this.limit = limit;
    this.reason = reason;
    this.needed = needed;
  }
}

/** The service refused a request, or was out of reach for too long: `status` is then 0. */
export class ServiceError extends Error {
  name = "ServiceError";

  /**
   * @param {string} message @param {number} [status] of HTTP
   * @param {string} [type] of the problem, such as "no-round" @param {number} [retryAfter] seconds
   */
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
