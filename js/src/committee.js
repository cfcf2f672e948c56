/**
 * Committees: their numbers, which follow from a plan's terms, their bytes, and who made them.
 *
 *     entry      identity (32), X25519 key (32), the identity's signature over the key (64)
 *     committee  plan digest (32), number, m, A, D, t (u32 each), entries, the registrar's
 *                signature (64, or none)
 *
 * Of m members, A may collude with the server, D may drop out, and t sums give the total. More than
 * A of those drawn from volunteers collude with probability 2^-sigma at most: logarithms decide
 * here what integers do elsewhere. Where an error of 10^-9 mattered, the device would refuse.
 */

import { areDistinct, floor, log2, max, min, range } from "./arithmetic.js";
import { hex, statement, taggedHash, unhex } from "./bytes.js";
import { checked, must, refuse } from "./errors.js";
import { MAX_PRIME, suitablePrime } from "./field.js";
import { checkIdentity, verify } from "./keys.js";

/** @import { Bytes } from "./bytes.js" */

/** @typedef {ReturnType<typeof numbersOf>} Parameters */
/** @typedef {ReturnType<typeof readCommittee>} Committee */
/** A committee, and the keys of those who must have signed it: of operators, each one its own key.
 * @typedef {{committee: Committee, operators?: string[], registrar?: string}} Session */

const RATE_TOLERANCE = 1e-14; // 0.2 of 1,000 counts as 200
const HEAD_BYTES = 52;
const ENTRY_BYTES = 128;

/** Return the numbers m, A, D and t of a committee that can be. @param {number} members @param
 * {number} corrupt @param {number} dropouts @param {number} [threshold] */
function numbersOf(members, corrupt, dropouts, threshold = members - dropouts - corrupt) {
  must(members > corrupt + 2 * dropouts && threshold > corrupt
    && threshold <= members - dropouts - corrupt);
  return { members, corrupt, dropouts, threshold };
}

/** Return the numbers of the committee with all members that a plan's terms name: of operators, or
 * of volunteers. Throws a MalformedError if none can be. @type {(terms: any) => Parameters} */
export function committeeParameters({ volunteers, size, members, corrupt, dropout, sigma, eta }) {
  const people = volunteers ?? members.length;
  const [colluding, missing] = [corrupt, dropout].map((rate) =>
    floor((rate + RATE_TOLERANCE) * people));
  if (!volunteers) return numbersOf(people, colluding, missing);
  const logs = [0]; // of factorials
  for (let n = 1; n <= volunteers; n++) logs.push(logs[n - 1] + log2(n));
  const choices = (/** @type {number} */ n, /** @type {number} */ k) =>
    k > n ? -Infinity : logs[n] - logs[k] - logs[n - k];
  // The smallest number of marked members that a draw exceeds with probability 2^-exponent.
  const drawn = (/** @type {number} */ marked, /** @type {number} */ exponent) => {
    let number = min(marked, size);
    for (let above = 0; number > 0; number--) {
      const draws = choices(marked, number) + choices(volunteers - marked, size - number);
      above += 2 ** (draws - choices(volunteers, size));
      if (above > 2 ** -exponent) break;
    }
    return number;
  };
  return numbersOf(size, drawn(colluding, sigma), drawn(missing, eta));
}

/** Return the smallest prime above `largest` that the committee of a plan's terms can share. @type
 * {(terms: any, largest: number) => number} */
export function primeAbove(terms, largest) {
  const { members, corrupt, threshold } = committeeParameters(terms.committee);
  const prime = suitablePrime(max(largest, members + threshold - corrupt) + 1);
  return checked(prime, 2, MAX_PRIME);
}

/** Return the parts of a committee's bytes; throws a MalformedError if they are of none. @param
 * {Bytes} bytes */
export function readCommittee(bytes) {
  const members = floor((bytes.length - HEAD_BYTES) / ENTRY_BYTES);
  const end = HEAD_BYTES + members * ENTRY_BYTES;
  must(members > 0 && (bytes.length - end) % 64 === 0);
  const head = new DataView(bytes.buffer, bytes.byteOffset);
  const [number, m, corrupt, dropouts, threshold] = range(5).map((i) => head.getUint32(32 + 4 * i));
  const entries = range(members).map((i) => {
    const entry = bytes.subarray(HEAD_BYTES + i * ENTRY_BYTES);
    const identity = entry.subarray(0, 32);
    checkIdentity(identity);
    return { identity, key: entry.subarray(32, 64), signature: entry.subarray(64, ENTRY_BYTES) };
  });
  // A member may choose the bytes of another's identity as its key.
  const keys = entries.flatMap(({ identity, key }) => [hex(identity), hex(key) + 1]);
  must(m === members && areDistinct(keys));
  const signed = bytes.subarray(0, end);
  return {
    planDigest: bytes.subarray(0, 32), number, entries, signed, signature: bytes.subarray(end),
    parameters: numbersOf(m, corrupt, dropouts, threshold),
    digest: taggedHash("one-shot committee v1", signed),
  };
}

/** Return the facts of the sum of a one-shot plan, which the policy accepts, with the committee
 * that the server shows. Throws a RefusedError if the plan's terms do not allow it, and a
 * MalformedError if its bytes are of none. @type {(read: {plan: any, digest: Bytes}, bytes: Bytes)
 * => Session} */
export function openSession({ plan, digest }, bytes) {
  const committee = readCommittee(bytes);
  const { committee: terms, registrar } = plan.terms;
  const whole = committeeParameters(terms);
  const { members, corrupt, dropouts, threshold } = committee.parameters;
  const isAllowed = terms.volunteers ? members === terms.size : members <= (terms.size ?? members);
  const shown = [corrupt, threshold, members - dropouts, committee.number, committee.planDigest];
  const expected = [whole.corrupt, whole.threshold, whole.members - whole.dropouts, 0, digest];
  const isExpected = isAllowed && `${shown}` === `${expected}`;
  if (!isExpected) refuse("terms", "shows the committee of another plan");
  return { committee, registrar: terms.volunteers && registrar, operators: terms.members };
}

/** Check that the registrar, or each operator, has signed a committee; throws a RefusedError
 * otherwise. @type {(session: Session) => Promise<void>} */
export async function checkAuthority({ committee, operators, registrar }) {
  const { planDigest, number, entries, signed, signature } = committee;
  /** @type {(name: string, payload: Bytes, signer: Bytes, its: Bytes) => Promise<boolean>} */
  const isSigned = (name, payload, signer, its) =>
    verify(signer, its, statement(`one-shot ${name}`, planDigest, number, payload));
  const checks = registrar
    ? [isSigned("committee", signed, unhex(registrar), signature)]
    : entries.map(({ identity, key, signature: its }) =>
      operators?.includes(hex(identity)) && isSigned("member key", key, identity, its));
  const areSigned = (await Promise.all(checks)).every(Boolean);
  if (!areSigned) refuse("terms", "shows a committee without signatures");
}
