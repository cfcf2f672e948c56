/** Arithmetic of whole numbers that are exact below 2^53, and of digits. */

export const { ceil, floor, log2, max, min } = Math;
export const isWhole = Number.isSafeInteger;
export const big = BigInt;

/** Return `count` numbers from `first` on. @type {(count: number, first?: number) => number[]} */
export const range = (count, first = 0) => Array.from({ length: count }, (_, i) => first + i);

/** Return numbers that are 0. @type {(count: number) => number[]} */
export const zeros = (count) => Array(count).fill(0);

/** Return the sum of numbers. @type {(numbers: number[]) => number} */
export const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);

/** Return whether the values of a list differ. @type {(list: any[]) => boolean} */
export const areDistinct = (list) => new Set(list).size === list.length;

/** Return whether a number is prime. @type {(n: number) => boolean} */
export function isPrime(n) {
  for (let divisor = 2; divisor * divisor <= n; divisor++) if (n % divisor === 0) return false;
  return n > 1;
}

/** Return base^exponent. @type {(base: number, exponent: number) => number} */
export const power = (base, exponent) => Array(exponent).fill(base).reduce((a, b) => a * b, 1);

/** Return the number of bits. @type {(n: number) => number} */
export const bitLength = (n) => n && n.toString(2).length;

/** Return the number of digits, the first counts most. @type {(digits: number[], base: number) =>
 * number} */
export const joined = (digits, base) => digits.reduce((total, digit) => total * base + digit, 0);

/** Return digits of a whole number, the lowest first. @type {(n: number | bigint, base: number,
 * count: number) => number[]} */
export const digitsOf = (n, base, count) =>
  range(count).map((i) => Number((big(n) / big(base) ** big(i)) % big(base)));

/** Return the first number for which a condition holds, which holds for all after it, or `high`.
 * @type {(low: number, high: number, holds: (n: number) => boolean) => number} */
export function firstTrue(low, high, holds) {
  while (low < high) {
    const middle = floor((low + high) / 2);
    [low, high] = holds(middle) ? [low, middle] : [middle + 1, high];
  }
  return high;
}
