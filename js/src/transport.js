/**
 * Requests of a device to one service, with limits of size and time.
 *
 * A request without an answer, or with one that means "not now", is repeated with the same bytes
 * after random and growing waits. Repeating a request has no further effect.
 *
 * A page of another origin needs a proxy before the service that allows its origin (CORS): the
 * methods GET, POST and PUT, and the headers Authorization and Content-Type. It should also expose
 * the header Retry-After.
 */

import { MalformedError, ServiceError } from "./errors.js";

const TRANSIENT_STATUSES = [0, 408, 429, 500, 502, 503, 504]; // 0: no answer
const PROBLEM_TYPE_PREFIX = "urn:blindtally:problem:";
const MAX_DOCUMENT_BYTES = 4 * 2 ** 20; // of JSON: a plan of `tracked` lists thousands of items
const MAX_ERROR_CHARACTERS = 2000; // of a text that a service can choose
const RESPONSE_SECONDS = 30; // in addition to the wait of a long poll
const MIN_BYTES_PER_SECOND = 2 ** 14; // of the slowest line
const [FIRST_PAUSE, MAX_PAUSE, JITTER, MAX_RETRY_AFTER] = [0.1, 3, 0.5, 30]; // seconds

/** @param {number} seconds */
export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/**
 * Return a service's address in one form, because one service has one identity of a device.
 *
 * @param {string} url @returns {string} without a slash at the end
 * @throws {TypeError} if it is not the address of a service
 */
export function serviceUrl(url) {
  const { href, protocol, username, password } = new URL(url);
  if (!/^https?:$/.test(protocol) || username || password || /[?#]/.test(url)) {
    throw new TypeError("a service has an http or https address without a user, '?' or '#'");
  }
  return href.replace(/\/+$/, "");
}

/** @param {string} text of JSON @returns {any} its object; throws a MalformedError for others */
export function readJson(text) {
  try {
    const value = JSON.parse(text);
    if (typeof value === "object" && value) return value;
  } catch {
    // as any other value
  }
  throw new MalformedError("the server sent a document that cannot be read");
}

/**
 * @typedef {object} Options
 * @property {Uint8Array} [bytes] of the body @property {object} [json] instead of bytes
 * @property {string} [ticket] the bearer token
 * @property {number} [wait] seconds that the service may wait
 * @property {number} [maxBytes] of the answer
 */

/** Requests to the service at a URL, each repeated for up to `patience` seconds. */
export class Transport {
  #secrets = /** @type {string[]} */ ([]); // which the service may repeat in its answers

  /** @param {string} url as `serviceUrl` returns it @param {number} patience */
  constructor(url, patience) {
    this.url = url;
    this.patience = patience;
  }

  /**
   * Send a request until the service accepts it; return the text of the answer.
   *
   * @param {string} method @param {string} path below /v1 @param {Options} [options]
   * @returns {Promise<string>}
   * @throws {ServiceError} if the service refuses, or is out of reach for too long
   * @throws {MalformedError} if the answer is too long
   */
  async send(method, path, options = {}) {
    if (options.ticket) this.#secrets.push(options.ticket);
    const end = Date.now() + 1000 * this.patience;
    for (let pause = FIRST_PAUSE; ; pause = Math.min(2 * pause, MAX_PAUSE)) {
      try {
        return await this.#sendOnce(method, `${this.url}/v1${path}`, options);
      } catch (error) {
        const isService = error instanceof ServiceError;
        if (!isService || !TRANSIENT_STATUSES.includes(error.status)) throw error;
        const wait = error.retryAfter || pause + JITTER * Math.random();
        if (Date.now() + 1000 * wait > end) throw error;
        await sleep(wait);
      }
    }
  }

  /** @param {string} method @param {string} url @param {Options} options */
  async #sendOnce(method, url, { bytes, json, ticket, wait = 0, maxBytes = MAX_DOCUMENT_BYTES }) {
    const headers = new Headers();
    if (ticket) headers.set("authorization", `Bearer ${ticket}`);
    if (bytes) headers.set("content-type", "application/octet-stream");
    if (json) headers.set("content-type", "application/json");
    const line = ((bytes?.length ?? 0) + maxBytes) / MIN_BYTES_PER_SECOND;
    const signal = AbortSignal.timeout(Math.ceil(1000 * (RESPONSE_SECONDS + wait + line)));
    let answer, text;
    try {
      answer = await fetch(url, {
        method, headers, signal, body: json ? JSON.stringify(json) : bytes,
        cache: "no-store", credentials: "omit", redirect: "manual", referrerPolicy: "no-referrer",
      });
      text = await readBody(answer, maxBytes);
    } catch (error) {
      if (error instanceof MalformedError) throw error;
      const advice = "check the address, and that the service runs there";
      throw new ServiceError(this.#shown(`${this.url} is out of reach: ${error} (${advice})`));
    }
    if (answer.ok) return text;
    throw this.#refusal(answer.status || 302, text, answer.headers.get("retry-after") ?? "");
  }

  /** @param {number} status @param {string} text @param {string} retryAfter */
  #refusal(status, text, retryAfter) {
    let problem = { type: "", detail: `${this.url} answered ${status}: check the address` };
    try {
      const { type, detail } = readJson(text);
      if (typeof type === "string" && typeof detail === "string") problem = { type, detail };
    } catch {
      // a proxy's page, or another service
    }
    const seconds = /^\d+$/.test(retryAfter) ? Math.min(Number(retryAfter), MAX_RETRY_AFTER) : 0;
    const type = this.#shown(problem.type.replace(PROBLEM_TYPE_PREFIX, ""));
    return new ServiceError(this.#shown(problem.detail), status, type, seconds);
  }

  /** @param {string} text @returns {string} short, without secrets and hidden characters */
  #shown(text) {
    const open = this.#secrets.reduce((shown, each) => shown.replaceAll(each, "(secret)"), text);
    const escape = (/** @type {string} */ each) => `\\u{${each.codePointAt(0)?.toString(16)}}`;
    return open.slice(0, MAX_ERROR_CHARACTERS).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, escape);
  }
}

/** @param {Response} answer @param {number} maxBytes @returns {Promise<string>} its text */
async function readBody({ body }, maxBytes) {
  const [reader, decoder] = [body?.getReader(), new TextDecoder()];
  let [text, size] = ["", 0];
  for (let part = await reader?.read(); part?.value; part = await reader?.read()) {
    size += part.value.length;
    if (size > maxBytes) {
      await reader?.cancel();
      throw new MalformedError(`the server sent more than ${maxBytes} bytes`);
    }
    text += decoder.decode(part.value, { stream: true });
  }
  return text + decoder.decode();
}
