/**
 * Keys of WebCrypto: Ed25519 signatures, X25519 agreements, and AES-CTR streams.
 *
 * A private key of 32 bytes is imported with the header of its format, PKCS #8.
 */

import { concat, hex, u32, unhex } from "./bytes.js";
import { MalformedError } from "./errors.js";

/** @typedef {{publicKey: Uint8Array, sign(bytes: Uint8Array): Promise<Uint8Array>}} SigningKey */
/** @typedef {{publicKey: Uint8Array, agree(key: Uint8Array): Promise<Uint8Array>}} AgreementKey */
/** @typedef {{read(nbytes: number): Promise<Uint8Array>}} Stream await each read before the next */

const KEY_BYTES = 32;
const SIGNATURE_BYTES = 64;
const BLOCK_BYTES = 16; // of AES
const MIN_BLOCKS = 64; // of a call, which takes longer than a kilobyte
const HEADERS = {
  X25519: unhex("302e020100300506032b656e04220420"),
  Ed25519: unhex("302e020100300506032b657004220420"),
};
// Coordinates, without the top bit, of points whose order divides 8: 0, 1, p - 1, p, p + 1 and two.
const SMALL = ["00", "01"].map((byte) => byte + "00".repeat(31));
const NEAR_P = ["ec", "ed", "ee"].map((byte) => `${byte}${"ff".repeat(30)}7f`);
const LOW_ORDER = {
  X25519: new Set([
    ...[...SMALL, ...NEAR_P],
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
  ]),
  Ed25519: new Set([
    ...[...SMALL, ...NEAR_P],
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  ]),
};

/** @type {(name: "X25519" | "Ed25519", key: Uint8Array) => boolean} */
const isOfLowOrder = (name, key) =>
  LOW_ORDER[name].has(hex(key.map((byte, i) => (i === KEY_BYTES - 1 ? byte & 127 : byte))));

/** Check an X25519 public key; throws a MalformedError if it is not 32 bytes, uses the unused bit,
 * or is of low order. @type {(key: Uint8Array) => void} */
export function checkPublicKey(key) {
  const fault =
    (key.length !== KEY_BYTES && `has ${KEY_BYTES} bytes, got ${key.length}`) ||
    (key[KEY_BYTES - 1] >= 128 && "has its unused bit set: it disguises another key") ||
    (isOfLowOrder("X25519", key) && "is of low order: it agrees on nothing secret");
  if (fault) throw new MalformedError(`a public key ${fault}`);
}

/** Check an Ed25519 public key that a participant claims; throws a MalformedError if it is not 32
 * bytes, or of low order. @type {(identity: Uint8Array) => void} */
export function checkIdentity(identity) {
  const fault =
    (identity.length !== KEY_BYTES && `has ${KEY_BYTES} bytes, got ${identity.length}`) ||
    (isOfLowOrder("Ed25519", identity) && "is of low order: its signatures prove nothing");
  if (fault) throw new MalformedError(`an identity ${fault}`);
}

/** @type {(name: "X25519" | "Ed25519", use: "sign" | "deriveBits", secret: Uint8Array) =>
 *   Promise<{key: CryptoKey, publicKey: Uint8Array}>} */
async function importSecret(name, use, secret) {
  if (secret.length !== KEY_BYTES) throw new MalformedError(`a secret has ${KEY_BYTES} bytes`);
  const format = concat(HEADERS[name], secret);
  const key = await crypto.subtle.importKey("pkcs8", format, name, true, [use]);
  const { x } = await crypto.subtle.exportKey("jwk", key);
  const text = atob(String(x).replaceAll("-", "+").replaceAll("_", "/"));
  return { key, publicKey: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
}

/** Return the Ed25519 key pair of a secret of 32 bytes; signatures have 64.
 * @type {(secret: Uint8Array) => Promise<SigningKey>} */
export async function signingKey(secret) {
  const { key, publicKey } = await importSecret("Ed25519", "sign", secret);
  const sign = async (/** @type {Uint8Array} */ bytes) =>
    new Uint8Array(await crypto.subtle.sign("Ed25519", key, bytes));
  return { publicKey, sign };
}

/** Return the X25519 key pair of a secret of 32 bytes; it agrees on 32 bytes, from which keys are
 * derived, or throws the error of `checkPublicKey`.
 * @type {(secret: Uint8Array) => Promise<AgreementKey>} */
export async function agreementKey(secret) {
  const { key, publicKey } = await importSecret("X25519", "deriveBits", secret);
  const agree = async (/** @type {Uint8Array} */ other) => {
    checkPublicKey(other); // others agree on zero
    const theirs = await crypto.subtle.importKey("raw", other, "X25519", false, []);
    const agreement = { name: "X25519", public: theirs };
    return new Uint8Array(await crypto.subtle.deriveBits(agreement, key, 256));
  };
  return { publicKey, agree };
}

/** Return whether a signature is that of a public key over `bytes`.
 * @type {(key: Uint8Array, signature: Uint8Array, bytes: Uint8Array) => Promise<boolean>} */
export async function verify(key, signature, bytes) {
  if (key.length !== KEY_BYTES || signature.length !== SIGNATURE_BYTES) return false;
  try {
    const imported = await crypto.subtle.importKey("raw", key, "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", imported, signature, bytes);
  } catch {
    return false; // no point of the curve
  }
}

/** Return the AES-CTR stream under a key of 16 or 32 bytes, from counter 0.
 * @type {(key: Uint8Array) => Promise<Stream>} */
export async function keystream(key) {
  const aes = await crypto.subtle.importKey("raw", key, "AES-CTR", false, ["encrypt"]);
  let held = new Uint8Array();
  let blocks = 0; // before those to come
  const read = async (/** @type {number} */ nbytes) => {
    if (nbytes > held.length) {
      const counter = concat(new Uint8Array(12), u32(blocks));
      const missing = Math.max(MIN_BLOCKS, Math.ceil((nbytes - held.length) / BLOCK_BYTES));
      const mode = { name: "AES-CTR", counter, length: 64 };
      const fresh = await crypto.subtle.encrypt(mode, aes, new Uint8Array(missing * BLOCK_BYTES));
      held = concat(held, new Uint8Array(fresh));
      blocks += missing;
    }
    const next = held.subarray(0, nbytes);
    held = held.subarray(nbytes);
    return next;
  };
  return { read };
}
