/**
 * Committees: their numbers, which follow from a plan's terms, their bytes, and who made them.
 *
 *     entry      identity (32), X25519 key (32), the identity's signature over the key (64)
 *     committee  plan digest (32), number, m, A, D, t (u32 each), entries, the registrar's signature
 *                (64, or none)
 *
 * A members of m may collude with the server, D may drop out, and t sums give the total. Of members
 * that are drawn from volunteers, more than A collude with probability 2^-sigma at most. Logarithms decide here
 * what integers do elsewhere: if an error of 10^-9 mattered, the device would refuse the committee.
 */

import { concat, equal, hex, sha256, statement, unhex, utf8 } from "./bytes.js";
import { MalformedError, RefusedError } from "./errors.js";
import { checkIdentity, checkPublicKey, verify } from "./keys.js";

const MAX_MEMBERS = 1000;
const RATE_TOLERANCE = 1e-14; // 0.2 of 1,000 counts as 200
const HEAD_BYTES = 52;
const ENTRY_BYTES = 128;
const SIGNATURE_BYTES = 64;
const SUM_NUMBER = 0; // of the only sum of a round

/** @typedef {{members: number, corrupt: number, dropouts: number, threshold: number}} Parameters */
/** @typedef {{identity: Uint8Array, key: Uint8Array, signature: Uint8Array}} Entry */
/**
 * @typedef {{planDigest: Uint8Array, number: number, parameters: Parameters, entries: Entry[],
 *   signed: Uint8Array, digest: Uint8Array, signature: Uint8Array}} Committee
 * @typedef {{registrar: Uint8Array} | {operators: string[], corrupt: number, absent: number}} Authority
 * @typedef {{committee: Committee, authority: Authority, enrolmentBytes: number}} Session
 */

/** @param {Parameters} numbers @returns {Parameters} @throws {MalformedError} if they cannot be */
function checked(numbers) {
  const { members: m, corrupt: a, dropouts: d, threshold: t } = numbers;
  const faults = [
    [m < 1 || m > MAX_MEMBERS, `a committee has 1 to ${MAX_MEMBERS} members, got ${m}`],
    [m <= a + 2 * d, `${m} members with A = ${a} and D = ${d} cannot agree on one set: more needed`],
    [t > m - d - a, `threshold ${t} is above m - D - A = ${m - d - a}: sums may not open`],
    [t <= a, `threshold ${t} leaves no room for a secret: lower the rates, or add members`],
  ];
  const fault = faults.find(([isFault]) => isFault);
  if (fault) throw new MalformedError(String(fault[1]));
  return numbers;
}

/** @param {number} rate @param {number} count @returns {number} the part of `count`, rounded down */
export const floorOfRate = (rate, count) => Math.floor((rate + RATE_TOLERANCE) * count);

/**
 * Return the numbers of the committee with all members that a plan's terms of a committee name.
 *
 * @param {any} terms of operators (`members`) or of volunteers (`volunteers`)
 * @returns {Parameters}
 * @throws {MalformedError} if no committee can be
 */
export function committeeParameters(terms) {
  const isDrawn = "volunteers" in terms;
  const members = isDrawn ? terms.size : terms.members.length;
  const numbers = ["corrupt", "dropout"].map((name) => {
    if (!isDrawn) return floorOfRate(terms[name], members);
    const marked = floorOfRate(terms[name], terms.volunteers);
    return largestDraw(members, marked, terms.volunteers, terms[name === "corrupt" ? "sigma" : "eta"]);
  });
  const [corrupt, dropouts] = numbers;
  return checked({ members, corrupt, dropouts, threshold: members - dropouts - corrupt });
}

/** @param {any} terms @param {number} present @returns {Parameters | null} if so many may be there */
function parametersOf(terms, present) {
  const whole = committeeParameters(terms);
  const dropouts = whole.dropouts - (whole.members - present);
  const largest = "volunteers" in terms ? terms.size : (terms.size ?? whole.members);
  const isPossible = "volunteers" in terms ? present === largest : present <= largest;
  return isPossible && dropouts >= 0 ? checked({ ...whole, members: present, dropouts }) : null;
}

/**
 * Return the smallest number of marked members that a draw exceeds with probability 2^-exponent.
 *
 * @param {number} members @param {number} marked @param {number} population @param {number} exponent
 */
function largestDraw(members, marked, population, exponent) {
  const logs = [0]; // of factorials
  for (let n = 1; n <= population; n++) logs.push(logs[n - 1] + Math.log2(n));
  const choices = (/** @type {number} */ n, /** @type {number} */ k) =>
    k > n ? -Infinity : logs[n] - logs[k] - logs[n - k];
  let number = Math.min(marked, members);
  for (let above = 0; number > 0; number--) {
    const draws = choices(marked, number) + choices(population - marked, members - number);
    above += 2 ** (draws - choices(population, members));
    if (above > 2 ** -exponent) break;
  }
  return number;
}

/**
 * Return the committee in its bytes, of a size that fits its number of members.
 *
 * @param {Uint8Array} bytes
 * @returns {Promise<Committee>}
 * @throws {MalformedError} if they are of none
 */
export async function readCommittee(bytes) {
  if (bytes.length < HEAD_BYTES) {
    throw new MalformedError(`a committee has ${HEAD_BYTES} bytes and its entries`);
  }
  const words = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const [number, members, corrupt, dropouts, threshold] = [0, 1, 2, 3, 4].map((i) =>
    words.getUint32(32 + 4 * i),
  );
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

/** @param {Uint8Array} bytes of a committee @param {number} i @returns {Entry} */
function readEntry(bytes, i) {
  const start = HEAD_BYTES + i * ENTRY_BYTES;
  const part = (/** @type {number} */ from, /** @type {number} */ to) =>
    bytes.subarray(start + from, start + to);
  const entry = { identity: part(0, 32), key: part(32, 64), signature: part(64, 128) };
  checkIdentity(entry.identity);
  checkPublicKey(entry.key);
  return entry;
}

/**
 * Return the facts of the one-shot sum of a plan, with the committee that the server shows.
 *
 * @param {{plan: any, digest: Uint8Array}} read of `readPlan`, a plan that the policy accepts
 * @param {Uint8Array | null} bytes of the committee
 * @returns {Promise<Session>}
 * @throws {RefusedError} if it is no committee of this plan @throws {MalformedError} if of none
 */
export async function openSession({ plan, digest }, bytes) {
  if (!bytes) throw new RefusedError("terms", "opened a one-shot round without a committee");
  const committee = await readCommittee(bytes);
  const { committee: terms, registrar } = plan.terms;
  if (!equal(committee.planDigest, digest) || committee.number !== SUM_NUMBER) {
    throw new RefusedError("terms", "showed a committee of another round");
  }
  const expected = parametersOf(terms, committee.entries.length);
  if (JSON.stringify(expected) !== JSON.stringify(committee.parameters)) {
    throw new RefusedError("terms", "showed a committee with other parameters than the plan's");
  }
  const { corrupt, dropouts: absent } = committeeParameters(terms);
  const isDrawn = "volunteers" in terms;
  const operators = { operators: terms.members, corrupt, absent };
  const authority = isDrawn ? { registrar: unhex(registrar) } : operators;
  return { committee, authority, enrolmentBytes: registrar ? SIGNATURE_BYTES : 0 };
}

/**
 * Check that the authority of a session made its committee.
 *
 * @param {Session} session
 * @throws {RefusedError} if the registrar, or one of the operators, did not sign it
 */
export async function checkAuthority({ committee, authority }) {
  const fault = await ("registrar" in authority
    ? registrarFault(committee, authority.registrar)
    : operatorsFault(committee, authority));
  if (fault) throw new RefusedError("terms", fault);
}

/** @param {Committee} committee @param {Uint8Array} registrar */
async function registrarFault({ planDigest, number, signed, signature }, registrar) {
  const stated = await statement("one-shot committee", planDigest, number, signed);
  const isSigned = await verify(registrar, signature, stated);
  return isSigned ? "" : "showed a committee that the registrar did not sign";
}

/**
 * @param {Committee} committee
 * @param {{operators: string[], corrupt: number, absent: number}} authority
 */
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
