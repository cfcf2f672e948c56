/**
 * Journal of a device: its secret, and every vector that it sent, recorded before it is sent.
 *
 * A difference between two vectors of one device reveals part of their contents. So a device sends
 * one vector to a study, and the items of one collection to few exact studies in 30 days. It may
 * send the same bytes again. A page can be closed at any moment, so a line keeps the message until
 * the service has accepted it. Whoever reads it there learns what the service would: its shares are
 * encrypted for the members, by keys that the device forgets.
 *
 * Line 0 has the secret, so that no journal is lost without its identities. Each other line has a
 * vector, or a reading of the clock.
 */

import { floor, min } from "./arithmetic.js";
import { HEX_32, hex, systemRandom, unhex } from "./bytes.js";
import { must, namedError, refuse } from "./errors.js";
import { clock } from "./transport.js";

const DEVICE = "blindtally device v1";
const DAY_SECONDS = 24 * 3600;
const PERIOD_SECONDS = 30 * DAY_SECONDS;
const MIN_TIME = 19723 * DAY_SECONDS; // 2024

/** Of items of a collection. The message and its digest, SHA-256, are hexadecimal; the message is
 * empty once the service has answered for good. The journal sets the time, in seconds since 1970.
 * @typedef {{service: string, study: string, round: number, collection: string, digest: string,
 * message: string, time?: number}} Vector */

/** A line and its number. @typedef {[number: number, line: object]} Change */

/** Where lines are, which all tabs or processes of the device share. `update` gives them to a
 * function, and writes durably the line that it returns, if any; nobody writes in between. `alone`
 * runs a task, or returns null if another tab runs one. @typedef {{update: (change: (lines:
 * any[]) => Change | null) => Promise<void>,
 * alone: <T>(task: () => Promise<T>) => Promise<T | null>}} Store */

/** @typedef {ReturnType<typeof journalIn>} Journal */

/** Return the journal in a store; each method throws a JournalError if that cannot be read or
 * written. @param {Store} store */
export function journalIn(store) {
  /** Write the line that `change` makes of all lines, if any; return the lines that it had. @param
   * {(lines: any[]) => Change | null} change @returns {Promise<any[]>} */
  const update = async (change) => {
    let /** @type {any[]} */ found = [];
    try {
      await store.update((lines) => {
        must(lines.every(isLine), "another program changed it");
        return change(found = lines);
      });
    } catch (/** @type {any} */ error) {
      if (error.limit) throw error;
      throw namedError("JournalError", `the journal fails: ${error}`);
    }
    return found;
  };
  return {
    alone: store.alone,

    /** @returns {Promise<Uint8Array>} the device's secret, 32 bytes, which is made if needed */
    async secret() {
      const made = { device: DEVICE, secret: hex(systemRandom(32)) };
      const [{ secret } = made] = await update((lines) => (lines[0] ? null : [0, made]));
      return unhex(secret);
    },

    /** @param {string} service @param {string} study @returns {Promise<Vector[]>} of the device */
    sent: async (service, study) => ofStudy(await update(() => null), { service, study }),

    /** Delete a message, which is sent no more, and keep its digest. @param {string} digest */
    forget: (digest) => update((lines) => {
      const number = lines.findIndex((line) => line.digest === digest);
      return lines[number] ? [number, { ...lines[number], message: "" }] : null;
    }),

    /** Record a vector, which may be sent once this has returned; without a digest, only check it.
     * Throws a RefusedError if the device has sent another vector, or all of its exact studies are
     * spent, or its clock is wrong. @type {(vector: any, policy: {max_rounds: number,
     * max_exact_studies: number}, plan: any) => Promise<void>} */
    async record(vector, policy, plan) {
      const most = plan.question.every_round ? policy.max_rounds : 1;
      const now = clock();
      await update((lines) => readingAfter(lines, now));
      await update((lines) => {
        const sent = ofStudy(lines, vector);
        const isAgain = sent.some(({ round }) => round === vector.round);
        const limit = most < 2 ? "once per study" : isAgain ? "once per round" : "max_rounds";
        if (isAgain || sent.length >= most) refuse(limit, "asks a second time");
        checkExactStudies(lines, vector, policy.max_exact_studies, now);
        return vector.digest ? [lines.length, { ...vector, time: floor(now) }] : null;
      });
    },
  };
}

/** @param {any} line @param {number} number @returns {boolean} whether a device wrote it */
const isLine = (line, number) => (number ? line?.time >= 0 || line?.latest >= 0
  : line?.device === DEVICE && HEX_32.test(line.secret));

/** @param {any[]} lines @param {{service: string, study: string}} of @returns {Vector[]} */
const ofStudy = (lines, { service, study }) =>
  lines.filter((line) => line.service === service && line.study === study);

/** Return the last reading of the clock, if any. @param {any[]} lines */
const lastReading = (lines) => lines.filter(({ latest }) => latest >= 0).at(-1);

/** Return the reading of the clock to append, or null.
 *
 * A time has passed once two readings agree on it, the second a day later: a clock may be wrong
 * once. After a clock was set back by a day, nothing is sent until it has been right for a day.
 * @param {any[]} lines @param {number} now @returns {Change | null} */
function readingAfter(lines, now) {
  const { latest, confirmed, isBehind } = lastReading(lines) ?? { latest: 0 };
  const isLater = now >= latest + DAY_SECONDS;
  if (now < MIN_TIME || (now >= latest && !isLater)) return null;
  return [lines.length, {
    latest: now, confirmed: isLater ? latest : min(confirmed, now),
    isBehind: !isLater && (isBehind || now <= latest - DAY_SECONDS),
  }];
}

/** Check that a vector may spend an exact study: no noise of this device hides its items. @param
 * {any[]} lines @param {Vector} vector @param {number} most @param {number} now */
function checkExactStudies(lines, vector, most, now) {
  const { confirmed, isBehind } = lastReading(lines) ?? { isBehind: true };
  if (isBehind || now < MIN_TIME) refuse("clock", "meets a clock that is behind: wait for a day");
  const passed = min(now, confirmed);
  const keyOf = (/** @type {Vector} */ each) => `${each.study} of ${each.service}`;
  const others = new Set(lines.filter((line) => line.collection === vector.collection
    && passed - line.time < PERIOD_SECONDS).map(keyOf));
  const needed = others.size + 1;
  others.delete(keyOf(vector));
  const reason = `needs max_exact_studies ${needed}, and the policy has ${most}`;
  if (others.size >= most) refuse("max_exact_studies", reason, needed);
}

/** Return what a request to IndexedDB, or a transaction, ends with. @type {(request: any) =>
 * Promise<any>} */
const ended = (request) => new Promise((resolve, reject) => {
  request.onsuccess = request.oncomplete = () => resolve(request.result);
  request.onerror = request.onabort = (/** @type {any} */ { target }) => reject(target.error);
});

/** Return the journal of this origin in IndexedDB; one tab at a time takes part. @param {string}
 * [name] of the device, if the page has several */
export const browserJournal = (name = "blindtally") => journalIn({
  update: async (change) => {
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("lines");
    const database = await ended(opening);
    try {
      const transaction = database.transaction("lines", "readwrite", { durability: "strict" });
      const store = transaction.objectStore("lines");
      const line = change(await ended(store.getAll()));
      if (!line) return;
      store.put(line[1], line[0]);
      await ended(transaction);
    } finally {
      database.close();
    }
  },
  alone: (task) => navigator.locks.request(`blindtally ${name}`, { ifAvailable: true },
    (lock) => (lock && task())),
});
