/**
 * Journal of a device: its secret, and every vector that it sent, recorded before it is sent.
 *
 * A difference between two vectors of one device reveals part of their contents. So a device sends
 * one vector to a study, and the items of one collection to few exact studies in 30 days. It may
 * send the same bytes again. A page can be closed at any moment, so a line keeps the message until
 * the service has accepted it. Whoever reads it there learns what the service would: its shares are
 * encrypted for the members, by keys that the device forgets.
 *
 * The lines are numbered, and each number is written once. Two tabs or processes that decide at the
 * same time want the same number: one of them writes it, the other reads again and decides again.
 * Line 0 has the secret, so that no journal is lost without its identities.
 */

import { floor, isWhole, max, min, sum } from "./arithmetic.js";
import { hex, systemRandom, unhex } from "./bytes.js";
import { JournalError, RefusedError } from "./errors.js";
import { clock } from "./transport.js";

const DEVICE = "blindtally device v1";
const DAY_SECONDS = 24 * 3600;
const PERIOD_SECONDS = 30 * DAY_SECONDS;
const [MIN_TIME, MAX_TIME] = [19723 * DAY_SECONDS, 2 ** 40]; // 2024, and a finite end

/** Of items of a collection. The message and its digest, SHA-256, are hexadecimal; the message is
 * empty once the service has answered for good. The journal sets the time, in seconds since 1970.
 * @typedef {{service: string, study: string, round: number, collection: string, digest: string,
 * message: string, time: number}} Vector */
/**
 * @typedef {object} Store lines of JSON, which all tabs or processes of the device share
 * @property {() => Promise<any[]>} read all lines, from line 0
 * @property {(number: number, line: object) => Promise<boolean>} append write a line durably, or
 *   return false if there is one of this number
 * @property {(number: number, line: object) => Promise<void>} replace a line durably
 * @property {(task: () => Promise<any>) => Promise<any>} alone run a task, or return null if
 *   another tab runs one
 */

/** The journal in a store; each method throws a JournalError if that cannot be read or written. */
export class Journal {
  #store;

  /** @param {Store} store */
  constructor(store) {
    this.#store = store;
    this.alone = store.alone;
  }

  /** @returns {Promise<Uint8Array>} the secret of the device, 32 bytes, which is made if needed */
  async secret() {
    const secret = hex(systemRandom(32));
    const [first] = await this.#append((lines) => (lines[0] ? null : { device: DEVICE, secret }));
    return unhex(first.secret);
  }

  /** @param {string} service @param {string} study @returns {Promise<Vector[]>} of the device */
  async sent(service, study) {
    return ofStudy(await this.#append(() => null), { service, study });
  }

  /** Delete a message, which is sent no more, and keep its digest. @param {string} digest */
  async forget(digest) {
    const lines = await this.#append(() => null);
    const number = lines.findIndex((line) => line.digest === digest);
    await this.#tried(() => this.#store.replace(number, { ...lines[number], message: "" }));
  }

  /** Record a vector, which may be sent once this has returned; without a digest, only check it.
   * Throws a RefusedError if the device has sent another vector, or all of its exact studies are
   * spent, or its clock is wrong. @type {(vector: Vector, policy: {max_rounds: number,
   * max_exact_studies: number}, plan: any) => Promise<void>} */
  async record(vector, policy, plan) {
    const most = plan.question.every_round ? policy.max_rounds : 1;
    const now = clock();
    await this.secret(); // which has line 0
    await this.#append((lines) => readingAfter(lines, now));
    await this.#append((lines) => {
      const sent = ofStudy(lines, vector);
      const isAgain = sent.some(({ round }) => round === vector.round);
      if (isAgain || sent.length >= most) {
        const limit = most > 1 ? (isAgain ? "once per round" : "max_rounds") : "once per study";
        throw new RefusedError(limit, "asks a second time");
      }
      checkExactStudies(lines, vector, policy.max_exact_studies, now);
      return vector.digest ? { ...vector, time: floor(now) } : null;
    });
  }

  /** Append the line that `decide` makes of all lines, unless it is null; return all lines. @param
   * {(lines: any[]) => object | null} decide @returns {Promise<any[]>} */
  async #append(decide) {
    for (let known = -1; ; ) {
      const lines = await this.#tried(() => this.#store.read());
      if (lines.length === known || !lines.every(isLine)) {
        throw new JournalError("another program changed the journal: nothing is sent");
      }
      const line = decide(lines);
      if (!line) return lines;
      known = lines.length;
      if (await this.#tried(() => this.#store.append(known, line))) return [...lines, line];
    }
  }

  /** @template T @param {() => Promise<T>} use of the store @returns {Promise<T>} */
  async #tried(use) {
    try {
      return await use();
    } catch (error) {
      throw new JournalError(`the journal fails, so nothing is sent: ${error}`);
    }
  }
}

const isTime = (/** @type {any} */ time) => time >= 0 && time < MAX_TIME && isFinite(time);

/** @param {any} line @param {number} number @returns {boolean} whether a device wrote it */
function isLine(line, number) {
  if (!number) return line?.device === DEVICE && /^[0-9a-f]{64}$/.test(line.secret);
  if (line?.study === undefined) return isTime(line?.latest) && isTime(line.confirmed);
  const texts = [line.service, line.study, line.collection, line.digest, line.message];
  const areTexts = texts.every((each) => typeof each === "string");
  return areTexts && isTime(line.time) && isWhole(line.round);
}

/** @param {any[]} lines @param {{service: string, study: string}} of @returns {Vector[]} */
const ofStudy = (lines, { service, study }) =>
  lines.filter((line) => line.service === service && line.study === study);

/** @param {any[]} lines @returns {{latest: number, confirmed: number}[]} of the clock */
const readings = (lines) => lines.filter((line) => line.latest !== undefined);

/** Return the reading of the clock to append, or null.
 *
 * A time has passed once two readings agree on it, the second a day later: a clock may be wrong
 * once. After a clock was set back by a day, nothing is sent until it has been right for a day.
 * @param {any[]} lines @param {number} now */
function readingAfter(lines, now) {
  const last = readings(lines).at(-1);
  if (now < MIN_TIME || now >= MAX_TIME) return null;
  if (!last) return { latest: now, confirmed: 0 };
  if (now >= last.latest + DAY_SECONDS) return { latest: now, confirmed: last.latest };
  return now >= last.latest ? null : { latest: now, confirmed: min(last.confirmed, now) };
}

/** Check that a vector may spend an exact study: no noise of this device hides its items. @param
 * {any[]} lines @param {Vector} vector @param {number} most @param {number} now */
function checkExactStudies(lines, vector, most, now) {
  const [last, before] = readings(lines).reverse();
  if (!last || now < MIN_TIME || (before?.latest ?? 0) - last.latest >= DAY_SECONDS) {
    throw new RefusedError("clock", "is refused as this device's clock is behind; wait for a day");
  }
  const passed = min(now, last.confirmed);
  const isRecent = (/** @type {Vector} */ each) =>
    each.collection === vector.collection && passed - each.time < PERIOD_SECONDS;
  const keyOf = (/** @type {Vector} */ each) => `${each.study} of ${each.service}`;
  const exact = new Map(lines.filter(isRecent).map((each) => [keyOf(each), each.time]));
  if (exact.size < most || (exact.size === most && exact.has(keyOf(vector)))) return;
  let reason = "asks for an exact sum";
  if (most > 0) {
    const [time] = [...exact.values()].sort((a, b) => a - b).slice(-most);
    const days = (max(time + PERIOD_SECONDS, last.latest) - now) / DAY_SECONDS + 1;
    reason += `; one is possible in ${days.toFixed(1)} days, if the device also runs a day before`;
  }
  throw new RefusedError("max_exact_studies", reason, exact.size + 1);
}

/** Return the journal of this origin in IndexedDB; one tab at a time takes part. @param {string}
 * [name] of the device, if the page has several */
export function browserJournal(name = "blindtally") {
  /** @param {IDBTransactionMode} mode @param {(lines: IDBObjectStore) => IDBRequest} use @returns
   * {Promise<any>} the result of the request, once it is on the disk */
  const run = (mode, use) => new Promise((resolve, reject) => {
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("lines");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const made = opening.result.transaction("lines", mode, { durability: "strict" });
      const request = use(made.objectStore("lines"));
      const end = (/** @type {() => void} */ settle) => () => (opening.result.close(), settle());
      made.oncomplete = end(() => resolve(request.result));
      made.onabort = end(() => reject(request.error ?? made.error));
    };
  });
  return new Journal({
    read: () => run("readonly", (lines) => lines.getAll()),
    append: (number, line) => run("readwrite", (lines) => lines.add(line, number)).then(
      () => true,
      (error) => (error.name === "ConstraintError" ? false : Promise.reject(error)),
    ),
    replace: (number, line) => run("readwrite", (lines) => lines.put(line, number)),
    alone: (task) => navigator.locks.request(`blindtally ${name}`, { ifAvailable: true },
      (lock) => (lock ? task() : null)),
  });
}
