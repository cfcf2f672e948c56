// Takes part in a one-shot sum, once: node take_part.mjs URL STUDY ITEM...
import { Policy, takePart } from "blindtally";
import { folderJournal } from "blindtally/node_journal.js";

const limits = { committee: ["<the members' public keys>"], trust_server_identities: true };
const [url, study, ...items] = process.argv.slice(2);
const device = { policy: new Policy(limits), journal: folderJournal("journal") };
const { state, error } = await takePart({ ...device, url, study, items, wait: 30 });
console.log(state, error);
