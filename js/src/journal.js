/**
 * Journal of a device: its secret, and every vector that it sent, recorded before it is sent.
 *
 * A difference between two vectors of one device reveals part of their contents. So a device sends
 * one vector to a study, and the items of one collection to few exact studies in 30 days. It may
 * send the same bytes again while it runs. They are not kept: a device that ends between the record
 * and the answer has lost its part in the study, and nothing worse.
 *
 * The lines are numbered, and each number is written once. Two tabs or processes that decide at the
 * same time want the same number: one of them writes it, the other reads again and decides again.
 * Line 0 has the secret, so that no journal is lost without its identities.
 */

import { hex, systemRandom, unhex } from "./bytes.js";
import { JournalError, RefusedError } from "./errors.js";

const DEVICE = "blindtally device v1";
const DAY_SECONDS = 24 * 3600;
const PERIOD_SECONDS = 30 * DAY_SECONDS;
const [MIN_TIME, MAX_TIME] = [19723 * DAY_SECONDS, 2 ** 40]; // 2024, and a finite end

/**
 * @typedef {object} Vector
 * @property {string} service @property {string} study @property {number} round
 * @property {string} collection of the items @property {string} digest SHA-256 of the message
 * @property {number} time in seconds since 1970, set by the journal
 *
 * @typedef {object} Store lines of JSON, which all tabs or processes of the device share
 * @property {() => Promise<any[]>} read all lines, from line 0
 * @property {(number: number, line: object) => Promise<boolean>} append write a line durably, or
 *   return false if there is one of this number
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

  /** @param {string} service @param {string} study @returns {Promise<number[]>} rounds */
  async rounds(service, study) {
    return ofStudy(await this.#append(() => null), { service, study }).map(({ round }) => round);
  }

  /**
   * Record a vector, which may be sent once this has returned; without a digest, only check it.
   *
   * @param {Vector} vector
   * @param {{max_rounds: number, max_exact_studies: number}} policy
   * @param {any} plan which may ask the same devices in every round
   * @throws {RefusedError} if the device has sent another vector, or all of its exact studies are
   *   spent, or its clock is wrong
   */
  async record(vector, policy, plan) {
    const most = plan.question.every_round ? policy.max_rounds : 1;
    const now = Date.now() / 1000;
    await this.secret(); // which has line 0
    await this.#append((lines) => readingAfter(lines, now));
    await this.#append((lines) => {
      const sent = ofStudy(lines, vector);
      if (sent.some((each) => each.round === vector.round && each.digest === vector.digest)) {
        return null;
      }
      checkStudy(sent, vector, most);
      checkExactStudies(lines, vector, policy.max_exact_studies, now);
      return vector.digest ? { ...vector, time: Math.floor(now) } : null;
    });
  }

  /**
   * Append the line that `decide` makes of all lines, unless it is null; return all lines.
   *
   * @param {(lines: any[]) => object | null} decide @returns {Promise<any[]>}
   */
  async #append(decide) {
    for (let known = -1; ; ) {
      const lines = await this.#tried(() => this.#store.read());
      if (lines.length === known || !lines.every(isLine)) {
        const advice = "another program wrote to the journal, so the device sends nothing more";
        throw new JournalError(`a line is missing or is not an entry: ${advice}`);
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
      throw new JournalError(`the journal cannot be used, so nothing is sent: ${error}`);
    }
  }
}

const isTime = (/** @type {any} */ time) => time >= 0 && time < MAX_TIME && isFinite(time);

/** @param {any} line @param {number} number @returns {boolean} whether a device wrote it */
function isLine(line, number) {
  if (!number) return line?.device === DEVICE && /^[0-9a-f]{64}$/.test(line.secret);
  if (line?.study === undefined) return isTime(line?.latest) && isTime(line.confirmed);
  const texts = [line.service, line.study, line.collection, line.digest];
  const areTexts = texts.every((each) => typeof each === "string");
  return areTexts && isTime(line.time) && Number.isSafeInteger(line.round);
}

/** @param {any[]} lines @param {{service: string, study: string}} of @returns {Vector[]} */
const ofStudy = (lines, { service, study }) =>
  lines.filter((line) => line.service === service && line.study === study);

/** @param {any[]} lines @returns {{latest: number, confirmed: number}[]} of the clock */
const readings = (lines) => lines.filter((line) => line.latest !== undefined);

/**
 * Return the reading of the clock to append, or null.
 *
 * A time has passed once two readings agree on it, the second a day later: a clock may be wrong
 * once. After a clock was set back by a day, nothing is sent until it has been right for a day.
 *
 * @param {any[]} lines @param {number} now
 */
function readingAfter(lines, now) {
  const last = readings(lines).at(-1);
  if (now < MIN_TIME || now >= MAX_TIME) return null;
  if (!last) return { latest: now, confirmed: 0 };
  if (now >= last.latest + DAY_SECONDS) return { latest: now, confirmed: last.latest };
  return now >= last.latest ? null : { latest: now, confirmed: Math.min(last.confirmed, now) };
}

/** @param {Vector[]} sent @param {Vector} vector @param {number} most vectors in its study */
function checkStudy(sent, { study, round }, most) {
  const again = `asks for a second contribution to ${most > 1 ? `round ${round} of ` : ""}study`;
  if (most > 1 && sent.some((each) => each.round === round)) {
    throw new RefusedError("once per round", `${again} ${study}`);
  }
  if (sent.length < most) return;
  if (most === 1) throw new RefusedError("once per study", `${again} ${study}`);
  throw new RefusedError("max_rounds", `asks for more than ${most} rounds of study ${study}`);
}

/**
 * Check that a vector may spend an exact study: no noise of this device hides its items.
 *
 * @param {any[]} lines @param {Vector} vector @param {number} most @param {number} now
 */
function checkExactStudies(lines, vector, most, now) {
  const [last, before] = readings(lines).reverse();
  if (!last || now < MIN_TIME || (before?.latest ?? 0) - last.latest >= DAY_SECONDS) {
    const reason = "asks for a sum while the clock of this device is behind; try again in a day";
    throw new RefusedError("clock", reason);
  }
  const passed = Math.min(now, last.confirmed);
  const isRecent = (/** @type {Vector} */ each) =>
    each.collection === vector.collection && passed - each.time < PERIOD_SECONDS;
  const keyOf = (/** @type {Vector} */ each) => `${each.study} of ${each.service}`;
  const exact = new Map(lines.filter(isRecent).map((each) => [keyOf(each), each.time]));
  if (exact.size < most || (exact.size === most && exact.has(keyOf(vector)))) return;
  let reason = "asks for an exact sum";
  if (most > 0) {
    const [key, time] = [...exact].sort(([, a], [, b]) => a - b).slice(-most)[0];
    const days = (Math.max(time + PERIOD_SECONDS, last.latest) - now) / DAY_SECONDS + 1;
    reason += ` of the items that study ${key} had; the next is possible in ${days.toFixed(1)} `
      + "days, if the device runs a day before as well, because two readings must agree";
  }
  throw new RefusedError("max_exact_studies", reason, exact.size + 1);
}

/**
 * Return the journal of this origin in IndexedDB; one tab at a time takes part.
 *
 * @param {string} [name] of the device, if the page has several
 */
export function browserJournal(name = "blindtally") {
  /**
   * @param {IDBTransactionMode} mode @param {(lines: IDBObjectStore) => IDBRequest} use
   * @returns {Promise<any>} the result of the request, once it is on the disk
   */
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
    alone: (task) => navigator.locks.request(`blindtally ${name}`, { ifAvailable: true },
      (lock) => (lock ? task() : null)),
  });
}
