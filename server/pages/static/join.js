/**
 * The page of a study on which a person lets this browser take part, after it has asked.
 *
 * The journal in IndexedDB decides whether the browser may send. What this page keeps besides, in
 * localStorage, is only what it shows when it is opened again.
 */
import { Policy, browserJournal, encode, takePart } from "./blindtally-device.js";

const COLLECTION = "typed"; // what a person enters, whatever the study is
const WAIT_SECONDS = 30; // for a round that takes devices
const ONCE = "It sends one message only, so nothing more is sent.";
const COUNTED = "This browser was counted: the service has accepted its message.";
const FAILED = "The round has failed. This browser was not counted, nor was any other.";
const ENDS = {
  "no round": "No round takes devices at the moment. Nothing was sent: try again later.",
  over: "The study is over. This browser was not counted.",
  late: "The round is full or over. This browser was not counted.",
  "cohort failed": FAILED,
  "in use": "Another tab of this browser takes part at this moment. Close one of them.",
  rejected: "The service refused the message, so this browser was not counted.",
  disconnected: "The service did not answer in time. Open this page again later: if a message was "
    + "made, the same one is sent.",
  declined: "This browser refused, and sent nothing.",
  fault: "Something failed that should not.",
};

const form = /** @type {HTMLFormElement} */ (document.getElementById("join"));
const button = form.querySelector("button"); // none where no browser can take part any more
const status = /** @type {HTMLElement} */ (document.getElementById("status"));
const { study = "", policy = "{}", failed = "", closed } = form.dataset;
const limits = new Policy(JSON.parse(policy));
const url = new URL("..", location.href).href.replace(/\/$/, "");
const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? undefined;
const memory = `blindtally ${url} ${study}`;

/** @param {string} text @param {"" | "fault" | "good"} [kind] of the text: usual, bad or good news */
function say(text, kind = "") {
  status.textContent = text;
  status.className = kind;
}

/** @returns {string} why this browser cannot take part at all, or "" */
function whyNot() {
  if (!isSecureContext || !globalThis.crypto?.subtle) {
    return "Browsers have keys on secure pages only, so this page works under https (or on the "
      + "machine of the service itself). Ask for a link that begins with https.";
  }
  if (!globalThis.indexedDB || !navigator.locks) {
    return "This browser keeps no journal for pages, so it could be counted twice. Use a newer one.";
  }
  if (closed !== undefined && !token) {
    return "This service admits invited devices. Open the whole link that you were given: it ends "
      + "with #token= and the token.";
  }
  return "";
}

/** @returns {string[]} the items that were ticked or typed, each once */
function enteredItems() {
  const lines = new FormData(form).getAll("item").flatMap((text) => String(text).split("\n"));
  return [...new Set(lines.map((line) => line.trim()).filter(Boolean))];
}

/** @param {any} plan @param {string[]} items @returns {Promise<string[]>} those that it asks not for */
async function outside(plan, items) {
  const leftOut = await Promise.all(
    items.map(async (item) => (await encode(plan, [item])).leftOut > 0),
  );
  return items.filter((_, i) => leftOut[i]);
}

/**
 * Take part, and show how it ended.
 *
 * @param {string[]} items to send, once the plan of the round takes each of them; those of a message
 *   that the service has not accepted are in it
 */
async function join(items) {
  let strange = /** @type {string[]} */ ([]);
  const consent = async (/** @type {any} */ plan) => {
    strange = await outside(plan, items);
    if (!strange.length) say("Sending the message…");
    return !strange.length;
  };
  const outcome = await takePart(
    { url, study, items, policy: limits, journal, token, consent, collection: COLLECTION,
      wait: WAIT_SECONDS },
  );
  if (strange.length) {
    await end(`Nothing was sent. The study does not ask for: ${strange.slice(0, 5).join(", ")}`);
  } else if (outcome.state === "finished") {
    const rest = outcome.leftOut ? ` ${outcome.leftOut} of your items are not in it.` : "";
    await end(`${COUNTED} It is in round ${outcome.round}.${rest}`);
  } else {
    const reason = outcome.error.replace(/^\w*Error: /, "");
    await end(`${ENDS[/** @type {keyof ENDS} */ (outcome.state)]} (${reason})`);
  }
}

/** @param {string} text which the page also shows later, if a message was recorded */
async function end(text) {
  try {
    if (await hasTakenPart()) localStorage.setItem(memory, text);
  } catch {
    // The page forgets the text; the journal is another store.
  }
  say(text, text.startsWith(COUNTED) ? "good" : "fault");
}

/** @param {() => Promise<void>} task of which an error is the journal's */
async function attempt(task) {
  try {
    await task();
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    say(`Nothing was sent: ${message}. Let this page store data, and open it again.`, "fault");
  }
}

const hasTakenPart = async () => (await journal.sent(url, study)).length > 0;

/** Show what this browser has done before, and send a message again that was not accepted yet. */
async function goOn() {
  const sent = await journal.sent(url, study);
  if (sent.some(({ message }) => message)) {
    say("Sending the message again…");
    return join([]);
  }
  if (failed.split(" ").includes(`${sent.at(-1)?.round}`)) return say(`${FAILED} ${ONCE}`, "fault");
  let text = "This browser has sent its message.";
  try {
    text = localStorage.getItem(memory) ?? text;
  } catch {
    // A browser may have no such store.
  }
  say(`${text} ${ONCE}`, text.startsWith(COUNTED) ? "good" : "");
}

/** Say before a person agrees that this browser has taken part in other studies of the service. */
async function warnOfOthers() {
  await journal.secret(); // the first line of a journal
  try {
    await journal.record({ service: url, study, collection: COLLECTION }, limits, { question: {} });
  } catch (/** @type {any} */ error) {
    if (error.limit !== "max_exact_studies") throw error;
    limits.max_exact_studies = error.needed;
    const warning = /** @type {HTMLElement} */ (document.getElementById("warning"));
    const line = document.createElement("li");
    line.textContent = `asks this browser again, after ${error.needed - 1} other in 30 days: `
      + "together, their sums tell more about one person";
    warning.querySelector("ul")?.append(line);
    for (const box of warning.querySelectorAll("input")) box.required = true;
    warning.hidden = false;
  }
}

const journal = browserJournal();
const reason = button ? whyNot() : "";
if (reason) say(reason, "fault");
else await attempt(async () => {
  if (await hasTakenPart()) return goOn();
  if (!button) return;
  await warnOfOthers();
  button.disabled = false;
});

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!button) return;
  const items = enteredItems();
  if (!items.length) {
    say("Choose one at least, or enter one.", "fault");
    return;
  }
  button.disabled = true;
  say("Waiting for a round that takes devices…");
  await attempt(async () => {
    await (await hasTakenPart() ? goOn() : join(items)); // another tab may have taken part
    button.disabled = await hasTakenPart();
  });
});
