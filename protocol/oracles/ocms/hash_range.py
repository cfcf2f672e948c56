"""The hash range m with the smallest variance, for randomized response on hashed values.

With perfect hashing, n times the variance of a value of frequency f is f A + (1 - f) B with

    A  =  e m^2 / ((m - 1)(e - 1)^2)           e: exp(epsilon)
    B  =  (e + m - 1)^2 / ((m - 1)(e - 1)^2)

    worst case, f <= f*     m = 1 + e^(epsilon/2) sqrt(((1-f*) e + f*) / (f* e + 1 - f*)),
                            f* < 1/2; otherwise as f* = 1/2: m = 1 + e^(epsilon/2), where A = B
    sum over d values       m = 1 + e sqrt((d - 1 + 1/e) / (d - 1 + e)), near 1 + e

The best integer is the better of floor and ceiling, not always the nearest. It misses the real
optimum by up to 9.8% (at epsilon 1.79), and devices that draw one of two m at random by at most
3.2%.

Source: equations 6, 12, 15 and theorem 3.7 of [Pan24]; floor and ceiling, and the mixture, are
ours.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import ceil, exp, floor, sqrt

from protocol.numerics.finite_fields import is_prime
from protocol.oracles.limits import check_domain, check_epsilon

MIN_PRIME, MAX_PRIME = 101, 2**31


def variance_if_present(epsilon: float, m: float) -> float:
    """Return A: n times the variance of a value that all devices hold."""
    return float(exp(epsilon) * m**2 / ((m - 1) * (exp(epsilon) - 1) ** 2))


def variance_if_absent(epsilon: float, m: float) -> float:
    """Return B: n times the variance of a value that no device holds."""
    return float((exp(epsilon) + m - 1) ** 2 / ((m - 1) * (exp(epsilon) - 1) ** 2))


def worst_variance(epsilon: float, m: float, max_frequency: float = 1.0) -> float:
    """Return n times the largest variance of values of frequencies up to `max_frequency`."""
    a, b = variance_if_present(epsilon, m), variance_if_absent(epsilon, m)
    return max(b, b + (a - b) * max_frequency)


def total_variance(epsilon: float, m: float, domain: int) -> float:
    """Return n times the sum of all variances over `domain` values."""
    return variance_if_present(epsilon, m) + (domain - 1) * variance_if_absent(epsilon, m)


def real_m_for_mse(epsilon: float, max_frequency: float = 1.0) -> float:
    """Return the real m of the smallest worst case (eq 15); ValueError for a bad parameter."""
    if not 0 <= max_frequency <= 1:
        raise ValueError(f"max_frequency must be from 0 to 1, not {max_frequency}")
    check_epsilon(epsilon)
    bound, e = min(max_frequency, 0.5), exp(epsilon)
    return 1 + sqrt(e * ((1 - bound) * e + bound) / (bound * e + 1 - bound))


def real_m_for_l2(epsilon: float, domain: int) -> float:
    """Return the real m of the smallest sum of variances over `domain` values (theorem 3.7)."""
    check_epsilon(epsilon)
    check_domain(domain)
    e = exp(epsilon)
    return 1 + e * sqrt((domain - 1 + 1 / e) / (domain - 1 + e))


def m_for_mse(epsilon: float, max_frequency: float = 1.0) -> int:
    """Return the integer m of the smallest worst case; raises as `real_m_for_mse`."""
    return least_loss(
        adjacent_integers(real_m_for_mse(epsilon, max_frequency)),
        lambda m: worst_variance(epsilon, m, max_frequency),
    )


def m_for_l2(epsilon: float, domain: int) -> int:
    """Return the integer m of the smallest sum of variances; raises as `real_m_for_l2`."""
    return least_loss(
        adjacent_integers(real_m_for_l2(epsilon, domain)),
        lambda m: total_variance(epsilon, m, domain),
    )


def least_loss(among: Iterable[int], loss: Callable[[int], float]) -> int:
    """Return the integer of the smallest loss, the smallest of equals."""
    return min(among, key=lambda m: (loss(m), m))


@dataclass(frozen=True, slots=True)
class HashRangePair:
    """Hash ranges `first`, with probability `share`, and `second`; `loss` is n Var at worst."""

    first: int
    second: int
    share: float
    loss: float


def pair_for_mse(epsilon: float, among: Iterable[int], max_frequency: float = 1.0) -> HashRangePair:
    """Return the two m of `among` whose mixture has the smallest worst case."""
    pairs = combinations_with_replacement(sorted(set(among)), 2)
    return min(
        (_best_mixture(epsilon, *pair, max_frequency) for pair in pairs), key=lambda pair: pair.loss
    )


def _best_mixture(epsilon: float, first: int, second: int, max_frequency: float) -> HashRangePair:
    """Return the best mixture: share 0, 1, or where the variances at both ends are equal."""
    low = [variance_if_absent(epsilon, m) for m in (first, second)]
    high = [
        b + (variance_if_present(epsilon, m) - b) * max_frequency
        for m, b in zip((first, second), low, strict=True)
    ]
    gaps = [high[i] - low[i] for i in (0, 1)]
    shares = [1.0, 0.0]
    if gaps[0] * gaps[1] < 0:
        shares.append(gaps[1] / (gaps[1] - gaps[0]))

    def loss(share: float) -> float:
        return max(share * end[0] + (1 - share) * end[1] for end in (low, high))

    share = min(shares, key=loss)
    return HashRangePair(first, second, share, loss(share))


def adjacent_integers(x: float) -> tuple[int, int]:
    return max(2, floor(x)), max(2, ceil(x))


def check_hash_range(m: int, domain: int) -> None:
    """Raise ValueError if hashing `domain` values to `m` is useless: if not 2 <= m < `domain`."""
    if m < 2:
        raise ValueError(f"m must be 2 or more, not {m}")
    if domain <= m:
        raise ValueError(
            f"domain must be more than m = {m}, not {domain}: "
            "use k-ary randomized response (krr) for a dictionary that small"
        )


def hash_prime(domain: int) -> int:
    """Return the smallest prime of at least 101 and `domain`; ValueError if it is 2^31 or more."""
    prime = max(domain, MIN_PRIME)
    while prime < MAX_PRIME and not is_prime(prime):
        prime += 1
    if prime >= MAX_PRIME:
        raise ValueError(f"domain must be below 2^31 for hashing modulo a prime, not {domain}")
    return prime
