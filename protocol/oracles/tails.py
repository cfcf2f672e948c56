"""How high estimates of values that nobody holds rise: quantiles that hold far out in the tail.

Which of many values are heavy is told by a bar that none of the others is above, but for odds of
`tail` each: 10^-7 and less. So far out a binomial count of small mean is much more skewed than
the normal one, whose bar would be exceeded many times as often.

    binomial     the quantile itself, by the incomplete beta function
    Bernstein    P(S > t)  <=  exp(-t^2 / (2 (V + b t / 3)))      S: a sum of independent terms of
                 mean 0, of b at most, V the sum of their variances; for sums of several kinds
"""

from math import log, sqrt

from scipy.special import betainc


def binomial_bar(n: int, odds: float, tail: float) -> int:
    """Return the least k that a binomial count of `n` at `odds` exceeds with odds of `tail`.

    Raises:
        ValueError: if `n` is below 1, or `tail` not above 0 and below 1.
    """
    check_tail(n, tail)
    low, high = -1, n  # it exceeds n never
    while high - low > 1:
        middle = (low + high) // 2
        if betainc(middle + 1, n - middle, odds) <= tail:
            high = middle
        else:
            low = middle
    return high


def bernstein_bar(variance: float, most: float, tail: float) -> float:
    """Return what a sum of `variance`, of terms of `most`, exceeds with odds of `tail` at most."""
    log_odds = -log(tail)
    third = most * log_odds / 3
    return third + sqrt(third**2 + 2 * variance * log_odds)


def check_tail(n: int, tail: float) -> None:
    """Refuse what is no number of reports, or no odds.

    Raises:
        ValueError: if `n` is below 1, or `tail` not above 0 and below 1.
    """
    if n < 1:
        raise ValueError(f"n must be 1 or more, not {n}")
    if not 0 < tail < 1:
        raise ValueError(f"tail must be above 0 and below 1, not {tail}")
