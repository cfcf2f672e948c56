"""Bounds on the estimates of absent values: quantiles that hold far out in the tail.

So far out, a binomial count of small mean is much more skewed than a normal one. Its quantile is
exact here. Sums of several kinds of votes use Bernstein's bound,

    P(S > t)  <=  exp(-t^2 / (2 (V + b t / 3)))      S: a sum of independent terms of mean 0, each
                                                     at most b, V the sum of their variances
"""

from math import log, sqrt

from protocol.numerics import special
from protocol.numerics.binary_search import first_true


def binomial_upper_quantile(n: int, probability: float, tail: float) -> int:
    """Return the smallest k that a binomial count of `n` exceeds with at most probability `tail`.

    Raises ValueError as `check_tail_probability`.
    """
    check_tail_probability(n, tail)
    return first_true(lambda k: bool(special.betainc(k + 1, n - k, probability) <= tail), 0, n)


def bernstein_upper_bound(variance: float, max_term: float, tail: float) -> float:
    """Return a bound that a sum of `variance` exceeds with probability `tail` at most."""
    log_tail = -log(tail)
    third = max_term * log_tail / 3
    return third + sqrt(third**2 + 2 * variance * log_tail)


def check_tail_probability(n: int, tail: float) -> None:
    """Raise ValueError if `n` is below 1, or `tail` is not above 0 and below 1."""
    if n < 1:
        raise ValueError(f"n must be 1 or more, not {n}")
    if not 0 < tail < 1:
        raise ValueError(f"tail must be above 0 and below 1, not {tail}")
