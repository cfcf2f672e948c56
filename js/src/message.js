/**
 * The one message of a device, which shares its vector among the members of a committee.
 *
 *     identity (32), enrolment (64, with a registrar), key E (32), encrypted shares of members A + 1
 *     to m, degree proof, signature (64)
 *
 * A vector becomes C columns of rho elements. The polynomial of a column passes through them at
 * -1 .. -rho, and at 1 .. A through what the first A members expand from the secrets that they agree
 * on. The proof combines all columns and r more, the blinds, by coins that depend on the shares.
 */

import { concat, sha256, statement, u32, utf8 } from "./bytes.js";
import { MalformedError } from "./errors.js";
import { agreementKey, keystream } from "./keys.js";
import { checkAuthority } from "./committee.js";
import { combine, isField, lagrangeMatrix, pack, packedBytes, uniform } from "./field.js";

const SEED_BYTES = 32;
const SOUNDNESS_BITS = 48;

/** @typedef {import("./committee.js").Parameters} Parameters */
/** @typedef {import("./committee.js").Session} Session */
/** @typedef {{publicKey: Uint8Array, sign(bytes: Uint8Array): Promise<Uint8Array>}} Identity */

/** @param {number} from @param {number} to @returns {number[]} the numbers from the first on */
const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

/**
 * Return the numbers of columns (C), of blinds (r), and of elements of a column (rho).
 *
 * r is the least with p^r >= 2^48 (2 (m - A) + 1), which logarithms decide: for no prime below 2^26
 * and m up to 1,000 are they closer than 10^-13.
 *
 * @param {number} p @param {number} length @param {Parameters} parameters
 */
function sharing(p, length, { members, corrupt, threshold }) {
  const rho = threshold - corrupt;
  const bits = SOUNDNESS_BITS + Math.log2(2 * (members - corrupt) + 1);
  return { rho, columns: Math.ceil(length / rho), blinds: Math.ceil(bits / Math.log2(p)) };
}

/**
 * Return the size of a message.
 *
 * @param {number} p @param {number} length of the vector @param {Parameters} parameters
 * @param {number} enrolmentBytes 64 with a registrar, 0 without one
 */
export function messageBytes(p, length, parameters, enrolmentBytes) {
  const { columns, blinds } = sharing(p, length, parameters);
  const shares = (parameters.members - parameters.corrupt) * packedBytes(p, columns + blinds);
  return 128 + enrolmentBytes + shares + packedBytes(p, parameters.threshold * blinds);
}

/**
 * Return the message with a vector of elements modulo the prime p.
 *
 * @param {Session} session of `openSession`
 * @param {Identity} identity of `signingKey`
 * @param {Uint8Array} enrolment the registrar's signature, or no bytes
 * @param {{p: number, elements: ArrayLike<number>}} vector
 * @param {(nbytes: number) => Uint8Array} random the only source of chance
 * @returns {Promise<Uint8Array>}
 * @throws {RefusedError} if the session's authority did not make the committee
 * @throws {MalformedError} if the enrolment has a wrong size, or the vector does not fit
 */
export async function makeMessage(session, identity, enrolment, vector, random) {
  await checkAuthority(session);
  if (enrolment.length !== session.enrolmentBytes) {
    const got = `${session.enrolmentBytes} bytes, got ${enrolment.length}`;
    throw new MalformedError(`an enrolment has ${got}`);
  }
  checkVector(vector, session.committee.parameters);
  const { p, elements } = vector;
  const own = identity.publicKey;
  const label = await sha256(utf8("blindtally one-shot message v1\0"), session.committee.digest, own);
  const drawn = concat(random(SEED_BYTES), label, pack(p, elements));
  const pair = await agreementKey(await sha256(utf8("blindtally one-shot key v1\0"), drawn));
  const stream = await keystream(await sha256(utf8("blindtally one-shot stream v1\0"), drawn));
  const entries = session.committee.entries;
  const secrets = await Promise.all(entries.map(({ key }) => pair.agree(key)));
  const values = await nodeValues(session, vector, label, secrets, stream);
  const shares = await encryptedShares(session, p, label, secrets, values);
  const root = await merkleRoot(entries.length, shares);
  const coins = await sha256(utf8("blindtally one-shot coins v1\0"), label, pair.publicKey, root);
  const proof = await degreeProof(session, vector, values, coins);
  const payload = [pair.publicKey, root, await sha256(proof)];
  const signature = await identity.sign(await statement("one-shot message", label, 0, ...payload));
  return concat(own, enrolment, pair.publicKey, ...shares, proof, signature);
}

/** @param {{p: number, elements: ArrayLike<number>}} vector @param {Parameters} parameters */
function checkVector({ p, elements }, { members, corrupt, threshold }) {
  const points = members + threshold - corrupt;
  if (!isField(p, points)) {
    throw new MalformedError(`a prime from ${points + 1} to 2^26 expected, got ${p}`);
  }
  const isElement = (/** @type {number} */ x) => Number.isInteger(x) && x >= 0 && x < p;
  if (!elements.length || !Array.from(elements).every(isElement)) {
    throw new MalformedError(`a vector has elements from 0 to ${p - 1}, and one at least`);
  }
}

/**
 * Return what the keys of members `first` to `last` are derived from, one block for each.
 *
 * @param {string} name @param {Uint8Array} label @param {number} member @param {Uint8Array} secret
 * @param {number} count of blocks of 32 bytes
 */
async function derive(name, label, member, secret, count) {
  const info = concat(secret, utf8(`blindtally v1 ${name}\0`), u32(0), u32(member), label);
  return concat(...(await Promise.all(range(1, count + 1).map((i) => sha256(u32(i), info)))));
}

/**
 * Return the values of all polynomials at -1 .. -rho and 1 .. A, one row of C + r elements each.
 *
 * @param {Session} session @param {{p: number, elements: ArrayLike<number>}} vector
 * @param {Uint8Array} label @param {Uint8Array[]} secrets
 * @param {{read(nbytes: number): Promise<Uint8Array>}} stream of the blinds
 */
async function nodeValues(session, { p, elements }, label, secrets, stream) {
  const { parameters } = session.committee;
  const { rho, columns, blinds } = sharing(p, elements.length, parameters);
  const hidden = await uniform(p, rho * blinds, stream);
  const rows = range(0, rho).map((i) => {
    const row = range(0, columns).map((column) => elements[column * rho + i] ?? 0);
    return [...row, ...hidden.subarray(i * blinds, (i + 1) * blinds)];
  });
  const expanded = range(1, parameters.corrupt + 1).map(async (member) => {
    const key = await derive("one-shot expansion", label, member, secrets[member - 1], 1);
    return uniform(p, columns + blinds, await keystream(key.subarray(0, 16)));
  });
  return [...rows, ...(await Promise.all(expanded))];
}

/**
 * Return the packed shares of members A + 1 to m, each under the pad for its member.
 *
 * @param {Session} session @param {number} p @param {Uint8Array} label
 * @param {Uint8Array[]} secrets @param {ArrayLike<number>[]} values
 */
async function encryptedShares(session, p, label, secrets, values) {
  const { members, corrupt, threshold } = session.committee.parameters;
  const nodes = [...range(1, threshold - corrupt + 1).map((i) => -i), ...range(1, corrupt + 1)];
  const sent = range(corrupt + 1, members + 1);
  const weights = lagrangeMatrix(p, nodes, sent);
  const encrypt = async (/** @type {number} */ member, /** @type {number} */ i) => {
    const share = pack(p, combine(p, weights[i], values));
    const count = Math.ceil(share.length / 32);
    const pad = await derive("one-shot share", label, member, secrets[member - 1], count);
    return share.map((byte, place) => byte ^ pad[place]);
  };
  return Promise.all(sent.map(encrypt));
}

/** @param {number} members @param {Uint8Array[]} shares of the last members; others have no bytes */
async function merkleRoot(members, shares) {
  const empty = range(shares.length, members).map(() => new Uint8Array());
  let level = await Promise.all([...empty, ...shares].map((leaf) => sha256(Uint8Array.of(0), leaf)));
  while (level.length & (level.length - 1)) level.push(new Uint8Array(32));
  while (level.length > 1) {
    const parents = range(0, level.length / 2);
    const join = (/** @type {number} */ i) =>
      sha256(Uint8Array.of(1), level[2 * i], level[2 * i + 1]);
    level = await Promise.all(parents.map(join));
  }
  return level[0];
}

/**
 * Return the packed combinations of all columns at each node, plus the blinds there.
 *
 * @param {Session} session @param {{p: number, elements: ArrayLike<number>}} vector
 * @param {ArrayLike<number>[]} values @param {Uint8Array} coinKey
 */
async function degreeProof(session, { p, elements }, values, coinKey) {
  const { columns, blinds } = sharing(p, elements.length, session.committee.parameters);
  const bytes = await (await keystream(coinKey)).read(8 * columns * blinds);
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const coin = (/** @type {number} */ i) =>
    ((words.getUint32(8 * i + 4, true) % p) * (2 ** 32 % p) + words.getUint32(8 * i, true)) % p;
  const coins = range(0, columns * blinds).map(coin);
  const tau = values.flatMap((row) =>
    range(0, blinds).map((b) => {
      let sum = row[columns + b];
      for (let k = 0; k < columns; k++) sum = (sum + row[k] * coins[k * blinds + b]) % p;
      return sum;
    }),
  );
  return pack(p, tau);
}
