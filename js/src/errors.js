/**
 * Errors of a device: each is a sentence that says what is wrong and what to do, without a secret.
 */

// Limits that no policy can change: the server broke a promise, so the text blames the server.
const PROMISES = new Set(["plan", "terms", "once per study", "once per round", "clock"]);

/** The study asks for more than the device's policy allows, or its server breaks a promise. */
export class RefusedError extends Error {
  /**
   * @param {string} limit the name of the limit in `Policy`, or of the promise that was broken
   * @param {string} reason what the study or its server does, such as "asks for ..."
   * @param {number | string | null} [needed] the value of the limit that would accept the request
   */
  constructor(limit, reason, needed = null) {
    const advice = needed === null ? "" : `; a policy with ${limit} = ${needed} accepts it`;
    super(`the ${PROMISES.has(limit) ? "server" : "study"} ${reason} (${limit})${advice}`);
    this.name = "RefusedError";
    this.limit = limit;
    this.reason = reason;
    this.needed = needed;
  }
}

/** The service refused a request, or was out of reach for too long: `status` is then 0. */
export class ServiceError extends Error {
  /**
   * @param {string} message
   * @param {number} [status] the status of HTTP
   * @param {string} [type] the type of the problem, such as "no-round"; empty if it has none
   * @param {number | null} [retryAfter] the seconds of Retry-After
   */
  constructor(message, status = 0, type = "", retryAfter = null) {
    super(message);
    this.name = "ServiceError";
    this.status = status;
    this.type = type;
    this.retryAfter = retryAfter;
  }
}

/** Bytes or JSON that no honest service or program sends. */
export class MalformedError extends Error {
  /** @param {string} message what is wrong, such as "the plan names a key twice" */
  constructor(message) {
    super(message);
    this.name = "MalformedError";
  }
}

/** The journal cannot be read or written, so nothing may be sent. */
export class JournalError extends Error {
  /** @param {string} message */
  constructor(message) {
    super(message);
    this.name = "JournalError";
  }
}
