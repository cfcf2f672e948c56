// A device's one-shot message in JavaScript, without packages and without BigInt: numbers are below
// 2^53. `node one_shot_check.mjs one_shot.json` prints how many known answers agree.
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
async function uniform(lanes, key) { // as masks are drawn, lane by lane
  const words = await keystream(key, 2 ** 16);
  let at = -4, x;
  const next = (p) => ((x = words.getUint32((at += 4), true) % 2 ** bitLength(p - 1)) < p ? x : next(p));
  return lanes.map(([p, length]) => range(0, length).map(() => next(p)));
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
const degreeTests = (p, [m, A]) => // the least r with p^r >= 2^48 (2 (m - A) + 1), never equal
  range(1, 99).find((r) => r * Math.log2(p) >= 48 + Math.log2(2 * (m - A) + 1));
async function merkleRoot(leaves) {
  let level = await each(leaves, (leaf) => sha256(new Uint8Array([0]), leaf));
  while (level.length & (level.length - 1)) level.push(new Uint8Array(32));
  while (level.length > 1) level = await each(range(0, level.length / 2), (i) =>
    sha256(new Uint8Array([1]), level[2 * i], level[2 * i + 1]));
  return level[0];
}
async function message({ parameters, lanes, digest, keys }, vector, secrets) {
  const [m, A, , t] = parameters, rho = t - A;
  const identity = await secretKey("Ed25519", "sign", secrets.identity), own = await publicOf(identity);
  const label = await sha256(text("blindtally one-shot message v1\0"), digest, own);
  const drawn = join(secrets.random, label, ...lanes.map(([p], l) => pack(p, vector[l])));
  const derive = (name) => sha256(text(`blindtally one-shot ${name} v1\0`), drawn);
  const pair = await secretKey("X25519", "deriveBits", await derive("key")), E = await publicOf(pair);
  const agreed = await each(keys, (key) => agree(pair, key));
  const block = (i, name, j) =>
    sha256(u32(i), agreed[j - 1], text(`blindtally v1 ${name}\0`), u32(0), u32(j), label);
  const widths = lanes.map(([p, n]) => [p, Math.ceil(n / rho), degreeTests(p, parameters)]);
  const expanded = await each(range(1, A + 1), async (j) => uniform(
    widths.map(([p, C, r]) => [p, C + r]), (await block(1, "one-shot expansion", j)).slice(0, 16)));
  const blinds = await uniform(widths.map(([p, , r]) => [p, rho * r]), await derive("stream"));
  const nodes = [...range(1, rho + 1).map((i) => -i), ...range(1, A + 1)];
  const column = (l, i, C) => range(0, C).map((k) => vector[l][k * rho + i] ?? 0);
  const values = widths.map(([, C, r], l) => [
    ...range(0, rho).map((i) => [...column(l, i, C), ...blinds[l].slice(i * r, (i + 1) * r)]),
    ...expanded.map((share) => share[l])]);
  const sent = await each(range(A + 1, m + 1), async (j) => {
    const plain = join(...widths.map(([p, C, r], l) => pack(p, range(0, C + r).map((k) =>
      lagrange(nodes, j, p).reduce((sum, f, i) => (sum + f * values[l][i][k]) % p, 0)))));
    const pad = join(...await each(range(0, plain.length / 32 + 1), (i) => block(i + 1, "one-shot share", j)));
    return plain.map((byte, i) => byte ^ pad[i]);
  });
  const root = await merkleRoot([...range(0, A).map(() => new Uint8Array()), ...sent]);
  const words = await keystream(await sha256(text("blindtally one-shot coins v1\0"), label, E, root),
    8 * widths.reduce((sum, [, C, r]) => sum + C * r, 0));
  let at = -8; // a coin is a little-endian word of eight bytes modulo p
  const coin = (p) => ((words.getUint32((at += 8) + 4, true) % p) * (2 ** 32 % p)
    + words.getUint32(at, true)) % p;
  const proof = join(...widths.map(([p, C, r], l) => {
    const beta = range(0, C * r).map(() => coin(p));
    return pack(p, values[l].flatMap((row) => range(0, r).map((b) => range(0, C).reduce(
      (sum, k) => (sum + row[k] * beta[k * r + b]) % p, row[C + b]))));
  }));
  const content = await sha256(E, root, await sha256(proof));
  const signed = join(text("blindtally v1 one-shot message\0"), label, u32(0), content);
  const signature = await crypto.subtle.sign("Ed25519", identity, signed);
  return join(own, secrets.enrolment, E, ...sent, proof, new Uint8Array(signature));
}
const known = JSON.parse(readFileSync(process.argv[2], "utf8"));
const results = { agree: 0, differ: 0 }, check = (agrees) => results[agrees ? "agree" : "differ"]++;
for (const { p, elements, packed } of known.packings) check(hex(pack(p, elements)) === packed);
for (const { p, length, packed } of known.no_packings) check(!isPacking(p, length, unhex(packed)));
for (const sum of known.one_shot_sums) {
  const keys = sum.members.map((_, i) => unhex(sum.committee).slice(84 + 128 * i, 116 + 128 * i));
  const digest = await sha256(text("blindtally one-shot committee v1\0"), unhex(sum.committee).slice(0, -64));
  for (const device of sum.devices) {
    const [identity, random] = [device.identity_secret, device.random_secret].map(unhex);
    const secrets = { identity, random, enrolment: unhex(device.message).slice(32, 96) };
    check(hex(await message({ ...sum, digest, keys }, device.vector, secrets)) === device.message);
  }
}
console.log(JSON.stringify(results));
