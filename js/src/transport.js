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
import { concat } from "./bytes.js";
import { expect, namedError } from "./errors.js";
import { readJson } from "./plan.js";

const TRANSIENT = [0, 408, 429, 500, 502, 503, 504]; // 0: no answer
const MAX_DOCUMENT_BYTES = 4 * 2 ** 20; // of JSON: a plan of `tracked` lists thousands of items
const PATIENCE_SECONDS = 60; // in which a request is repeated
const REQUEST_MILLISECONDS = 300_000; // of the largest document on a slow line
const FIRST_PAUSE = 0.1; // seconds, as the three below
const MAX_PAUSE = 3;
const JITTER = 0.5;
const MAX_RETRY_AFTER = 30;

/** Return the time in seconds since 1970. */
export const clock = () => Date.now() / 1000;

/** Return a service's address in one form, without a slash at the end: one service has one identity
 * of a device. Throws a TypeError for other addresses. @type {(url: string) => string} */
export function serviceUrl(url) {
  const { href } = new URL(url);
  expect(/^https?:[^?#@]*$/.test(href), "a service's address has another form");
  return href.replace(/\/+$/, "");
}

/** The bearer token; a body of JSON for POST, or of bytes for PUT; and seconds to wait for a round.
 * @typedef {{ticket: string, json?: object, bytes?: Uint8Array, wait?: number}} Options */

/** Send a request until the service accepts it; return the JSON of the answer. Throws a
 * ServiceError if the service refuses, is out of reach for too long, or answers too much. @type
 * {(url: string, options: Options) => Promise<any>} */
export async function send(url, options) {
  const start = clock(), { wait = 0 } = options;
  for (let pause = FIRST_PAUSE; ; pause = min(2 * pause, MAX_PAUSE)) {
    try {
      return await sendOnce(url, options);
    } catch (/** @type {any} */ error) {
      const seconds = error.retryAfter || pause + JITTER * Math.random();
      const patience = TRANSIENT.includes(error.status) ? wait + PATIENCE_SECONDS
        : error.type === "no-round" ? wait : 0;
      if (clock() + seconds > start + patience) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
    }
  }
}

/** @type {(url: string, options: Options) => Promise<any>} */
async function sendOnce(url, { ticket, json, bytes }) {
  /** @type {(text: string, facts: object) => never} */
  const fail = (text, facts) => {
    throw namedError("ServiceError", text.replaceAll(ticket, "(secret)"), facts);
  };
  let answer, /** @type {any} */ text;
  const kind = json ? "json" : "octet-stream";
  try {
    answer = await fetch(url, {
      method: json ? "POST" : bytes ? "PUT" : "GET",
      headers: { authorization: `Bearer ${ticket}`, "content-type": `application/${kind}` },
      body: json ? JSON.stringify(json) : bytes, signal: AbortSignal.timeout(REQUEST_MILLISECONDS),
      cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer",
    });
    text = await readBody(answer);
  } catch (error) {
    fail(`${url} is out of reach (${error})`, { status: 0 });
  }
  text ?? fail("an answer has more than 4 MiB", {});
  const { status, headers, ok } = answer;
  const document = readJson(text) ?? {};
  if (ok) return document;
  fail(`${document.detail ?? `${url} answered ${status}`}`, {
    status, type: `${document.type}`.split("urn:blindtally:problem:")[1] ?? "",
    retryAfter: min(max(0, +`${headers.get("retry-after")}` || 0), MAX_RETRY_AFTER),
  });
}

/** Return the text of an answer, undefined if it is too long. @param {Response} answer */
async function readBody({ body }) {
  const reader = body?.getReader();
  const parts = [];
  for (let size = 0, part; (part = (await reader?.read())?.value); parts.push(part)) {
    size += part.length;
    if (size > MAX_DOCUMENT_BYTES) return reader?.cancel();
  }
  return new TextDecoder().decode(concat(...parts));
}
