"""What every oracle refuses: an epsilon or a domain out of range."""

LEAST_EPSILON, MOST_EPSILON = 1e-6, 32.0
MOST_DOMAIN = 2**32
MOST_WHOLE = 2**26  # values that are counted all together


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that odds of 2^64 cannot keep apart, or that is none.

    Raises:
        ValueError: if it is not within 1e-6 and 32.
    """
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:  # NaN is not
        raise ValueError(
            f"epsilon must be within {LEAST_EPSILON:g} and {MOST_EPSILON:g}, not {epsilon}"
        )


def check_domain(domain: int) -> None:
    """Refuse a number of values.

    Raises:
        ValueError: if it is not within 2 and 2^32.
    """
    if not 2 <= domain <= MOST_DOMAIN:
        raise ValueError(f"domain must be within 2 and 2^32, not {domain}")
