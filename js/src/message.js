/**
 * The one message of a device, which shares its vector among the members of a committee.
 *
 *     identity (32), enrolment (64, with a registrar), key E (32), encrypted shares of members
 *     A + 1 to m, degree proof, signature (64)
 *
 * A vector becomes C columns of rho elements. The polynomial of a column passes through them at
 * -1 .. -rho, and at 1 .. A through what the first A members expand from the secrets that they
 * agree on. The proof combines the columns and r more, the blinds, by coins of the sent shares.
 */

import { concat, sha256, statement, u32, utf8 } from "./bytes.js";
import { checkAuthority } from "./committee.js";
import { MalformedError } from "./errors.js";
import { combine, isField, lagrangeMatrix, pack, packedBytes, uniform } from "./field.js";
import { agreementKey, keystream } from "./keys.js";

const SEED_BYTES = 32;
const SOUNDNESS_BITS = 48;

/**
 * @typedef {import("./committee.js").Parameters} Parameters
 * @typedef {import("./committee.js").Session} Session
 * @typedef {{p: number, elements: ArrayLike<number>}} Vector of elements modulo a prime
 */

/** Return the numbers of a range without its end. @type {(from: number, to: number) => number[]} */
const range = (from, to) => Array.from({ length: to - from }, (_, i) => from + i);

/** Return rho, C and r, the least with p^r >= 2^48 (2 (m - A) + 1): for no prime below 2^26 and m
 * up to 1,000 are the logarithms of both closer than 10^-13.
 * @type {(p: number, length: number, parameters: Parameters) =>
 *   {rho: number, columns: number, blinds: number}} */
function sharing(p, length, { members, corrupt, threshold }) {
  const rho = threshold - corrupt;
  const bits = SOUNDNESS_BITS + Math.log2(2 * (members - corrupt) + 1);
  return { rho, columns: Math.ceil(length / rho), blinds: Math.ceil(bits / Math.log2(p)) };
}

/** Return the size of a message of `length` elements; an enrolment has 64 bytes, or 0 without a
 * registrar. @type {(p: number, length: number, parameters: Parameters, enrolment: number) =>
 *   number} */
export function messageBytes(p, length, parameters, enrolment) {
  const { columns, blinds } = sharing(p, length, parameters);
  const shares = (parameters.members - parameters.corrupt) * packedBytes(p, columns + blinds);
  return 128 + enrolment + shares + packedBytes(p, parameters.threshold * blinds);
}

/** Return the message with a vector; `random(32)` is its only chance. Throws a RefusedError if the
 * authority did not make the committee, and a MalformedError if enrolment or vector do not fit.
 * @type {(session: Session, identity: import("./keys.js").SigningKey, enrolment: Uint8Array,
 *   vector: Vector, random: (nbytes: number) => Uint8Array) => Promise<Uint8Array>} */
export async function makeMessage(session, identity, enrolment, vector, random) {
  await checkAuthority(session);
  const { committee, enrolmentBytes: size } = session;
  if (enrolment.length !== size) {
    throw new MalformedError(`an enrolment has ${size} bytes, got ${enrolment.length}`);
  }
  checkVector(vector, committee.parameters);
  const own = identity.publicKey;
  const label = await sha256(utf8("blindtally one-shot message v1\0"), committee.digest, own);
  const drawn = concat(random(SEED_BYTES), label, pack(vector.p, vector.elements));
  const pair = await agreementKey(await sha256(utf8("blindtally one-shot key v1\0"), drawn));
  const stream = await keystream(await sha256(utf8("blindtally one-shot stream v1\0"), drawn));
  const secrets = await Promise.all(committee.entries.map(({ key }) => pair.agree(key)));
  const values = await nodeValues(committee.parameters, vector, label, secrets, stream);
  const shares = await encryptedShares(committee.parameters, vector.p, label, secrets, values);
  const root = await merkleRoot(committee.parameters, shares);
  const coins = await sha256(utf8("blindtally one-shot coins v1\0"), label, pair.publicKey, root);
  const proof = await degreeProof(committee.parameters, vector, values, coins);
  const payload = [pair.publicKey, root, await sha256(proof)];
  const signature = await identity.sign(await statement("one-shot message", label, 0, ...payload));
  return concat(own, enrolment, pair.publicKey, ...shares, proof, signature);
}

/** @type {(vector: Vector, parameters: Parameters) => void} */
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

/** Return blocks of 32 bytes that are derived from the secret with a member.
 * @type {(name: string, label: Uint8Array, member: number, secret: Uint8Array, blocks: number) =>
 *   Promise<Uint8Array>} */
async function derive(name, label, member, secret, blocks) {
  const info = concat(secret, utf8(`blindtally v1 ${name}\0`), u32(0), u32(member), label);
  return concat(...(await Promise.all(range(1, blocks + 1).map((i) => sha256(u32(i), info)))));
}

/** Return the values of all polynomials at -1 .. -rho and 1 .. A, a row of C + r for each.
 * @type {(parameters: Parameters, vector: Vector, label: Uint8Array, secrets: Uint8Array[],
 *   stream: import("./keys.js").Stream) => Promise<ArrayLike<number>[]>} */
async function nodeValues(parameters, { p, elements }, label, secrets, stream) {
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

/** Return the packed shares of members A + 1 to m, each under the pad for its member.
 * @type {(parameters: Parameters, p: number, label: Uint8Array, secrets: Uint8Array[],
 *   values: ArrayLike<number>[]) => Promise<Uint8Array[]>} */
async function encryptedShares({ members, corrupt, threshold }, p, label, secrets, values) {
  const nodes = [...range(1, threshold - corrupt + 1).map((i) => -i), ...range(1, corrupt + 1)];
  const sent = range(corrupt + 1, members + 1);
  const weights = lagrangeMatrix(p, nodes, sent);
  const encrypt = async (/** @type {number} */ member, /** @type {number} */ i) => {
    const share = pack(p, combine(p, weights[i], values));
    const blocks = Math.ceil(share.length / 32);
    const pad = await derive("one-shot share", label, member, secrets[member - 1], blocks);
    return share.map((byte, place) => byte ^ pad[place]);
  };
  return Promise.all(sent.map(encrypt));
}

/** Return the Merkle root of the shares of members A + 1 to m, after A leaves of no bytes.
 * @type {(parameters: Parameters, shares: Uint8Array[]) => Promise<Uint8Array>} */
async function merkleRoot({ corrupt }, shares) {
  const leaves = [...range(0, corrupt).map(() => new Uint8Array()), ...shares];
  let level = await Promise.all(leaves.map((leaf) => sha256(Uint8Array.of(0), leaf)));
  while (level.length & (level.length - 1)) level.push(new Uint8Array(32));
  while (level.length > 1) {
    const below = level;
    const parent = (/** @type {number} */ i) =>
      sha256(Uint8Array.of(1), below[2 * i], below[2 * i + 1]);
    level = await Promise.all(range(0, below.length / 2).map(parent));
  }
  return level[0];
}

/** Return the packed sums at each node of the blinds there and all columns times their coins.
 * @type {(parameters: Parameters, vector: Vector, values: ArrayLike<number>[],
 *   coinKey: Uint8Array) => Promise<Uint8Array>} */
async function degreeProof(parameters, { p, elements }, values, coinKey) {
  const { columns, blinds } = sharing(p, elements.length, parameters);
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
