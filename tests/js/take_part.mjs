// Devices in Node: each line of standard input is a request, and each line of the output an answer.
import { createInterface } from "node:readline";

import { Policy, takePart } from "../../js/src/index.js";
import { folderJournal } from "../../js/src/node_journal.js";

const send = fetch;

// What may happen to a message after it has left, before its answer is read.
const after = (act) => async (url, options) => {
  const answer = await send(url, options);
  if (url.endsWith("/message")) act();
  return answer;
};
const faults = {
  dies: () => after(() => process.kill(process.pid, "SIGKILL")),
  loses: () => {
    let lost = 0;
    return after(() => {
      if (!lost++) throw new TypeError("the connection is lost");
    });
  },
  echoes: () => async (_, { headers }) => {
    const detail = `no such ${headers.get("authorization")}`;
    const problem = { type: "urn:blindtally:problem:barred", detail };
    return new Response(JSON.stringify(problem), { status: 403 });
  },
};

function take({ folder, policy, fault, ...request }) {
  if (fault) globalThis.fetch = faults[fault]();
  return takePart({ ...request, policy: new Policy(policy), journal: folderJournal(folder) });
}

async function answer({ id, ...request }) {
  const result = await take(request).catch(({ name, message }) => ({ error: `${name}: ${message}` }));
  console.log(JSON.stringify({ id, ...result }));
}

for await (const line of createInterface({ input: process.stdin })) answer(JSON.parse(line));
