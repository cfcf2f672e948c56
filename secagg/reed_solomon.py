"""Decoding of Reed-Solomon codes over GF(p): the polynomial behind values, some of which are false.

Values of a polynomial of degree below k at n points are a code word. If at most (n - k) / 2 values
are false, one polynomial agrees with all others: the fraction r / v of a remainder r of Euclid's
algorithm and its factor v, which has the false points as roots.

Source: [Gao03].
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

Poly: TypeAlias = list[int]  # coefficients modulo p, lowest first, the last one not zero


def decode(p: int, values: Mapping[int, int], k: int) -> tuple[Poly, frozenset[int]] | None:
    """Return the polynomial of degree below `k` behind `values`, and the points that are false.

    `values` are by point; the points differ modulo `p`, and the values are below `p`. The result is
    None if more than (n - k) / 2 are false, or another polynomial that is as close.
    """
    annihilator, through = _interpolate(p, values)
    f = _rational(p, annihilator, through, (len(values) + k) // 2)
    if f is None or len(f) > k:
        return None
    top_first = f[::-1]
    return f, frozenset(x for x, y in values.items() if _evaluate(p, top_first, x) != y)


def _evaluate(p: int, top_first: Sequence[int], x: int) -> int:
    y = 0
    for coefficient in top_first:
        y = (y * x + coefficient) % p
    return y


def _interpolate(p: int, values: Mapping[int, int]) -> tuple[Poly, Poly]:
    """Return the polynomial with the points as roots, and the one through all values (Newton)."""
    annihilator, through = [1], Poly()
    for x, y in values.items():
        gap = (y - _evaluate(p, through[::-1], x)) % p
        scale = gap * pow(_evaluate(p, annihilator[::-1], x), -1, p) % p
        through = _plus(p, through, [scale * c % p for c in annihilator])
        shifted = [0, *annihilator]
        annihilator = _plus(p, shifted, [-x * c % p for c in annihilator])
    return annihilator, through


def _rational(p: int, r0: Poly, r1: Poly, degree: int) -> Poly | None:
    """Return r / v of Euclid's first remainder r below `degree`, v its factor of `r1`."""
    v0, v1 = Poly(), [1]
    while len(r1) > degree:
        quotient, rest = _divide(p, r0, r1)
        v0, v1 = v1, _plus(p, v0, [-c % p for c in _times(p, quotient, v1)])
        r0, r1 = r1, rest
    ratio, rest = _divide(p, r1, v1)
    return None if rest else ratio


def _plus(p: int, first: Poly, second: Poly) -> Poly:
    total = [(a + b) % p for a, b in zip_longest(first, second, fillvalue=0)]
    while total and total[-1] == 0:
        total.pop()
    return total


def _times(p: int, first: Poly, second: Poly) -> Poly:
    product = [0] * (len(first) + len(second))
    for place, a in enumerate(first):
        for shift, b in enumerate(second):
            product[place + shift] += a * b
    return _plus(p, product, [])


def _divide(p: int, first: Poly, second: Poly) -> tuple[Poly, Poly]:
    rest, inverse, top_first = list(first), pow(second[-1], -1, p), Poly()
    for place in reversed(range(len(first) - len(second) + 1)):
        scale = rest[place + len(second) - 1] * inverse % p
        top_first.append(scale)
        for shift, c in enumerate(second):
            rest[place + shift] = (rest[place + shift] - scale * c) % p
    return _plus(p, top_first[::-1], []), _plus(p, rest, [])
