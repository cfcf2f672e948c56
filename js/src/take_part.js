/** Participation of a device with its items in one study: the function that a program calls. */

import { ceil, max } from "./arithmetic.js";
import { hex, sha256, subtle, systemRandom, unhex } from "./bytes.js";
import { openSession } from "./committee.js";
import { encode } from "./encode.js";
import { expect, refuse } from "./errors.js";
import { deriveIdentity, enrolAtRegistrar, enrolAtService } from "./identity.js";
import { browserJournal } from "./journal.js";
import { keystream } from "./keys.js";
import { makeMessage } from "./message.js";
import { readPlan } from "./plan.js";
import { Policy, checkPlan, maxCopies } from "./policy.js";
import { send, serviceUrl } from "./transport.js";

/** @import { Identity } from "./identity.js" */
/** @import { Journal, Vector } from "./journal.js" */

const POLL_SECONDS = 25; // the longest wait of a request; the service allows 30
const FINAL_STATUSES = [404, 409, 410, 413, 422]; // the same message has no other answer
/** @type {any} */
const STATES = {
  __proto__: null, RefusedError: "declined", MalformedError: "declined", "no-round": "no round",
  "wrong-state": "over", "wrong-phase": "late", "cohort-failed": "cohort failed",
};

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
 *
 * @typedef {object} Outcome
 * @property {string} state as in Python: "finished", "no round", "over", "late", "cohort failed",
 *   "declined", "rejected", "in use", "disconnected" or "fault"
 * @property {number | null} round null if the service showed none
 * @property {string} error the reason, if the device did not finish
 * @property {string | null} limit the name of the policy's limit that refused the study
 * @property {number} leftOut how many of the items the message does not count
 *
 * @typedef {Request & {policy: Policy, journal: Journal, consent: Function, service: string,
 *   outcome: Outcome, token: string, registrar: string, registrarToken: string}} Part
 */

/**
 * Let this device take part in a round of a study with its items; return the outcome. An error in
 * the study is an outcome, too.
 *
 * If an earlier call ended before the service had accepted its message, exactly that message is
 * sent, and neither new items nor the policy matter: `leftOut` is then 0.
 *
 * Throws a TypeError if an argument other than an item cannot be right, and a JournalError if the
 * message cannot be recorded, so that it is not sent. @type {(request: Request) => Promise<Outcome>}
 */
export async function takePart(request) {
  const { url, study, items, policy = new Policy(), journal = browserJournal(), token = "",
    registrar = "", registrarToken = "", consent = () => true } = request;
  const service = serviceUrl(url);
  expect(subtle, "a page needs https");
  expect(/^[\w-]{1,64}$/.test(study), "study must be an id");
  expect(items instanceof Object && policy instanceof Policy && journal instanceof Object
    && consent instanceof Function, "items, policy, journal or consent is wrong");
  const areTokens = /^(?!btr_)[!-~]*$/.test(`${token},${registrarToken}`);
  expect(areTokens, "a token is wrong; registrarToken begins with btr_");
  const address = registrar && serviceUrl(registrar);
  const isSecure = /^https:|^http:\/\/(localhost|127[.\d]+|\[::1])(:|\/|$)/.test(address);
  const isOther = isSecure && new URL(address).host !== new URL(url).host;
  expect(!registrar || (isOther && registrarToken && policy.registrar),
    "registrar needs https, another host, registrarToken and policy.registrar");
  /** @type {Outcome} */
  const outcome = { state: "finished", round: null, error: "", limit: null, leftOut: 0 };
  const part = { ...request, policy, journal, consent, service, outcome, token,
    registrar: address, registrarToken };
  try {
    const done = await journal.alone(() => participate(part));
    return done ?? { ...outcome, state: "in use", error: "close the other tab" };
  } catch (/** @type {any} */ error) {
    const { name, message, limit = null, status, type } = error;
    if (name === "JournalError") throw error;
    const rest = status ? "rejected" : status === 0 ? "disconnected" : "fault";
    const state = STATES[name] ?? STATES[type] ?? rest;
    return { ...outcome, state, error: `${name}: ${message}`, limit };
  }
}

/** Send a message until the service accepts it, a new one unless the journal still has one; throws
 * what stops the device. @type {(part: Part) => Promise<Outcome>} */
async function participate(part) {
  const { study, token, journal, service, outcome } = part;
  const identity = await deriveIdentity(await journal.secret(), service, study);
  if (token) await enrolAtService(service, token, identity);
  const sent = await journal.sent(service, study);
  const after = max(0, ...sent.map((vector) => vector.round));
  const unsent = sent.find((vector) => vector.message);
  const { round, digest, message } = unsent ?? (await recordMessage(part, identity, after));
  outcome.round = round;
  const path = `/v1/studies/${study}/rounds/${round}/devices/${hex(identity.publicKey)}/message`;
  const options = { ticket: identity.credential, bytes: unhex(message) };
  const refusal = await send(service + path, options).then(() => null, (error) => error);
  // A problem with a type is the service's own, not a proxy's.
  if (!refusal || (refusal.type && FINAL_STATUSES.includes(refusal.status))) {
    await journal.forget(digest).catch(() => null); // it is sent again, and counts once
  }
  if (refusal?.type === "no-round") refusal.type = "wrong-phase"; // this round takes no more
  if (refusal) throw refusal;
  return outcome;
}

/** Return the vector whose message the journal has recorded, in the first round after `after` that
 * takes devices. @type {(part: Part, identity: Identity, after: number) => Promise<Vector>} */
async function recordMessage(part, identity, after) {
  const { study, items, consent, collection = "default", registrar, registrarToken, policy,
    journal, service, outcome, wait = 0 } = part;
  const poll = wait / ceil(wait / POLL_SECONDS) || 0;
  const path = `/v1/studies/${study}/rounds/open?after=${after}&wait=${poll}`;
  const view = await send(service + path, { ticket: identity.credential, wait });
  outcome.round = view.number ?? null;
  const opened = readPlan(view.plan);
  const { plan } = opened;
  checkPlan(plan, policy);
  const { round } = plan;
  if (plan.study !== study || round <= after) refuse("plan", "shows the plan of another round");
  const vector = { service, study, round, collection: `${collection}` }; // two objects never equal
  await journal.record(vector, policy, plan); // only checks, before anybody is asked
  if (!(await consent(plan))) refuse("consent", "is refused by the user");
  const enrolment = await enrolAtRegistrar(registrar, registrarToken, plan, identity.publicKey);
  const choices = await keystream(identity.choices);
  const options = { maxCopies: maxCopies(plan, policy), choices };
  const encoded = await encode(plan, items, systemRandom, options);
  outcome.leftOut = encoded.leftOut;
  const session = openSession(opened, unhex(view.cohorts?.[0]?.committee));
  const bytes = await makeMessage(session, identity, enrolment, encoded, systemRandom);
  const recorded = { ...vector, digest: hex(sha256(bytes)), message: hex(bytes) };
  await journal.record(recorded, policy, plan);
  return recorded;
}
