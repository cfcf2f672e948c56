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

import { max, min } from "./arithmetic.js";
import { MalformedError, ServiceError, expect, must } from "./errors.js";

const TRANSIENT = [0, 408, 429, 500, 502, 503, 504]; // 0: no answer
const MAX_DOCUMENT_BYTES = 4 * 2 ** 20; // of JSON: a plan of `tracked` lists thousands of items
const MAX_ERROR_CHARACTERS = 2000; // of a text that a service can choose
const RESPONSE_SECONDS = 30; // in addition to the wait of a long poll
const MIN_BYTES_PER_SECOND = 2 ** 14; // of the slowest line
const [FIRST_PAUSE, MAX_PAUSE, JITTER, MAX_RETRY_AFTER] = [0.1, 3, 0.5, 30]; // seconds

/** Return the time in seconds since 1970. */
export const clock = () => Date.now() / 1000;

/** Wait. @param {number} seconds */
export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** Return a service's address in one form, without a slash at the end: one service has one identity
 * of a device. Throws a TypeError for other addresses. @type {(url: string) => string} */
export function serviceUrl(url) {
  const { href, protocol, username, password } = new URL(url);
  const isService = /^https?:$/.test(protocol) && !username && !password && !/[?#]/.test(url);
  expect(isService, "a service has an http or https address without a user, '?' or '#'");
  return href.replace(/\/+$/, "");
}

/** Return the object of a text of JSON. @type {(text: string) => any} */
export function readJson(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    // as any other value
  }
  must(Object(value) === value, "the server sent a document that cannot be read");
  return value;
}

/** Bytes of the body or its JSON, the bearer token, seconds that the service may wait, and the most
 * bytes of the answer. @typedef {{bytes?: Uint8Array, json?: object, ticket?: string, wait?:
 * number, maxBytes?: number}} Options */

/** Requests to the service at a URL, each repeated for up to `patience` seconds. */
export class Transport {
  #secrets = /** @type {string[]} */ ([]); // which the service may repeat in its answers

  /** @param {string} url as `serviceUrl` returns it @param {number} patience */
  constructor(url, patience) {
    this.url = url;
    this.patience = patience;
  }

  /** Send a request to a path below /v1 until the service accepts it; return the text of the
   * answer. Throws a ServiceError if the service refuses, or is out of reach for too long, and a
   * MalformedError if the answer is too long. @param {string} method @param {string} path @param
   * {Options} [options] */
  async send(method, path, options = {}) {
    if (options.ticket) this.#secrets.push(options.ticket);
    const end = clock() + this.patience;
    for (let pause = FIRST_PAUSE; ; pause = min(2 * pause, MAX_PAUSE)) {
      try {
        return await this.#sendOnce(method, path, options);
      } catch (error) {
        const isTransient = error instanceof ServiceError && TRANSIENT.includes(error.status);
        if (!isTransient) throw error;
        const wait = error.retryAfter || pause + JITTER * Math.random();
        if (clock() + wait > end) throw error;
        await sleep(wait);
      }
    }
  }

  /** @param {string} method @param {string} path @param {Options} options */
  async #sendOnce(method, path, { bytes, json, ticket, wait = 0, maxBytes = MAX_DOCUMENT_BYTES }) {
    const headers = new Headers();
    if (ticket) headers.set("authorization", `Bearer ${ticket}`);
    if (bytes || json) headers.set("content-type", `application/${json ? "json" : "octet-stream"}`);
    const line = ((bytes?.length ?? 0) + maxBytes) / MIN_BYTES_PER_SECOND;
    let [status, retryAfter, type] = [0, 0, ""];
    let detail = `${this.url} is out of reach: check that it runs`;
    try {
      const answer = await fetch(`${this.url}/v1${path}`, {
        method, headers, body: json ? JSON.stringify(json) : bytes,
        signal: AbortSignal.timeout(Math.ceil(1000 * (RESPONSE_SECONDS + wait + line))),
        cache: "no-store", credentials: "omit", redirect: "manual", referrerPolicy: "no-referrer",
      });
      const text = await readBody(answer, maxBytes);
      if (answer.ok) return text;
      status = answer.status || 302; // a page sees no status of a redirection
      detail = `${this.url} answered ${status}: check the address`;
      const seconds = parseInt(answer.headers.get("retry-after") ?? "") || 0;
      retryAfter = min(max(0, seconds), MAX_RETRY_AFTER);
      const problem = readJson(text);
      type = this.#shown(`${problem.type}`.split("urn:blindtally:problem:")[1] ?? "");
      detail = `${problem.detail}`;
    } catch (error) {
      if (error instanceof MalformedError && !status) throw error; // too long, not a proxy's page
      if (!status) detail += ` (${error})`;
    }
    throw new ServiceError(this.#shown(detail), status, type, retryAfter);
  }

  /** Return a short text without secrets and hidden characters. @param {string} text */
  #shown(text) {
    const open = this.#secrets.reduce((shown, each) => shown.replaceAll(each, "(secret)"), text);
    return open.slice(0, MAX_ERROR_CHARACTERS).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, "?");
  }
}

/** Return the text of an answer. @param {Response} answer @param {number} maxBytes */
async function readBody({ body }, maxBytes) {
  const [reader, decoder] = [body?.getReader(), new TextDecoder()];
  let [text, size] = ["", 0];
  for (let part; (part = (await reader?.read())?.value); ) {
    size += part.length;
    if (size > maxBytes) {
      await reader?.cancel();
      throw new MalformedError(`the server sent more than ${maxBytes} bytes`);
    }
    text += decoder.decode(part, { stream: true });
  }
  return text + decoder.decode();
}
