/** Keys of WebCrypto: Ed25519 signatures, X25519 agreements, and AES-CTR streams. */

import { ceil, max } from "./arithmetic.js";
import { KEY, bytesOf, concat, hex, subtle, u32, unhex } from "./bytes.js";
import { must } from "./errors.js";

/** @import { Bytes } from "./bytes.js" */
/** @typedef {Awaited<ReturnType<typeof signingKey>>} SigningKey */
/** @typedef {(nbytes: number) => Promise<Bytes>} Stream await each read before the next */

const MIN_BLOCKS = 64; // of a call to AES, which takes longer than a kilobyte

/** Check an Ed25519 public key that a participant claims. @type {(identity: Bytes) => void} */
export const checkIdentity = (identity) => must(KEY.test(hex(identity)));

/** Return the key pair of a secret, in its format PKCS #8, which has a code for the name. @type
 * {(name: string, code: string, use: KeyUsage, secret: Bytes) => Promise<[CryptoKey, Bytes]>} */
async function importSecret(name, code, use, secret) {
  const header = unhex(`302e020100300506032b65${code}04220420`);
  const key = await subtle.importKey("pkcs8", concat(header, secret), name, true, [use]);
  const { x } = /** @type {{x: string}} */ (await subtle.exportKey("jwk", key));
  const text = atob(x.replaceAll("-", "+").replaceAll("_", "/"));
  return [key, Uint8Array.from(text, (letter) => letter.charCodeAt(0))];
}

/** Return the Ed25519 key pair of a secret of 32 bytes; signatures have 64. @param {Bytes} secret
 * */
export async function signingKey(secret) {
  const [key, publicKey] = await importSecret("Ed25519", "70", "sign", secret);
  const sign = (/** @type {Bytes} */ bytes) => bytesOf(subtle.sign("Ed25519", key, bytes));
  return { publicKey, sign };
}

/** Return the X25519 key pair of a secret of 32 bytes. It agrees on 32 bytes with a public key, or
 * throws a MalformedError if these would be no secret. @param {Bytes} secret */
export async function agreementKey(secret) {
  const [key, publicKey] = await importSecret("X25519", "6e", "deriveBits", secret);
  const agree = async (/** @type {Bytes} */ other) => {
    must(other.length === 32 && other[31] < 128); // the last bit is unused
    const theirs = await subtle.importKey("raw", other, "X25519", false, []);
    const agreement = { name: "X25519", public: theirs };
    // A point of low order agrees on nothing.
    const agreed = await bytesOf(subtle.deriveBits(agreement, key, 256).catch(() => u32(0)));
    must(agreed.some(Boolean));
    return agreed;
  };
  return { publicKey, agree };
}

/** Return whether a signature is that of a public key over `bytes`. @type {(key: Bytes, signature:
 * Bytes, bytes: Bytes) => Promise<boolean>} */
export async function verify(key, signature, bytes) {
  try {
    const imported = await subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
    return await subtle.verify("Ed25519", imported, signature, bytes);
  } catch {
    return false; // no point of the curve
  }
}

/** Return the AES-CTR stream under a key of 16 or 32 bytes, from counter 0. @type {(key: Bytes) =>
 * Promise<Stream>} */
export async function keystream(key) {
  const aes = await subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  let held = new Uint8Array();
  let blocks = 0; // before those to come
  return async (nbytes) => {
    if (nbytes > held.length) {
      const counter = concat(new Uint8Array(12), u32(blocks));
      const missing = max(MIN_BLOCKS, ceil((nbytes - held.length) / 16));
      const mode = { name: "AES-CTR", counter, length: 64 };
      const fresh = await bytesOf(subtle.encrypt(mode, aes, new Uint8Array(missing * 16)));
      held = concat(held, fresh);
      blocks += missing;
    }
    const next = held.subarray(0, nbytes);
    held = held.subarray(nbytes);
    return next;
  };
}
