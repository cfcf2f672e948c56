"""What every oracle refuses: an epsilon or a domain out of range, or no number at all."""

from numbers import Integral, Real

LEAST_EPSILON, MOST_EPSILON = 1e-6, 32.0
MOST_DOMAIN = 2**32
MOST_WHOLE = 2**26  # values that are counted all together


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that odds of 2^64 cannot keep apart, or that is none.

    Raises:
        ValueError: if it is no number within 1e-6 and 32.
    """
    is_number = isinstance(epsilon, Real) and not isinstance(epsilon, bool)
    if not is_number or not LEAST_EPSILON <= epsilon <= MOST_EPSILON:  # NaN is not
        raise ValueError(
            f"epsilon must be within {LEAST_EPSILON:g} and {MOST_EPSILON:g}, not {epsilon!r}"
        )


def check_domain(domain: int) -> None:
    """Refuse a number of values.

    Raises:
        ValueError: if it is no whole number within 2 and 2^32.
    """
    is_whole = isinstance(domain, Integral) and not isinstance(domain, bool)
    if not is_whole or not 2 <= domain <= MOST_DOMAIN:
        raise ValueError(f"domain must be within 2 and 2^32, a whole number, not {domain!r}")
