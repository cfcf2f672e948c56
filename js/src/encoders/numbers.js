/** Sums of numbers: for each segment the devices, their numbers and squares, in digits. */

import { unhex } from "../bytes.js";
import { domainOf, joined, power } from "../domains.js";
import { MalformedError } from "../errors.js";
import { MAX_PRIME, packedBytes, uniform } from "../field.js";
import { isAbove, multiplyAdd, range, seededStream, toLong } from "../hashing.js";
import { checked, firstTrue, maxDevices, primeAbove } from "../moduli.js";
import { digitsOf } from "./table.js";

const MAX_DIGITS = 8; // of a square
const MIN_CHECK_BITS = 60;

/** @param {any} plan @returns the prime, the base and numbers of digits of n, S and Q, checks */
function format({ question, terms }) {
  const domain = domainOf(question.domain);
  const largest = checked(power(domain.base, domain.width), "the number of cells", 2, 2 ** 32) - 1;
  const square = multiplyAdd(toLong(largest), toLong(largest));
  const segments = Math.max(1, domain.segments.length);
  const formats = range(MAX_DIGITS + 1).slice(1).flatMap((count) => {
    const base = firstTrue(2, MAX_PRIME, (each) =>
      isAbove(range(count).reduce((product) => multiplyAdd(product, toLong(each)), [1]), square));
    const bound = maxDevices(terms) * (base - 1);
    if (bound >= MAX_PRIME) return [];
    const p = primeAbove(terms, bound);
    const ofNumber = firstTrue(1, count, (each) => power(base, each) > largest);
    const checks = Math.ceil(MIN_CHECK_BITS / Math.log2(p));
    const length = segments * (1 + ofNumber + count) + checks;
    return [{ p, base, counts: [1, ofNumber, count], checks, segments, length }];
  });
  if (!formats.length) throw new MalformedError("sums of numbers need a prime above 2^26");
  const bytes = formats.map(({ p, length }) => packedBytes(p, length));
  return formats[bytes.indexOf(Math.min(...bytes))];
}

/** @type {import("../encode.js").Encoder} */
export const numberSums = {
  showsOneDevice: () => true,
  shape: format,
  async encode(plan, held) {
    const { p, base, counts, checks, segments, length } = format(plan);
    const elements = new Uint32Array(length);
    const domain = domainOf(plan.question.domain);
    for (const { item } of held) {
      const cell = toLong(joined(domain.digits(item), domain.base));
      const digits = [[1], cell, multiplyAdd(cell, cell)].flatMap((amount, i) =>
        digitsOf(amount, base, counts[i]));
      const segment = Math.max(0, domain.segments.indexOf(item.split(":")[0]));
      digits.forEach((digit, row) => (elements[row * segments + segment] = digit));
    }
    const summed = length - checks;
    const stream = await seededStream(unhex(plan.seed), "number sums");
    (await uniform(p, checks * summed, stream)).forEach((factor, i) => {
      const check = summed + Math.floor(i / summed);
      elements[check] = (elements[check] + factor * elements[i % summed]) % p;
    });
    return elements;
  },
};
