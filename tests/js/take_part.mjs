// Devices in Node: each request of `takePart` has an outcome, or an error.
import { Policy, takePart } from "../../js/src/index.js";
import { folderJournal } from "../../js/src/node_journal.js";

const send = fetch;

// What may happen to a message after it has left, before its answer is read.
const after = (act) => async (url, options) => {
  const answer = await send(url, options);
  if (url.endsWith("/message")) act();
  return answer;
};
const die = () => process.kill(process.pid, "SIGKILL");
const faults = {
  "dies before sending": () => (url, options) => (url.endsWith("/message") ? die() : send(url, options)),
  "dies after sending": () => after(die),
  loses: () => {
    let lost = 0;
    return after(() => {
      if (!lost++) throw new TypeError("the connection is lost");
    });
  },
  "gets a long answer": () => async (url, options) => {
    const answer = await send(url, options);
    return url.endsWith("/message") ? new Response(new Uint8Array(2 ** 22 + 1)) : answer;
  },
  echoes: () => async (_, { headers }) => {
    const detail = `no such ${headers.authorization}`;
    const problem = { type: "urn:blindtally:problem:barred", detail };
    return new Response(JSON.stringify(problem), { status: 403 });
  },
};

async function answer({ folder, policy, fault, wrong, ...request }) {
  if (fault) globalThis.fetch = faults[fault]();
  const device = { policy: new Policy(policy), journal: folderJournal(folder) };
  return takePart({ ...request, ...device, ...wrong }).catch(({ name, message }) => ({ error: `${name}: ${message}` }));
}

/** Return the outcomes of devices that take part at the same time; a fault is of all of them. */
export const main = (requests) => Promise.all(requests.map(answer));
