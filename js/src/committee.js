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

import { equal, hex, sha256, statement, unhex, utf8 } from "./bytes.js";
import { MalformedError, RefusedError } from "./errors.js";
import { checkIdentity, checkPublicKey, verify } from "./keys.js";

const MAX_MEMBERS = 1000;
const RATE_TOLERANCE = 1e-14; // 0.2 of 1,000 counts as 200
const HEAD_BYTES = 52;
const ENTRY_BYTES = 128;
const SIGNATURE_BYTES = 64;
const SUM_NUMBER = 0; // of the only sum of a round

/**
 * @typedef {{members: number, corrupt: number, dropouts: number, threshold: number}} Parameters
 * @typedef {{identity: Uint8Array, key: Uint8Array, signature: Uint8Array}} Entry
 * @typedef {{planDigest: Uint8Array, number: number, parameters: Parameters, entries: Entry[],
 *   signed: Uint8Array, digest: Uint8Array, signature: Uint8Array}} Committee
 * @typedef {{operators: string[], corrupt: number, absent: number}} Operators
 * @typedef {{committee: Committee, authority: Operators | {registrar: Uint8Array},
 *   enrolmentBytes: number}} Session
 */

/** Return numbers of a committee that can be. @type {(numbers: Parameters) => Parameters} */
function checked(numbers) {
  const { members: m, corrupt: a, dropouts: d, threshold: t } = numbers;
  const fault =
    ((m < 1 || m > MAX_MEMBERS) && `a committee has 1 to ${MAX_MEMBERS} members, got ${m}`) ||
    (m <= a + 2 * d && `${m} members with A = ${a}, D = ${d} cannot agree on one set: name more`) ||
    (t > m - d - a && `threshold ${t} is above m - D - A = ${m - d - a}: sums may not open`) ||
    (t <= a && `threshold ${t} leaves no room for a secret: lower the rates, or name more members`);
  if (fault) throw new MalformedError(fault);
  return numbers;
}

/** Return a part of a number, rounded down. @type {(rate: number, count: number) => number} */
export const floorOfRate = (rate, count) => Math.floor((rate + RATE_TOLERANCE) * count);

/** Return the numbers of the committee with all members that a plan's terms name: of operators, or
 * of volunteers. Throws a MalformedError if none can be. @type {(terms: any) => Parameters} */
export function committeeParameters(terms) {
  const isDrawn = "volunteers" in terms;
  const members = isDrawn ? terms.size : terms.members.length;
  const most = (/** @type {number} */ rate, /** @type {number} */ exponent) =>
    isDrawn ? largestDraw(terms, rate, exponent) : floorOfRate(rate, members);
  const [corrupt, dropouts] = [most(terms.corrupt, terms.sigma), most(terms.dropout, terms.eta)];
  return checked({ members, corrupt, dropouts, threshold: members - dropouts - corrupt });
}

/** Return the smallest number of marked members that a draw exceeds with probability 2^-exponent.
 * @type {(terms: {volunteers: number, size: number}, rate: number, exponent: number) => number} */
function largestDraw({ volunteers, size }, rate, exponent) {
  const logs = [0]; // of factorials
  for (let n = 1; n <= volunteers; n++) logs.push(logs[n - 1] + Math.log2(n));
  const choices = (/** @type {number} */ n, /** @type {number} */ k) =>
    k > n ? -Infinity : logs[n] - logs[k] - logs[n - k];
  const marked = floorOfRate(rate, volunteers);
  let number = Math.min(marked, size);
  for (let above = 0; number > 0; number--) {
    const draws = choices(marked, number) + choices(volunteers - marked, size - number);
    above += 2 ** (draws - choices(volunteers, size));
    if (above > 2 ** -exponent) break;
  }
  return number;
}

/** Return the numbers of a committee of which `present` are there; null if it may not be.
 * @type {(terms: any, present: number) => Parameters | null} */
function parametersOf(terms, present) {
  const whole = committeeParameters(terms);
  const dropouts = whole.dropouts - (whole.members - present);
  const isDrawn = "volunteers" in terms;
  if (isDrawn ? present !== terms.size : present > (terms.size ?? whole.members)) return null;
  return dropouts < 0 ? null : checked({ ...whole, members: present, dropouts });
}

/** Return the committee in its bytes; throws a MalformedError if they are of none.
 * @type {(bytes: Uint8Array) => Promise<Committee>} */
export async function readCommittee(bytes) {
  if (bytes.length < HEAD_BYTES) throw new MalformedError(`a committee has ${HEAD_BYTES} bytes`);
  const head = new DataView(bytes.buffer, bytes.byteOffset, HEAD_BYTES);
  const words = [32, 36, 40, 44, 48].map((place) => head.getUint32(place));
  const [number, members, corrupt, dropouts, threshold] = words;
  const parameters = checked({ members, corrupt, dropouts, threshold });
  const end = HEAD_BYTES + members * ENTRY_BYTES;
  if (bytes.length !== end && bytes.length !== end + SIGNATURE_BYTES) {
    throw new MalformedError(`a committee of ${members} members has ${end} bytes`);
  }
  const entries = Array.from({ length: members }, (_, i) => readEntry(bytes, i));
  for (const name of /** @type {const} */ (["identity", "key"])) {
    if (new Set(entries.map((entry) => hex(entry[name]))).size !== members) {
      throw new MalformedError(`a committee has the same ${name} twice`);
    }
  }
  const [planDigest, signed] = [bytes.subarray(0, 32), bytes.subarray(0, end)];
  const digest = await sha256(utf8("blindtally one-shot committee v1\0"), signed);
  const signature = bytes.subarray(end);
  return { planDigest, number, parameters, entries, signed, digest, signature };
}

/** @type {(bytes: Uint8Array, i: number) => Entry} */
function readEntry(bytes, i) {
  const body = bytes.subarray(HEAD_BYTES + i * ENTRY_BYTES).subarray(0, ENTRY_BYTES);
  const [identity, key] = [body.subarray(0, 32), body.subarray(32, 64)];
  checkIdentity(identity);
  checkPublicKey(key);
  return { identity, key, signature: body.subarray(64) };
}

/** Return the facts of the sum of a one-shot plan, which the policy accepts, with the committee
 * that the server shows. Throws a RefusedError if the plan's terms do not allow it, and a
 * MalformedError if its bytes are of none.
 * @type {(read: {plan: any, digest: Uint8Array}, bytes: Uint8Array | null) => Promise<Session>} */
export async function openSession({ plan, digest }, bytes) {
  if (!bytes) throw new RefusedError("terms", "opened a one-shot round without a committee");
  const committee = await readCommittee(bytes);
  if (!equal(committee.planDigest, digest) || committee.number !== SUM_NUMBER) {
    throw new RefusedError("terms", "showed a committee of another round");
  }
  const { committee: terms, registrar } = plan.terms;
  const expected = parametersOf(terms, committee.entries.length);
  if (JSON.stringify(expected) !== JSON.stringify(committee.parameters)) {
    throw new RefusedError("terms", "showed a committee with other parameters than the plan's");
  }
  const { corrupt, dropouts: absent } = committeeParameters(terms);
  const operators = { operators: terms.members, corrupt, absent };
  const authority = "volunteers" in terms ? { registrar: unhex(registrar) } : operators;
  return { committee, authority, enrolmentBytes: registrar ? SIGNATURE_BYTES : 0 };
}

/** Check that the authority of a session made its committee; throws a RefusedError if the
 * registrar, or an operator, did not sign it. @type {(session: Session) => Promise<void>} */
export async function checkAuthority({ committee, authority }) {
  const isDrawn = "registrar" in authority;
  const fault = isDrawn
    ? await registrarFault(committee, authority.registrar)
    : await operatorsFault(committee, authority);
  if (fault) throw new RefusedError("terms", fault);
}

/** @type {(committee: Committee, registrar: Uint8Array) => Promise<string>} */
async function registrarFault({ planDigest, number, signed, signature }, registrar) {
  const stated = await statement("one-shot committee", planDigest, number, signed);
  const isSigned = await verify(registrar, signature, stated);
  return isSigned ? "" : "showed a committee that the registrar did not sign";
}

/** @type {(committee: Committee, authority: Operators) => Promise<string>} */
async function operatorsFault({ planDigest, number, parameters, entries }, authority) {
  const { operators, corrupt, absent } = authority;
  const isPinned = entries.every(({ identity }) => operators.includes(hex(identity)));
  if (!isPinned || operators.length - entries.length > absent) {
    return "showed a committee of other operators than those pinned";
  }
  if (parameters.corrupt < corrupt) return `assumes fewer than ${corrupt} colluding operators`;
  const isAuthentic = async (/** @type {Entry} */ { identity, key, signature }) =>
    verify(identity, signature, await statement("one-shot member key", planDigest, number, key));
  const authentic = await Promise.all(entries.map(isAuthentic));
  return authentic.every(Boolean) ? "" : "showed a key that its operator did not sign";
}
