// A device's one-shot message in JavaScript, and a member's share, without packages and without BigInt:
// numbers are below 2^53. `node one_shot_check.mjs one_shot.json` prints how many known answers agree.
import { readFileSync } from "node:fs";
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const unhex = (text) => new Uint8Array(Buffer.from(text, "hex"));
const text = (string) => new TextEncoder().encode(string);
const join = (...parts) => new Uint8Array(Buffer.concat(parts));
const u32 = (n) => new Uint8Array([n >>> 24, n >>> 16, n >>> 8, n]);
const sha256 = async (...parts) => new Uint8Array(await crypto.subtle.digest("SHA-256", join(...parts)));
const range = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, i) => from + i);
const each = (list, make) => Promise.all(list.map(make));
// Keys and streams
const DER = { X25519: "302e020100300506032b656e04220420", Ed25519: "302e020100300506032b657004220420" };
const secretKey = (name, use, raw) => crypto.subtle.importKey("pkcs8", join(unhex(DER[name]), raw), name, true, [use]);
const publicOf = async (key) => Buffer.from((await crypto.subtle.exportKey("jwk", key)).x, "base64url");
const agree = async (key, raw) => new Uint8Array(await crypto.subtle.deriveBits(
  { name: "X25519", public: await crypto.subtle.importKey("raw", raw, "X25519", false, []) }, key, 256));
const keystream = async (raw, nbytes) => new DataView(await crypto.subtle.encrypt( // from counter 0
  { name: "AES-CTR", counter: new Uint8Array(16), length: 64 },
  await crypto.subtle.importKey("raw", raw, "AES-CTR", false, ["encrypt"]), new Uint8Array(nbytes)));
// Elements modulo p < 2^26, whose products are exact
const power = (x, e, p) => (e ? power(x * x % p, Math.floor(e / 2), p) * (e % 2 ? x : 1) % p : 1);
const product = (factors, p) => factors.reduce((result, x) => result * (((x % p) + p) % p) % p, 1);
const lagrange = (nodes, x, p) => nodes.map((node) => {
  const others = nodes.filter((other) => other !== node);
  const below = product(others.map((other) => node - other), p);
  return product(others.map((other) => x - other), p) * power(below, p - 2, p) % p;
});
const bitLength = (n) => (n ? 1 + bitLength(Math.floor(n / 2)) : 0);
async function uniform(p, count, key) { // as masks are drawn
  const words = await keystream(key, 2 ** 16), low = 2 ** bitLength(p - 1);
  return range(0, 2 ** 14).map((i) => words.getUint32(4 * i, true) % low).filter((x) => x < p).slice(0, count);
}
// Packing in base p: groups of g elements in at most 53 bits, with the fewest bits for an element
const choices = (p, g) => range(0, g).reduce((count) => count * p, 1); // p^g, where ** may round
const bitsOf = (p, g) => bitLength(choices(p, g) - 1);
function groups(p, length) { // [place, elements] of each
  const fitting = range(1, 53).filter((g) => choices(p, g) <= 2 ** 53);
  const [best] = fitting.sort((g, h) => bitsOf(p, g) * h - bitsOf(p, h) * g || g - h);
  return range(0, Math.ceil(length / best)).map((i) => [i * best, Math.min(best, length - i * best)]);
}
const joined = (digits, base) => digits.reduceRight((sum, digit) => sum * base + digit, 0);
const split = (n, bits) => range(0, bits).map((place) => Math.floor(n / 2 ** place) % 2);
function pack(p, row) {
  const bits = groups(p, row.length).flatMap(([place, size]) =>
    split(joined(row.slice(place, place + size), p), bitsOf(p, size)));
  return new Uint8Array(range(0, Math.ceil(bits.length / 8)).map((i) => joined(bits.slice(8 * i, 8 * i + 8), 2)));
}
function isPacking(p, length, packed) {
  const bits = [...packed].flatMap((byte) => split(byte, 8));
  const fits = groups(p, length).map(([, size]) => joined(bits.splice(0, bitsOf(p, size)), 2) < choices(p, size));
  return fits.every(Boolean) && bits.length < 8 && !bits.includes(1);
}
// The message
const sizes = ({ parameters: [m, A, , t], p, length }) => ({ m, A, rho: t - A, C: Math.ceil(length / (t - A)),
  // the least r with p^r >= 2^48 (2 (m - A) + 1), never equal
  r: range(1, 99).find((r) => r * Math.log2(p) >= 48 + Math.log2(2 * (m - A) + 1)) });
async function merkleRoot(leaves) {
  let level = await each(leaves, (leaf) => sha256(new Uint8Array([0]), leaf));
  while (level.length & (level.length - 1)) level.push(new Uint8Array(32));
  while (level.length > 1) level = await each(range(0, level.length / 2), (i) =>
    sha256(new Uint8Array([1]), level[2 * i], level[2 * i + 1]));
  return level[0];
}
const block = (i, agreed, name, j, label) => sha256(u32(i), agreed, text(`blindtally v1 ${name}\0`), u32(0), u32(j), label);
async function underPad(bytes, agreed, j, label) {
  const pad = await each(range(0, bytes.length / 32 + 1), (i) => block(i + 1, agreed, "one-shot share", j, label));
  return bytes.map((byte, i) => byte ^ join(...pad)[i]);
}
const labelOf = (digest, own) => sha256(text("blindtally one-shot message v1\0"), digest, own);
async function message(sum, vector, secrets) {
  const { m, A, rho, C, r } = sizes(sum), { p, digest, keys } = sum;
  const identity = await secretKey("Ed25519", "sign", secrets.identity), own = await publicOf(identity);
  const label = await labelOf(digest, own), drawn = join(secrets.random, label, pack(p, vector));
  const derive = (name) => sha256(text(`blindtally one-shot ${name} v1\0`), drawn);
  const pair = await secretKey("X25519", "deriveBits", await derive("key")), E = await publicOf(pair);
  const agreed = await each(keys, (key) => agree(pair, key));
  const expanded = await each(range(1, A + 1), async (j) =>
    uniform(p, C + r, (await block(1, agreed[j - 1], "one-shot expansion", j, label)).slice(0, 16)));
  const blinds = await uniform(p, rho * r, await derive("stream"));
  const nodes = [...range(1, rho + 1).map((i) => -i), ...range(1, A + 1)];
  const values = [...range(0, rho).map((i) =>
    [...range(0, C).map((k) => vector[k * rho + i] ?? 0), ...blinds.slice(i * r, (i + 1) * r)]), ...expanded];
  const sent = await each(range(A + 1, m + 1), (j) => {
    const weights = lagrange(nodes, j, p), at = (k) => weights.reduce((sum, f, i) => (sum + f * values[i][k]) % p, 0);
    return underPad(pack(p, range(0, C + r).map(at)), agreed[j - 1], j, label);
  });
  const root = await merkleRoot([...range(0, A).map(() => new Uint8Array()), ...sent]);
  const words = await keystream(await sha256(text("blindtally one-shot coins v1\0"), label, E, root), 8 * C * r);
  const beta = range(0, C * r).map((i) => // little-endian words of eight bytes modulo p
    ((words.getUint32(8 * i + 4, true) % p) * (2 ** 32 % p) + words.getUint32(8 * i, true)) % p);
  const proof = pack(p, values.flatMap((row) => range(0, r).map((b) =>
    range(0, C).reduce((sum, k) => (sum + row[k] * beta[k * r + b]) % p, row[C + b]))));
  const signed = join(text("blindtally v1 one-shot message\0"), label, u32(0),
    await sha256(E, root, await sha256(proof)));
  const signature = await crypto.subtle.sign("Ed25519", identity, signed);
  return join(own, secrets.enrolment, E, ...sent, proof, new Uint8Array(signature));
}
async function isShare(sum, message, j) { // of a member to whom one is sent
  const { A, C, r } = sizes(sum), size = pack(sum.p, Array(C + r).fill(0)).length;
  const pair = await secretKey("X25519", "deriveBits", unhex(sum.members[j - 1].key_secret));
  const agreed = await agree(pair, message.slice(96, 128)), start = 128 + (j - 1 - A) * size;
  const label = await labelOf(sum.digest, message.slice(0, 32));
  return isPacking(sum.p, C + r, await underPad(message.slice(start, start + size), agreed, j, label));
}
const known = JSON.parse(readFileSync(process.argv[2], "utf8"));
const results = { agree: 0, differ: 0 }, check = (agrees) => results[agrees ? "agree" : "differ"]++;
for (const { p, elements, packed } of known.packings) check(hex(pack(p, elements)) === packed);
for (const { p, length, packed } of known.no_packings) check(!isPacking(p, length, unhex(packed)));
for (const sum of known.one_shot_sums) {
  sum.keys = sum.members.map((_, i) => unhex(sum.committee).slice(84 + 128 * i, 116 + 128 * i));
  sum.digest = await sha256(text("blindtally one-shot committee v1\0"), unhex(sum.committee).slice(0, -64));
  for (const { identity_secret, random_secret, vector, message: known } of sum.devices) {
    const [identity, random, sent] = [identity_secret, random_secret, known].map(unhex);
    const made = hex(await message(sum, vector, { identity, random, enrolment: sent.slice(32, 96) }));
    check(made === known && await isShare(sum, sent, 3));
  }
}
for (const { message } of known.no_shares) check(!await isShare(known.one_shot_sums[0], unhex(message), 3));
console.log(JSON.stringify(results));
