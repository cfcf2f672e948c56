"""Odds that keep a promise of privacy exactly, and randomised response by them.

The device compares a uniform word with an integer T, so an outcome has odds of T / 2^64, and
the ratio that privacy bounds is one of integers. T is rounded toward privacy: with g at most
e^epsilon, the outcome that a value favours w times of v + w has the odds

    T / 2^64  <=  w g / (w g + v)       so   (T / w) / ((2^64 - T) / v)  <=  g  <=  e^epsilon

e^epsilon itself is bounded below by a fraction, to 70 digits; both ends compute the same T on
any machine.

Source: k-ary randomised response is [Warner65] generalised, as in [Kairouz16, section 2].
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np

from protocol.chance import Chance, below, happens
from protocol.oracles.counts import Codes

WHOLE = 2**64
_DIGITS = 80
_GUARD = Decimal("1e-70")


@cache
def growth(epsilon: float) -> Fraction:
    """Return a fraction at most e^`epsilon`, less by a part of 10^70."""
    with localcontext() as context:
        context.prec = _DIGITS
        return Fraction(Decimal(epsilon).exp() * (1 - _GUARD))


@cache
def favour(epsilon: float, favoured: int, others: int) -> int:
    """Return the largest T for outcomes `favoured` by a value among as many and `others`."""
    weight = favoured * growth(epsilon)
    return int(WHOLE * weight / (weight + others))


def respond(chance: Chance, symbols: Codes, among: int, keep: int) -> Codes:
    """Return each of `symbols` with odds of `keep` / 2^64, else one of the others `among` them.

    Each of the `among` - 1 others is as likely.
    """
    kept = happens(chance, keep, len(symbols))
    others = below(chance, among - 1, len(symbols))
    others += (others >= symbols).astype(np.uint64)
    return np.where(kept, symbols, others)


def responses(among: int, keep: int, share: Fraction = Fraction(1)) -> list[list[Fraction]]:
    """Return for each symbol the exact odds of each response to it, times `share`."""
    true, other = share * Fraction(keep, WHOLE), share * Fraction(WHOLE - keep, WHOLE * (among - 1))
    return [[true if y == symbol else other for y in range(among)] for symbol in range(among)]
