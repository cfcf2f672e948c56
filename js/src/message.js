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

import { big, ceil, isPrime, isWhole, log2, range } from "./arithmetic.js";
import { concat, prefix, sha256, statement, taggedHash, u32 } from "./bytes.js";
import { checkAuthority } from "./committee.js";
import { must } from "./errors.js";
import { MAX_PRIME, combine, lagrangeMatrix, pack, packedBytes } from "./field.js";
import { draw, uniform } from "./hashing.js";
import { agreementKey, keystream } from "./keys.js";

const SOUNDNESS_BITS = 48;

/** @import { Bytes } from "./bytes.js" */
/** @import { Parameters, Session } from "./committee.js" */
/** @import { SigningKey } from "./keys.js" */

/** Return rho, C and r, the least with p^r >= 2^48 (2 (m - A) + 1): for no prime below 2^26 and m
 * up to 1,000 are the logarithms of both closer than 10^-13. @param {number} p @param {number}
 * length @param {Parameters} parameters */
function sharing(p, length, { members, corrupt, threshold }) {
  const rho = threshold - corrupt;
  const bits = SOUNDNESS_BITS + log2(2 * (members - corrupt) + 1);
  return { rho, columns: ceil(length / rho), blinds: ceil(bits / log2(p)) };
}

/** Return the size of a message of `length` elements and an enrolment of 64 bytes, or none. @type
 * {(p: number, length: number, parameters: Parameters, enrolment: number) => number} */
export function messageBytes(p, length, parameters, enrolment) {
  const { columns, blinds } = sharing(p, length, parameters);
  const shares = (parameters.members - parameters.corrupt) * packedBytes(p, columns + blinds);
  return 128 + enrolment + shares + packedBytes(p, parameters.threshold * blinds);
}

/** Return the message with a vector; `random(32)` is its only chance. Throws a RefusedError if the
 * authority did not make the committee, and a MalformedError if it or the vector cannot be. @type
 * {(session: Session, identity: SigningKey, enrolment: Bytes, vector: {p: number, elements:
 * number[]}, random: (nbytes: number) => Bytes) => Promise<Bytes>} */
export async function makeMessage(session, identity, enrolment, { p, elements }, random) {
  const { parameters, entries, digest } = session.committee;
  const { members, corrupt, threshold } = parameters;
  const { rho, columns, blinds } = sharing(p, elements.length, parameters);
  must(p > members + rho && p < MAX_PRIME && isPrime(p));
  must(elements.length && elements.every((x) => isWhole(x) && x >= 0 && x < p));

  const own = identity.publicKey;
  const label = taggedHash("one-shot message v1", digest, own);
  const drawn = concat(random(32), label, pack(p, elements));
  const expand = async (/** @type {Bytes} */ key, /** @type {number} */ count) =>
    uniform(p, count, await keystream(key));
  const pair = await agreementKey(taggedHash("one-shot key v1", drawn));
  const [hidden, , ...secrets] = await Promise.all([
    expand(taggedHash("one-shot stream v1", drawn), rho * blinds), checkAuthority(session),
    ...entries.map(({ key }) => pair.agree(key)),
  ]);
  /** @type {(name: string, member: number, blocks: number) => Bytes} */
  const derive = (name, member, blocks) => {
    const purpose = [prefix(`v1 ${name}`), u32(0), u32(member), label];
    const info = concat(secrets[member - 1], ...purpose);
    return concat(...range(blocks, 1).map((i) => sha256(u32(i), info)));
  };

  // The values of all polynomials at -1 .. -rho and 1 .. A, a row of C + r for each.
  const rows = range(rho).map((i) => [
    ...range(columns).map((column) => elements[column * rho + i] ?? 0),
    ...hidden.slice(i * blinds, (i + 1) * blinds),
  ]);
  const first = range(corrupt, 1);
  const expanded = first.map((member) =>
    expand(derive("one-shot expansion", member, 1).subarray(0, 16), columns + blinds));
  const values = [...rows, ...(await Promise.all(expanded))];

  const sent = range(members - corrupt, corrupt + 1);
  const weights = lagrangeMatrix(p, [...range(rho).map((i) => -1 - i), ...first], sent);
  const shares = sent.map((member, i) => {
    const share = pack(p, combine(p, weights[i], values));
    const pad = derive("one-shot share", member, ceil(share.length / 32));
    return share.map((byte, place) => byte ^ pad[place]);
  });
  const root = merkleRoot([...first.map(() => new Uint8Array()), ...shares]);
  const read = await keystream(taggedHash("one-shot coins v1", label, pair.publicKey, root));
  const coins = await draw(read, columns * blinds, p, (word) => Number(word % big(p)));
  const proof = pack(p, values.flatMap((row) => range(blinds).map((b) => {
    let combined = row[columns + b];
    for (let k = 0; k < columns; k++) combined = (combined + row[k] * coins[k * blinds + b]) % p;
    return combined;
  })));
  const payload = [pair.publicKey, root, sha256(proof)];
  const signature = await identity.sign(statement("one-shot message", label, 0, ...payload));
  return concat(own, enrolment, pair.publicKey, ...shares, proof, signature);
}

/** Return the Merkle root of leaves. @type {(leaves: Bytes[]) => Bytes} */
function merkleRoot(leaves) {
  let level = leaves.map((leaf) => sha256(Uint8Array.of(0), leaf));
  while (level.length & (level.length - 1)) level.push(new Uint8Array(32));
  for (let half; (half = level.length / 2) >= 1; ) {
    level = range(half).map((i) => sha256(Uint8Array.of(1), level[2 * i], level[2 * i + 1]));
  }
  return level[0];
}
