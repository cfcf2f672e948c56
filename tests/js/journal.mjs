// Identities, and journals of devices: in a folder in Node, in IndexedDB in a page.
import { hex, unhex } from "../../js/src/bytes.js";
import { deriveIdentity } from "../../js/src/identity.js";
import { browserJournal } from "../../js/src/journal.js";

/** Return the identities, and the limits that refuse vectors by steps, and at the same time. */
export async function main({ folder, identities, steps, racing }) {
  const store = folder && (await import("../../js/src/node_journal.js")).folderJournal;
  const journal = (name) => (folder ? store(`${folder}/${name}`) : browserJournal(name));
  const limitOf = async ({ name, day, plan, ...vector }) => {
    Date.now = () => 86_400_000 * day;
    const policy = { max_exact_studies: 1, max_rounds: 2 };
    await journal(name).secret();
    return journal(name).record(vector, policy, plan).then(() => null, ({ limit }) => limit);
  };
  const limits = [];
  await journal("steps").forget("no digest"); // as if the page's data were deleted meanwhile
  for (const step of steps) limits.push(await limitOf(step));
  const derived = identities.map(async ({ secret, service, study }) => {
    const { publicKey, credential } = await deriveIdentity(unhex(secret), service, study);
    return [hex(publicKey), credential];
  });
  const alone = await journal("steps").alone(() => journal("steps").alone(() => "both"));
  const raced = await Promise.all(racing.map(limitOf));
  return { limits, raced, derived: await Promise.all(derived), alone };
}
