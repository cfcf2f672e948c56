/** Participation of a device with its items in one study: the function that a program calls. */

import { max, min } from "./arithmetic.js";
import { hex, sha256, subtle, systemRandom, unhex, utf8 } from "./bytes.js";
import { openSession } from "./committee.js";
import { encode } from "./encode.js";
import { JournalError, MalformedError, RefusedError, ServiceError, expect } from "./errors.js";
import { inPython } from "./errors.js";
import { deriveIdentity, enrolAtRegistrar, enrolAtService } from "./identity.js";
import { Journal, browserJournal } from "./journal.js";
import { keystream } from "./keys.js";
import { makeMessage } from "./message.js";
import { readPlan } from "./plan.js";
import { Policy, checkPlan, maxCopies } from "./policy.js";
import { Transport, clock, readJson, serviceUrl, sleep } from "./transport.js";

/** @import { Identity } from "./identity.js" */
/** @import { Vector } from "./journal.js" */

const POLL_SECONDS = 25; // wait of a long poll; the service allows 30
const [PATIENCE_SECONDS, FIRST_PATIENCE_SECONDS] = [120, 10]; // in a round, and before it
const FINAL_STATUSES = [404, 409, 410, 413, 422]; // the same message has no other answer
const REGISTRAR_ADVICE = "registrar is the https address of another server than the service's; "
  + "pass registrarToken, and the registrar's key as policy.registrar";
const IN_USE = "another tab takes part as this device: close one of them";
const STATES = /** @type {Record<string, string>} */ ({
  "no-round": "no round", "wrong-state": "over", "wrong-phase": "late",
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
 *
 * @typedef {{request: Request, policy: Policy, journal: Journal, transport: Transport,
 *   registrar: Transport | null, outcome: Outcome}} Part
 */

/**
 * Let this device take part in a round of a study with its items; return the outcome. An error in
 * the study is an outcome, too.
 *
 * If an earlier call ended before the service had accepted its message, exactly that message is
 * sent, and neither new items nor the policy matter: `leftOut` is then 0.
 *
 * Throws a TypeError if an argument cannot be right, and a JournalError if the message cannot be
 * recorded, so that it is not sent. @type {(request: Request) => Promise<Outcome>}
 */
export async function takePart(request) {
  const { url, study, token, registrarToken, wait = 0 } = request;
  const { journal = browserJournal(), policy = new Policy() } = request;
  expect(subtle, "a page has keys only under https");
  expect(/^[\w-]{1,64}$/.test(study), "study is the id of a study");
  expect(!token?.startsWith("btr_"), `a registrar's token: ${REGISTRAR_ADVICE}`);
  const isToken = /^[!-~]*$/.test(`${token ?? ""}${registrarToken ?? ""}`);
  expect(isToken, "a token has a wrong character: copy it again");
  const patience = max(min(wait, PATIENCE_SECONDS), FIRST_PATIENCE_SECONDS);
  const transport = new Transport(serviceUrl(url), request.patience ?? patience);
  const registrar = registrarOf(request, policy);
  /** @type {Outcome} */
  const outcome = { state: "finished", round: null, error: "", limit: null, leftOut: 0 };
  const run = async () => {
    try {
      await participate({ request, policy, journal, transport, registrar, outcome });
    } catch (/** @type {any} */ error) {
      if (error instanceof JournalError) throw error;
      const { name, message, limit = null } = error;
      Object.assign(outcome, { state: stateOf(error), error: `${name}: ${message}`, limit });
    }
    return outcome;
  };
  return (await journal.alone(run)) ?? { ...outcome, state: "in use", error: IN_USE };
}

/** Return the state of a device that an error stops. @param {unknown} error */
function stateOf(error) {
  if (error instanceof RefusedError || error instanceof MalformedError) return "declined";
  if (!(error instanceof ServiceError)) return "fault";
  return STATES[error.type] ?? (error.status ? "rejected" : "disconnected");
}

/** Return the transport to the registrar, to whom alone the proof goes; null without one. @param
 * {Request} request @param {Policy} policy */
function registrarOf({ url, registrar, registrarToken }, policy) {
  if (!registrar) return null;
  const { host, hostname, protocol } = new URL(registrar);
  const isSecure = protocol === "https:" || /^(localhost|127\.[\d.]+|\[::1\])$/.test(hostname);
  const isOther = isSecure && host !== new URL(url).host;
  expect(isOther && registrarToken && policy.registrar, REGISTRAR_ADVICE);
  return new Transport(serviceUrl(registrar), FIRST_PATIENCE_SECONDS);
}

/** Send a message until the service accepts it, a new one unless the journal still has one; throws
 * what stops the device. @param {Part} part */
async function participate(part) {
  const { request: { study, token, patience }, policy, journal, transport, outcome } = part;
  const identity = await deriveIdentity(await journal.secret(), transport.url, study);
  if (token) await enrolAtService(transport, identity, token);
  const sent = await journal.sent(transport.url, study);
  const after = max(0, ...sent.map(({ round }) => round));
  const unsent = sent.find(({ message }) => message);
  const { round, digest, message } = unsent ?? (await recordMessage(part, identity, after));
  outcome.round = round;
  transport.patience = min(patience ?? PATIENCE_SECONDS, policy.max_round_seconds);
  const path = `/studies/${study}/rounds/${round}/devices/${hex(identity.publicKey)}/message`;
  const options = { bytes: unhex(message), ticket: identity.credential };
  const refusal = await transport.send("PUT", path, options).then(() => null, (error) => error);
  // A problem with a type is the service's own, not a proxy's.
  if (!refusal || (refusal.type && FINAL_STATUSES.includes(refusal.status))) {
    await journal.forget(digest).catch(() => null); // it is sent again, and counts once
  }
  if (refusal?.type === "no-round") refusal.type = "wrong-phase"; // this round takes no more
  if (refusal) throw refusal;
}

/** Return the vector whose message the journal has recorded, in the first round after `after` that
 * takes devices. @type {(part: Part, identity: Identity, after: number) => Promise<Vector>} */
async function recordMessage({ request, policy, journal, transport, registrar, outcome }, identity,
  after) {
  const { study, items, consent, collection = "default", registrarToken = "", wait = 0 } = request;
  const view = readJson(await waitForRound(transport, study, after, identity.credential, wait));
  outcome.round = view.number;
  const opened = await readPlan(utf8(view.plan));
  const { plan } = opened;
  const { round, question } = plan;
  if (plan.study !== study || round <= after) {
    throw new RefusedError("plan", `shows the plan of round ${round} of study ${plan.study}`);
  }
  checkPlan(plan, policy);
  if ((question.join_probability ?? 1) !== 1) inPython("join_probability", "coins who takes part");
  const vector = {
    service: transport.url, study, round, collection, digest: "", message: "", time: 0,
  };
  await journal.record(vector, policy, plan); // only checks, before anybody is asked
  if (consent && !(await consent(plan))) {
    throw new RefusedError("consent", "was refused by this device's user");
  }
  const enrolment = await enrolAtRegistrar(registrar, registrarToken, plan, identity.publicKey);
  const choices = await keystream(identity.choices);
  const options = { maxCopies: maxCopies(plan, policy), choices };
  const encoded = await encode(plan, items, systemRandom, options);
  outcome.leftOut = encoded.leftOut;
  const session = await openSession(opened, unhex(view.cohorts?.[0]?.committee ?? ""));
  const bytes = await makeMessage(session, identity, enrolment, encoded, systemRandom);
  Object.assign(vector, { digest: hex(await sha256(bytes)), message: hex(bytes) });
  await journal.record(vector, policy, plan);
  return vector;
}

/** Return the view of a round after `after` that takes devices, in JSON, within seconds. @type
 * {(transport: Transport, study: string, after: number, ticket: string, patience: number) =>
 * Promise<string>} */
async function waitForRound(transport, study, after, ticket, patience) {
  const deadline = clock() + patience;
  for (;;) {
    const wait = max(0, min(POLL_SECONDS, deadline - clock()));
    const path = `/studies/${study}/rounds/open?after=${after}&wait=${wait}`;
    try {
      return await transport.send("GET", path, { ticket, wait });
    } catch (/** @type {any} */ error) {
      const pause = error.retryAfter || 1;
      if (error.type !== "no-round" || clock() + pause > deadline) throw error;
      await sleep(pause);
    }
  }
}
