/** Sums of numbers: the devices, their numbers and squares, in digits. */

import { big, ceil, digitsOf, firstTrue, floor, joined } from "../arithmetic.js";
import { log2, min, power, range, zeros } from "../arithmetic.js";
import { unhex } from "../bytes.js";
import { maxDevices, primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { checked, must } from "../errors.js";
import { MAX_PRIME, packedBytes, uniform } from "../field.js";
import { seededStream } from "../hashing.js";

/** @import { Encoder } from "../encode.js" */

const MAX_DIGITS = 8; // of a square
const MIN_CHECK_BITS = 60;

/** Return the prime, the base and numbers of digits of n, S and Q, and checks of the format with
 * the least bytes. @param {any} plan */
function format({ question, terms }) {
  const domain = domainOf(question.domain);
  const largest = checked(power(domain.base, domain.width), 2, 2 ** 32) - 1;
  const formats = range(MAX_DIGITS, 1).flatMap((count) => {
    const base = firstTrue(2, MAX_PRIME, (each) => big(each) ** big(count) > big(largest) ** 2n);
    const bound = maxDevices(terms) * (base - 1);
    if (bound >= MAX_PRIME) return [];
    const p = primeAbove(terms, bound);
    const ofNumber = firstTrue(1, count, (each) => power(base, each) > largest);
    const checks = ceil(MIN_CHECK_BITS / log2(p));
    const length = 1 + ofNumber + count + checks;
    return [{ p, base, counts: [1, ofNumber, count], checks, length }];
  });
  must(formats.length);
  const bytes = formats.map(({ p, length }) => packedBytes(p, length));
  return formats[bytes.indexOf(min(...bytes))];
}

/** @type {Encoder} */
export const numberSums = {
  showsOneDevice: () => true,
  shape: format,
  async encode(plan, held) {
    const { p, base, counts, checks, length } = format(plan);
    const elements = zeros(length);
    const domain = domainOf(plan.question.domain);
    for (const { item } of held) {
      const cell = big(joined(domain.digits(item), domain.base));
      const digits = counts.flatMap((count, i) => digitsOf(cell ** big(i), base, count));
      digits.forEach((digit, row) => (elements[row] = digit));
    }
    const summed = length - checks;
    const stream = await seededStream(unhex(plan.seed), "number sums");
    (await uniform(p, checks * summed, stream)).forEach((factor, i) => {
      const check = summed + floor(i / summed);
      elements[check] = (elements[check] + factor * elements[i % summed]) % p;
    });
    return elements;
  },
};
