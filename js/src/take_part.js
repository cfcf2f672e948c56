/** Participation of a device with its items in one study: the function that a program calls. */

import { hex, sha256, systemRandom, unhex, utf8 } from "./bytes.js";
import { openSession } from "./committee.js";
import { encode } from "./encode.js";
import { JournalError, MalformedError, RefusedError, ServiceError } from "./errors.js";
import { deriveIdentity, enrolAtRegistrar, enrolAtService } from "./identity.js";
import { Journal, browserJournal } from "./journal.js";
import { keystream } from "./keys.js";
import { makeMessage } from "./message.js";
import { readPlan } from "./plan.js";
import { Policy, checkPlan, maxCopies } from "./policy.js";
import { Transport, readJson, serviceUrl, sleep } from "./transport.js";

const POLL_SECONDS = 25; // wait of a long poll; the service allows 30
const [PATIENCE_SECONDS, FIRST_PATIENCE_SECONDS] = [120, 10]; // in a round, and before it
const REGISTRAR_ADVICE = "registrar is the https address of another server than the service's; "
  + "pass registrarToken, and the registrar's key as policy.registrar";
const IN_USE = "another tab takes part as this device, which takes part once: close one of them";
const STATES = /** @type {Record<string, string>} */ ({
  "no-round": "no round", "wrong-state": "over", "wrong-phase": "late", "dropped-out": "late",
  "cohort-failed": "cohort failed",
});

/**
 * @typedef {object} Request
 * @property {string} url of the service @property {string} study its id
 * @property {any} items that the device holds, as `encode` reads them
 * @property {Policy} [policy]
 * @property {Journal} [journal] by default that of the page's origin
 * @property {string} [collection] the name of what the items are from, which limits exact sums
 * @property {string} [token] an enrolment token of a service that is not open
 * @property {string} [registrar] the URL of the registrar, whose key the policy pins
 * @property {string} [registrarToken] proves to the registrar that the device is real
 * @property {(plan: any) => any} [consent] asked with the plan before the device takes part
 * @property {number} [wait] seconds for a round that takes devices
 * @property {number} [patience] seconds in which each request is repeated
 *
 * @typedef {object} Outcome
 * @property {string} state as in Python: "finished", "no round", "over", "late", "cohort failed",
 *   "declined", "rejected", "in use", "disconnected" or "fault"
 * @property {number | null} round null if the service showed none
 * @property {string} error the reason, if the device did not finish
 * @property {string | null} limit the name of the policy's limit that refused the study
 * @property {number} leftOut how many of the items the message does not count
 */

/**
 * Let this device take part in a round of a study with its items; return the outcome.
 *
 * @param {Request} request
 * @returns {Promise<Outcome>} an error in the study is an outcome
 * @throws {TypeError} if an argument cannot be right
 * @throws {JournalError} if the message cannot be recorded, so that it is not sent
 */
export async function takePart(request) {
  const { url, study, token, wait = 0 } = request;
  const { journal = browserJournal(), policy = new Policy() } = request;
  if (!globalThis.crypto?.subtle) throw new TypeError("a page has keys only under https");
  if (!/^[\w-]{1,64}$/.test(study)) throw new TypeError("study is the id of a study");
  if (token?.startsWith("btr_")) throw new TypeError(`a registrar's token: ${REGISTRAR_ADVICE}`);
  if (![token, request.registrarToken].every((each) => /^[!-~]*$/.test(each ?? ""))) {
    throw new TypeError("a token has characters that no token has, such as a blank: copy it again");
  }
  const patience = Math.max(Math.min(wait, PATIENCE_SECONDS), FIRST_PATIENCE_SECONDS);
  const transport = new Transport(serviceUrl(url), request.patience ?? patience);
  const registrar = registrarOf(request, policy);
  /** @type {Outcome} */
  const outcome = { state: "finished", round: null, error: "", limit: null, leftOut: 0 };
  const run = async () => {
    try {
      await participate(request, policy, journal, transport, registrar, outcome);
    } catch (error) {
      if (error instanceof JournalError) throw error;
      const { name, message, limit = null } = /** @type {any} */ (error);
      Object.assign(outcome, { state: stateOf(error), error: `${name}: ${message}`, limit });
    }
    return outcome;
  };
  return (await journal.alone(run)) ?? { ...outcome, state: "in use", error: IN_USE };
}

/** @param {unknown} error */
function stateOf(error) {
  if (error instanceof RefusedError || error instanceof MalformedError) return "declined";
  if (!(error instanceof ServiceError)) return "fault";
  return STATES[error.type] ?? (error.status ? "rejected" : "disconnected");
}

/**
 * Return the transport to the registrar, to whom alone the proof goes; null without one.
 *
 * @param {Request} request @param {Policy} policy
 */
function registrarOf({ url, registrar, registrarToken }, policy) {
  if (!registrar) return null;
  const { host, hostname, protocol } = new URL(registrar);
  const isSecure = protocol === "https:" || /^(localhost|127\.[\d.]+|\[::1\])$/.test(hostname);
  if (!registrarToken || !policy.registrar || !isSecure || host === new URL(url).host) {
    throw new TypeError(REGISTRAR_ADVICE);
  }
  return new Transport(serviceUrl(registrar), FIRST_PATIENCE_SECONDS);
}

/**
 * Take part; throws what stops the device. `outcome` gets the round, and what was left out.
 *
 * @param {Request} request @param {Policy} policy @param {Journal} journal
 * @param {Transport} transport @param {Transport | null} registrar @param {Outcome} outcome
 */
async function participate(request, policy, journal, transport, registrar, outcome) {
  const { study, items, token, collection = "default", wait = 0, consent } = request;
  const identity = await deriveIdentity(await journal.secret(), transport.url, study);
  const [own, ticket] = [hex(identity.publicKey), identity.credential];
  if (token) await enrolAtService(transport, identity, token);
  const rounds = await journal.rounds(transport.url, study);
  const after = Math.max(0, ...rounds);
  const view = readJson(await waitForRound(transport, study, after, ticket, wait));
  outcome.round = view.number;
  const opened = await acceptedPlan(view, study, rounds, policy);
  const { plan } = opened;
  const of = { service: transport.url, study, round: plan.round, collection };
  const vector = { ...of, digest: "", time: 0 };
  await journal.record(vector, policy, plan); // only checks, before anybody is asked
  if (consent && !(await consent(plan))) {
    throw new RefusedError("consent", "was refused by this device's user");
  }
  const proof = request.registrarToken ?? "";
  const enrolment = await enrolAtRegistrar(registrar, proof, plan, identity.publicKey);
  const choices = await keystream(identity.choices);
  const options = { maxCopies: maxCopies(plan, policy), choices };
  const encoded = await encode(plan, items, systemRandom, options);
  outcome.leftOut = encoded.leftOut;
  const session = await openSession(opened, unhex(view.cohorts?.[0]?.committee ?? ""));
  const bytes = await makeMessage(session, identity, enrolment, encoded, systemRandom);
  await journal.record({ ...vector, digest: hex(await sha256(bytes)) }, policy, plan);
  transport.patience = Math.min(request.patience ?? PATIENCE_SECONDS, policy.max_round_seconds);
  const path = `/studies/${study}/rounds/${plan.round}/devices/${own}/message`;
  await transport.send("PUT", path, { bytes, ticket });
}

/**
 * Return the view of the next round that takes devices, in JSON.
 *
 * @param {Transport} transport @param {string} study
 * @param {number} after the last round that the device took part in
 * @param {string} ticket @param {number} patience seconds
 */
async function waitForRound(transport, study, after, ticket, patience) {
  const deadline = Date.now() / 1000 + patience;
  for (;;) {
    const wait = Math.max(0, Math.min(POLL_SECONDS, deadline - Date.now() / 1000));
    const path = `/studies/${study}/rounds/open?after=${after}&wait=${wait}`;
    try {
      return await transport.send("GET", path, { ticket, wait });
    } catch (error) {
      if (!(error instanceof ServiceError) || error.type !== "no-round") throw error;
      const pause = error.retryAfter || 1;
      if (Date.now() / 1000 + pause > deadline) throw error;
      await sleep(pause);
    }
  }
}

/**
 * Return the plan of a round that the service shows, once the policy has accepted it.
 *
 * @param {any} view @param {string} study @param {Policy} policy
 * @param {number[]} rounds in which the device has taken part
 */
async function acceptedPlan({ number, plan: text }, study, rounds, policy) {
  if (!(number > Math.max(0, ...rounds)) || typeof text !== "string") {
    throw new MalformedError("the server showed no plan of a round in which this device was not");
  }
  const opened = await readPlan(utf8(text));
  const { plan } = opened;
  if (plan.study !== study || plan.round !== number) {
    const reason = `shows the plan of round ${plan.round} of ${plan.study}`;
    throw new RefusedError("plan", `${reason} for round ${number} of ${study}`);
  }
  checkPlan(plan, policy);
  if ((plan.question.join_probability ?? 1) !== 1) {
    const reason = "asks devices to join by a coin, which a device in JavaScript does not flip";
    throw new RefusedError("join_probability", reason);
  }
  return opened;
}
