/**
 * Keys: Ed25519 signatures, X25519 agreements, and AES-CTR streams, all of WebCrypto.
 *
 * WebCrypto imports a private key of 32 bytes only with the header of its format, PKCS #8.
 */

import { concat, hex, u32, unhex } from "./bytes.js";
import { MalformedError } from "./errors.js";

const KEY_BYTES = 32;
const SIGNATURE_BYTES = 64;
const BLOCK_BYTES = 16; // of AES
const MIN_BLOCKS = 64; // of a call, which takes longer than a kilobyte
const PKCS8_HEADERS = {
  X25519: unhex("302e020100300506032b656e04220420"),
  Ed25519: unhex("302e020100300506032b657004220420"),
};
// Points whose order divides 8, but for the top bit: 0, 1, p - 1, p, p + 1 and two coordinates.
const LOW_ORDER = {
  X25519: lowOrder(
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
  ),
  Ed25519: lowOrder(
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
  ),
};

/** @param {...string} coordinates @returns {Set<string>} */
function lowOrder(...coordinates) {
  const small = ["00", "01"].map((first) => first + "00".repeat(31));
  const nearP = ["ec", "ed", "ee"].map((first) => `${first}${"ff".repeat(30)}7f`);
  return new Set([...small, ...nearP, ...coordinates]);
}

/** @param {"X25519" | "Ed25519"} name @param {Uint8Array} key @returns {boolean} */
function isOfLowOrder(name, key) {
  const withoutTopBit = Uint8Array.from(key);
  withoutTopBit[KEY_BYTES - 1] &= 127;
  return LOW_ORDER[name].has(hex(withoutTopBit));
}

/**
 * Check an X25519 public key that another party sent.
 *
 * @param {Uint8Array} key
 * @throws {MalformedError} if it is not 32 bytes, uses the unused bit, or is of low order
 */
export function checkPublicKey(key) {
  if (key.length !== KEY_BYTES) {
    throw new MalformedError(`a public key has ${KEY_BYTES} bytes, got ${key.length}`);
  }
  if (key[KEY_BYTES - 1] >= 128) {
    throw new MalformedError("a public key has its unused bit set: it disguises another key");
  }
  if (isOfLowOrder("X25519", key)) {
    throw new MalformedError("a public key is of low order: it agrees on nothing secret");
  }
}

/**
 * Check an Ed25519 public key that a participant claims as its identity.
 *
 * @param {Uint8Array} identity
 * @throws {MalformedError} if it is not 32 bytes, or of low order
 */
export function checkIdentity(identity) {
  if (identity.length !== KEY_BYTES) {
    throw new MalformedError(`an identity has ${KEY_BYTES} bytes, got ${identity.length}`);
  }
  if (isOfLowOrder("Ed25519", identity)) {
    throw new MalformedError("an identity is of low order: its signatures prove nothing");
  }
}

/**
 * Import a private key, and return it with its public half.
 *
 * @param {"X25519" | "Ed25519"} name
 * @param {"sign" | "deriveBits"} use
 * @param {Uint8Array} secret
 */
async function importSecret(name, use, secret) {
  if (secret.length !== KEY_BYTES) {
    throw new MalformedError(`a secret has ${KEY_BYTES} bytes, got ${secret.length}`);
  }
  const header = PKCS8_HEADERS[name];
  const key = await crypto.subtle.importKey("pkcs8", concat(header, secret), name, true, [use]);
  const { x } = await crypto.subtle.exportKey("jwk", key);
  const text = atob(String(x).replaceAll("-", "+").replaceAll("_", "/"));
  return { key, publicKey: Uint8Array.from(text, (letter) => letter.charCodeAt(0)) };
}

/**
 * Return the Ed25519 key pair of a secret.
 *
 * @param {Uint8Array} secret 32 bytes
 * @returns {Promise<{publicKey: Uint8Array, sign(bytes: Uint8Array): Promise<Uint8Array>}>}
 *   signatures have 64 bytes
 * @throws {MalformedError} if the secret has another size
 */
export async function signingKey(secret) {
  const { key, publicKey } = await importSecret("Ed25519", "sign", secret);
  const sign = async (/** @type {Uint8Array} */ bytes) =>
    new Uint8Array(await crypto.subtle.sign("Ed25519", key, bytes));
  return { publicKey, sign };
}

/**
 * Return the X25519 key pair of a secret, and the function that agrees with another party's key.
 *
 * @param {Uint8Array} secret 32 bytes
 * @returns {Promise<{publicKey: Uint8Array, agree(key: Uint8Array): Promise<Uint8Array>}>}
 *   `agree` returns 32 bytes, only to derive keys from; it throws a MalformedError for a key that
 *   `checkPublicKey` refuses
 * @throws {MalformedError} if the secret has another size
 */
export async function agreementKey(secret) {
  const { key, publicKey } = await importSecret("X25519", "deriveBits", secret);
  const agree = async (/** @type {Uint8Array} */ other) => {
    checkPublicKey(other);
    const theirs = await crypto.subtle.importKey("raw", other, "X25519", false, []);
    const agreement = { name: "X25519", public: theirs };
    const agreed = new Uint8Array(await crypto.subtle.deriveBits(agreement, key, 256));
    if (!agreed.some(Boolean)) {
      throw new MalformedError("a public key is of low order: it agrees on nothing secret");
    }
    return agreed;
  };
  return { publicKey, agree };
}

/**
 * Return whether `signature` is that of `publicKey` over `bytes`; false for any wrong size.
 *
 * @param {Uint8Array} publicKey @param {Uint8Array} signature @param {Uint8Array} bytes
 * @returns {Promise<boolean>}
 */
export async function verify(publicKey, signature, bytes) {
  if (publicKey.length !== KEY_BYTES || signature.length !== SIGNATURE_BYTES) {
    return false;
  }
  try {
    const key = await crypto.subtle.importKey("raw", publicKey, "Ed25519", false, ["verify"]);
    return await crypto.subtle.verify("Ed25519", key, signature, bytes);
  } catch {
    return false; // no point of the curve
  }
}

/**
 * Return the AES-CTR stream under a key, from counter 0.
 *
 * @param {Uint8Array} key 16 or 32 bytes
 * @returns {Promise<{read(nbytes: number): Promise<Uint8Array>}>} `read` returns the next bytes;
 *   await each call before the next
 */
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
