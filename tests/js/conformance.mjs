// Tries the known answers of tests/vectors on the modules of js/src, in Node or in a page.
import { hex, statement, systemRandom, unhex } from "../../js/src/bytes.js";
import { checkAuthority, committeeParameters, readCommittee } from "../../js/src/committee.js";
import { domainOf } from "../../js/src/domains.js";
import { encodingOf } from "../../js/src/encode.js";
import { pack, packedBytes } from "../../js/src/field.js";
import { hashFunction } from "../../js/src/hashing.js";
import { agreementKey, checkIdentity, signingKey, verify } from "../../js/src/keys.js";
import { makeMessage, messageBytes } from "../../js/src/message.js";
import { enrolmentScope, readPlan } from "../../js/src/plan.js";
import { digest } from "../../js/src/sha256.js";

const refuses = async (make) => {
  try {
    await make();
    return false;
  } catch (error) {
    return ["RefusedError", "MalformedError"].includes(error.name);
  }
};
const numbersOf = (terms) => Object.values(committeeParameters(terms)).join();
const drawn = ({ members: size, population: volunteers, ...rates }) => ({
  ...{ size, volunteers, ...rates, sigma: 40, eta: 30 },
});
const operators = ({ members, ...rates }) => ({ members: Array(members), ...rates });
const session = async (committee, registrar) => ({
  committee: await readCommittee(unhex(committee)),
  registrar,
});

async function makesAllMessages({ committee, committee_digest, registrar, devices, p, length }) {
  const open = await session(committee, registrar);
  const made = devices.map(async ({ identity_secret, random_secret, vector, message }) => {
    const identity = await signingKey(unhex(identity_secret));
    const enrolment = unhex(message).slice(32, 96);
    const random = () => unhex(random_secret);
    const bytes = await makeMessage(open, identity, enrolment, { p, elements: vector }, random);
    const size = messageBytes(p, length, open.committee.parameters, 64);
    return hex(bytes) === message && size === bytes.length;
  });
  const isMade = await Promise.all(made);
  return hex(open.committee.digest) === committee_digest && isMade.every(Boolean);
}

async function refusesOtherMessages({ committee, registrar, devices, p }) {
  const open = await session(committee, registrar);
  const identity = await signingKey(unhex(devices[0].identity_secret));
  const random = () => unhex(devices[0].random_secret);
  const tries = ([of, modulus, elements]) => {
    const vector = { p: modulus, elements };
    return refuses(() => makeMessage(of, identity, new Uint8Array(64), vector, random));
  };
  const forged = { ...open, registrar: hex(identity.publicKey) };
  const others = [[open, p, []], [open, p, [p]], [open, p, [-1]]];
  const primes = [[open, 7, [1]], [open, p - 1, [1]], [open, 2 ** 26 + 15, [1]]];
  const refused = await Promise.all([[forged, p, [1]], ...others, ...primes].map(tries));
  return refused.every(Boolean) && !(await tries([open, p, [1]]));
}

const LISTS = {
  keys: {
    agreements: async ({ secret, public: own, agreed }) =>
      hex(await (await agreementKey(unhex(secret))).agree(unhex(own))) === agreed,
    keys_to_refuse: ({ key }) =>
      refuses(async () => (await agreementKey(new Uint8Array(32))).agree(unhex(key))),
  },
  signatures: {
    statements: async ({ identity, what, label, slot, payload, secret, ...known }) => {
      const bytes = statement(what, unhex(label), slot, unhex(payload));
      const { publicKey, sign } = await signingKey(unhex(secret));
      const made = [publicKey, bytes, await sign(bytes)].map(hex);
      const isSigned = await verify(publicKey, unhex(known.signature), bytes);
      return isSigned && made.join() === [identity, known.statement, known.signature].join();
    },
    no_signatures: async ({ identity, what, label, slot, payload, signature }) => {
      const bytes = statement(what, unhex(label), slot, unhex(payload));
      return !(await verify(unhex(identity), unhex(signature), bytes));
    },
    identities_to_refuse: ({ identity }) => refuses(() => checkIdentity(unhex(identity))),
  },
  one_shot: {
    packings: ({ p, elements, packed }) =>
      hex(pack(p, elements)) === packed && packedBytes(p, elements.length) === packed.length / 2,
    committees: ({ numbers, ...terms }) => numbersOf(operators(terms)) === numbers.join(),
    drawn_committees: ({ numbers, ...terms }) => numbersOf(drawn(terms)) === numbers.join(),
    infeasible_committees: (terms) => refuses(() => committeeParameters(operators(terms))),
    one_shot_sums: async (sum) => (await makesAllMessages(sum)) && refusesOtherMessages(sum),
    no_committees: ({ committee }, { one_shot_sums: [{ registrar }] }) =>
      refuses(async () => checkAuthority(await session(committee, registrar))),
  },
  hashing: {
    hash_families: async ({ seed, purpose, coefficients, keys, hashed, fingerprints, words }) => {
      const sizes = [coefficients.length - 1, keys.length / 2];
      const hash = await hashFunction(unhex(seed), purpose, ...sizes);
      return hashed.map(hash).join() === fingerprints.map((each, i) => [each, words[i]]).join();
    },
    item_keys: ({ item, name, ...domain }) =>
      domainOf({ kind: "hashed", max_bytes: 4096, ...domain }).keyed(item).name === name,
  },
  encodings: {
    impossible_plans: ({ text }) => refuses(() => encodingOf(readPlan(text).plan)),
  },
  plans: {
    plans: async ({ text, digest }) => hex((await readPlan(text)).digest) === digest,
    no_plans: ({ text }) => refuses(() => encodingOf(readPlan(text).plan)),
    scopes: async ({ plan, scope }) => hex(await enrolmentScope(plan)) === scope,
  },
};

/** Throw an error unless hashes of all short lengths are those of WebCrypto, and many bytes random. */
async function checkBytes() {
  if (!systemRandom(70_000).subarray(65_536).some(Boolean)) throw new Error("random bytes are 0");
  for (let length = 0; length < 200; length++) {
    const bytes = systemRandom(length);
    const expected = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
    if (hex(digest(bytes)) !== hex(expected)) throw new Error(`the hash of ${hex(bytes)} is wrong`);
  }
}

/** Return for each list of the files in `known` how many cases it has, and which of them differ. */
export async function main(known) {
  await checkBytes();
  const results = {};
  for (const [file, lists] of Object.entries(LISTS)) {
    for (const [list, agrees] of Object.entries(lists)) {
      const answers = await Promise.all(known[file][list].map((each) => agrees(each, known[file])));
      const differing = answers.flatMap((answer, i) => (answer ? [] : [i]));
      results[`${file} ${list}`] = { cases: answers.length, differing };
    }
  }
  return results;
}
