/** Sums of numbers: the devices, their numbers and squares, in digits. */

import { big, ceil, digitsOf, firstTrue, floor, joined } from "../arithmetic.js";
import { log2, max, power, range, zeros } from "../arithmetic.js";
import { unhex } from "../bytes.js";
import { primeAbove } from "../committee.js";
import { domainOf } from "../domains.js";
import { checked, must } from "../errors.js";
import { MAX_PRIME, packedBytes } from "../field.js";
import { seededStream, uniform } from "../hashing.js";

/** @import { Encoder } from "../encode.js" */

const MAX_DIGITS = 8; // of a square
const MAX_NUMBER = 1e100; // of which variances are finite
const MAX_SUM = 2 ** 63; // of squares in all rounds
const MIN_CHECK_BITS = 60;

/** @type {Encoder} */
export function numberSums({ question, terms, rounds, seed }) {
  const domain = domainOf(question.domain);
  const cells = checked(power(domain.base, domain.width), 2, 2 ** 32);
  const largest = cells - 1;
  const most = max(-question.domain.low, question.domain.high);
  must(most <= MAX_NUMBER && cells ** 2 * terms.cohort_size * rounds < MAX_SUM);
  // The formats by the digits of a square. The first with the least bytes counts. The last fits,
  // because its base is at most 256, and a cohort has at most 10^5 devices.
  const formats = range(MAX_DIGITS, 1).flatMap((count) => {
    const base = firstTrue(2, MAX_PRIME, (each) => big(each) ** big(count) > big(largest) ** 2n);
    const bound = terms.cohort_size * (base - 1);
    if (bound >= MAX_PRIME) return [];
    const p = primeAbove(terms, bound);
    const counts = [1, firstTrue(1, count, (each) => power(base, each) > largest), count];
    const summed = 1 + counts[1] + count;
    const length = summed + ceil(MIN_CHECK_BITS / log2(p));
    return [{ p, base, counts, summed, length, bytes: packedBytes(p, length) }];
  });
  const [{ p, base, counts, summed, length }] = formats.sort((a, b) => a.bytes - b.bytes);
  return {
    p, length, isExact: true,
    async encode(held) {
      const elements = zeros(length);
      for (const { item } of held) {
        const cell = big(joined(domain.digits(item), domain.base));
        const digits = counts.flatMap((count, i) => digitsOf(cell ** big(i), base, count));
        elements.splice(0, summed, ...digits);
      }
      const stream = await seededStream(unhex(seed), "number sums");
      (await uniform(p, (length - summed) * summed, stream)).forEach((factor, i) => {
        const check = summed + floor(i / summed);
        elements[check] = (elements[check] + factor * elements[i % summed]) % p;
      });
      return elements;
    },
  };
}
