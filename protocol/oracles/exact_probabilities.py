"""Probabilities that keep a promise of privacy exactly, and randomized response with them.

The device compares a uniform word with an integer T, so an outcome has probability T / 2^64. T is
rounded toward privacy: with g at most e^epsilon, favouring w of v + w outcomes has the probability

    T / 2^64  <=  w g / (w g + v)       so   (T / w) / ((2^64 - T) / v)  <=  g  <=  e^epsilon

Source: k-ary randomized response is [Warner65] generalised, as in [Kairouz16, section 2].
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache

import numpy as np

from protocol.numerics.arrays import Codes
from protocol.randomness import RandomWords, bernoulli, uniform_below

PROBABILITY_ONE = 2**64
_EXP_DIGITS = 80
_EXP_RELATIVE_ERROR = Decimal("1e-70")


@cache
def exp_lower_bound(epsilon: float) -> Fraction:
    """Return a fraction below e^`epsilon` by at most a part of 10^70."""
    with localcontext() as context:
        context.prec = _EXP_DIGITS
        return Fraction(Decimal(epsilon).exp() * (1 - _EXP_RELATIVE_ERROR))


@cache
def favoured_of_2_64(epsilon: float, favoured: int, others: int) -> int:
    """Return the largest T, where a value favours `favoured` outcomes over `others`."""
    weight = favoured * exp_lower_bound(epsilon)
    return int(PROBABILITY_ONE * weight / (weight + others))


def randomize(chance: RandomWords, symbols: Codes, among: int, keep: int) -> Codes:
    """Return each of `symbols` with probability `keep` / 2^64, otherwise one of the others.

    There are `among` symbols; all others have the same probability.
    """
    kept = bernoulli(chance, keep, len(symbols))
    others = uniform_below(chance, among - 1, len(symbols))
    others += (others >= symbols).astype(np.uint64)
    return np.where(kept, symbols, others)
