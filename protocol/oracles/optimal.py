"""The hash range m that loses least, for randomised response on hashed values.

With perfect hashing, n times the variance of a value of frequency f is f A + (1 - f) B with

    A  =  e m^2 / ((m - 1)(e - 1)^2)           e: exp(epsilon)
    B  =  (e + m - 1)^2 / ((m - 1)(e - 1)^2)

    worst case, f <= f*     m = 1 + e^(epsilon/2) sqrt(((1-f*) e + f*) / (f* e + 1 - f*)),
                            f* < 1/2, else as f* = 1/2: m = 1 + e^(epsilon/2), where A = B
    sum over d values       m = 1 + e sqrt((d - 1 + 1/e) / (d - 1 + e)), near 1 + e

These are real; of the integers the better of floor and ceiling is best, which is not always
the nearest (epsilon 3, worst case: m = 5.48, and 6 is better than 5). No integer reaches the
real optimum: the worst case misses it by up to 8%. Devices that draw one of two m at random
miss it by 1.3% at most from epsilon 1.5 up, and 3.2% below: their variance is the mean of both.

Source: equations 6, 12, 15 and theorem 3.7 of [Pan24]; floor and ceiling, and the mixture, are
ours.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import ceil, exp, floor, sqrt

from protocol.oracles.limits import check_domain, check_epsilon


def present(epsilon: float, m: float) -> float:
    """Return A: n times the variance of the value that everybody holds."""
    return float(exp(epsilon) * m**2 / ((m - 1) * (exp(epsilon) - 1) ** 2))


def absent(epsilon: float, m: float) -> float:
    """Return B: n times the variance of a value that nobody holds."""
    return float((exp(epsilon) + m - 1) ** 2 / ((m - 1) * (exp(epsilon) - 1) ** 2))


def worst(epsilon: float, m: float, most: float = 1.0) -> float:
    """Return n times the greatest variance of values of frequencies up to `most`."""
    a, b = present(epsilon, m), absent(epsilon, m)
    return max(b, b + (a - b) * most)


def squares(epsilon: float, m: float, domain: int) -> float:
    """Return n times the sum of all variances over `domain` values."""
    return present(epsilon, m) + (domain - 1) * absent(epsilon, m)


def mse_range(epsilon: float, most: float = 1.0) -> float:
    """Return the real m of the least worst case (eq 15) if no frequency is above `most`.

    Raises:
        ValueError: if `most` is not within 0 and 1, or `epsilon` out of range.
    """
    if not 0 <= most <= 1:
        raise ValueError(f"most must be within 0 and 1, not {most}")
    check_epsilon(epsilon)
    bound, e = min(most, 0.5), exp(epsilon)
    return 1 + sqrt(e * ((1 - bound) * e + bound) / (bound * e + 1 - bound))


def l2_range(epsilon: float, domain: int) -> float:
    """Return the real m of the least sum of variances over `domain` values (theorem 3.7).

    Raises:
        ValueError: if `epsilon` or `domain` is out of range.
    """
    check_epsilon(epsilon)
    check_domain(domain)
    e = exp(epsilon)
    return 1 + e * sqrt((domain - 1 + 1 / e) / (domain - 1 + e))


def mse_m(epsilon: float, most: float = 1.0) -> int:
    """Return the integer m of the least worst case; raises as `mse_range`."""
    return best(integers(mse_range(epsilon, most)), lambda m: worst(epsilon, m, most))


def l2_m(epsilon: float, domain: int) -> int:
    """Return the integer m of the least sum of variances; raises as `l2_range`."""
    return best(integers(l2_range(epsilon, domain)), lambda m: squares(epsilon, m, domain))


def best(among: Iterable[int], loss: Callable[[int], float]) -> int:
    """Return the one of least loss, the smallest of equals."""
    return min(among, key=lambda m: (loss(m), m))


@dataclass(frozen=True, slots=True)
class Pair:
    """Devices hash to `first` with odds of `share`, else to `second`; `loss` is n Var at worst."""

    first: int
    second: int
    share: float
    loss: float


def mse_pair(epsilon: float, among: Iterable[int], most: float = 1.0) -> Pair:
    """Return the two m of `among` that together have the least worst case up to `most`."""
    pairs = combinations_with_replacement(sorted(set(among)), 2)
    return min((_mixed(epsilon, *pair, most) for pair in pairs), key=lambda pair: pair.loss)


def _mixed(epsilon: float, first: int, second: int, most: float) -> Pair:
    """Return the best share: all, nothing, or where frequencies 0 and `most` err alike."""
    low = [absent(epsilon, m) for m in (first, second)]
    high = [b + (present(epsilon, m) - b) * most for m, b in zip((first, second), low, strict=True)]
    gaps = [high[one] - low[one] for one in (0, 1)]
    shares = [1.0, 0.0]
    if gaps[0] * gaps[1] < 0:
        shares.append(gaps[1] / (gaps[1] - gaps[0]))

    def loss(share: float) -> float:
        return max(share * one[0] + (1 - share) * one[1] for one in (low, high))

    share = min(shares, key=loss)
    return Pair(first, second, share, loss(share))


def integers(x: float) -> tuple[int, int]:
    """Return the integers at both sides of `x`, at least 2."""
    return max(2, floor(x)), max(2, ceil(x))
