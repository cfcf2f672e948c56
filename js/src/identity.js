/**
 * Identity of a device in one study, and its enrolment by the service and by a registrar.
 *
 * Both the identity and the credential follow from the device's secret: they are the same whenever
 * it returns to a study, and nobody can link its identities in two studies.
 */

import { range } from "./arithmetic.js";
import { concat, hex, prefix, sha256, statement, unhex, utf8 } from "./bytes.js";
import { must, refuse } from "./errors.js";
import { signingKey, verify } from "./keys.js";
import { enrolmentScope } from "./plan.js";
import { send } from "./transport.js";

/** @typedef {Awaited<ReturnType<typeof deriveIdentity>>} Identity */
/** @import { Bytes } from "./bytes.js" */

/** Return the identity that a device with this secret has in a study of the service at a URL: its
 * keys, its credential with the SHA-256 `digest` of its bytes, and the key of the stream that
 * always chooses the same among too many items. @param {Bytes} secret @param {string} service
 * @param {string | null} study null for all studies that ask for reports */
export async function deriveIdentity(secret, service, study) {
  const [inner, outer] = [0x36, 0x5c].map((pad) =>
    Uint8Array.from(range(64), (i) => secret[i] ^ pad)); // HMAC
  const [seed, bytes, choices] = ["identity", "credential", "choices"].map((purpose) => {
    const texts = [purpose, service, study].map((each) => JSON.stringify(each)).join(", ");
    return sha256(outer, sha256(inner, utf8(`[${texts}]`)));
  });
  const credential = btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-").replaceAll("/", "_").slice(0, 43); // without "="
  return { ...await signingKey(seed), credential, digest: sha256(bytes), choices };
}

/** Register an identity at a service that is not open; repeating it changes nothing. The token may
 * have expired: registered devices stay registered. Throws a ServiceError if it has no enrolments
 * left, or the identity was revoked. @type {(service: string, ticket: string, identity:
 * Identity) => Promise<void>} */
export async function enrolAtService(service, ticket, identity) {
  const { publicKey, digest } = identity;
  const signature = hex(await identity.sign(concat(prefix("device v1"), digest)));
  const json = { identity: hex(publicKey), credential: hex(digest), signature };
  await send(`${service}/v1/devices`, { ticket, json }).catch((error) => {
    if (error.status !== 401) throw error;
  });
}

/** Return the signature of the plan's registrar under an identity: 64 bytes, or none without one.
 * The ticket shows that the device is real. Throws a ServiceError if the registrar refuses, a
 * MalformedError if its signature is wrong, and a RefusedError if the device has no registrar.
 * @type {(address: string | undefined, ticket: string, plan: any, identity: Bytes) =>
 * Promise<Bytes>} */
export async function enrolAtRegistrar(address, ticket, plan, identity) {
  const { study, question, terms, rounds } = plan;
  if (!terms.registrar) return new Uint8Array();
  if (!address) refuse("registrar", "asks for an enrolment: pass registrar");
  const json = { study, question, terms, rounds, identity: hex(identity) };
  const { signature } = await send(`${address}/v1/enrolments`, { ticket, json });
  const signed = statement("enrolment", enrolmentScope(plan), 0, identity);
  const isSigned = await verify(unhex(terms.registrar), unhex(signature), signed);
  must(isSigned, "the registrar did not sign");
  return unhex(signature);
}
