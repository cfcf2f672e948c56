/**
 * Identity of a device in one study, and its enrolment by the service and by a registrar.
 *
 * Both the identity and the credential follow from the device's secret: they are the same whenever
 * it returns to a study, and nobody can link its identities in two studies.
 */

import { concat, hex, sha256, statement, unhex, utf8 } from "./bytes.js";
import { MalformedError, RefusedError } from "./errors.js";
import { signingKey, verify } from "./keys.js";
import { enrolmentScope } from "./plan.js";
import { Transport, readJson } from "./transport.js";

/** @typedef {Awaited<ReturnType<typeof deriveIdentity>>} Identity */

/**
 * Return the identity that a device with this secret has in a study of a service.
 *
 * @param {Uint8Array} secret 32 bytes @param {string} service its URL
 * @param {string | null} study null for all studies that ask for reports
 * @returns the public key and the function that signs; the text of the credential and the SHA-256
 *   of its bytes; and the key of the stream that selects among too many items, always the same ones
 */
export async function deriveIdentity(secret, service, study) {
  const hmac = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", secret, hmac, false, ["sign"]);
  const derive = async (/** @type {string} */ purpose) => {
    const texts = [purpose, service, study].map((each) => JSON.stringify(each));
    return new Uint8Array(await crypto.subtle.sign("HMAC", key, utf8(`[${texts.join(", ")}]`)));
  };
  const [pair, secret32] = [await signingKey(await derive("identity")), await derive("credential")];
  const base64 = btoa(String.fromCharCode(...secret32));
  const credential = base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
  const [credentialDigest, choices] = [await sha256(secret32), await derive("choices")];
  return { ...pair, credential, credentialDigest, choices };
}

/**
 * Register an identity at a service that is not open; repeating it changes nothing.
 *
 * @param {Transport} transport @param {Identity} identity
 * @param {string} token that may have expired: registered devices stay registered
 * @throws {ServiceError} if the token has no enrolments left, or the identity was revoked
 */
export async function enrolAtService(transport, identity, token) {
  const digest = identity.credentialDigest;
  const possession = await identity.sign(concat(utf8("blindtally device v1\0"), digest));
  const key = hex(identity.publicKey);
  const json = { identity: key, credential: hex(digest), signature: hex(possession) };
  await transport.send("POST", "/devices", { json, ticket: token }).catch((error) => {
    if (error.status !== 401) throw error;
  });
}

/**
 * Return the signature of the plan's registrar under an identity: 64 bytes, or none without one.
 *
 * @param {Transport | null} transport to the device's registrar
 * @param {string} proof that the device is real
 * @param {any} plan @param {Uint8Array} identity @returns {Promise<Uint8Array>}
 * @throws {ServiceError} if the registrar refuses, or does not answer
 * @throws {MalformedError} if the registrar that the plan names did not sign
 * @throws {RefusedError} if the plan names a registrar, and the device has none
 */
export async function enrolAtRegistrar(transport, proof, plan, identity) {
  const { study, question, terms, rounds } = plan;
  if (!terms.registrar) return new Uint8Array();
  if (!transport) {
    const advice = "pass registrar, the address of the one that does";
    throw new RefusedError("registrar", `names a registrar that enrols its devices: ${advice}`);
  }
  const json = { study, question, terms, rounds, identity: hex(identity) };
  const options = { json, ticket: proof, maxBytes: 4096 };
  const answer = await transport.send("POST", "/enrolments", options);
  const signature = unhex(readJson(answer).signature);
  const signed = await statement("enrolment", await enrolmentScope(plan), 0, identity);
  if (await verify(unhex(terms.registrar), signature, signed)) return signature;
  throw new MalformedError(`${transport.url} did not sign with the registrar's key`);
}
