"""The bound of `degree_tests`, over all words and all coins of small fields.

A device fixes words, one value for each of n honest members. Coins follow, and then the device
chooses the polynomial of degree t - 1 that its combined word is compared with. It wins if n - d
members or more agree with it although their shares are on no polynomial. Words count only modulo
code words, so that their syndromes are enumerated, and columns only up to a factor.
"""

from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from math import prod

import numpy as np
import pytest


@dataclass(frozen=True)
class Game:
    """The degree test over GF(p) with `columns` beside the blinds, and r = `tests`."""

    p: int
    n: int
    t: int
    d: int
    columns: int = 1
    tests: int = 1

    @property
    def share_of_coins(self) -> int:
        """Return the number of coins that the bound counts once for each member."""
        return self.p ** (self.tests * (self.columns - 1))

    def most_coins(self) -> tuple[int, int]:
        """Return the most coins with which words win, and those that the cited theorem is about.

        These are the coins with which n - d members agree, of words that are on polynomials on no
        common set of n - d members.
        """
        p, n, points = self.p, self.n, range(1, self.n + 1)
        factors = [pow(prod(x - y for y in points if y != x) % p, -1, p) for x in points]
        powers = range(n - self.t)
        checks = np.array(
            [[c * x**i for c, x in zip(factors, points, strict=True)] for i in powers]
        )
        syndromes = np.array(list(product(range(p), repeat=len(powers))))
        places = p ** np.arange(len(powers))[::-1]
        fits = np.zeros(len(syndromes), np.int64)  # a bit for each set of n - d members
        for bit, errors in enumerate(combinations(range(n), self.d)):
            for values in product(range(p), repeat=self.d):
                fits[checks[:, errors] @ np.array(values) % p @ places] |= 1 << bit
        coins = np.array(list(product(range(p), repeat=self.columns)))
        monic = [i for i, row in enumerate(syndromes) if i == 0 or row[row > 0][0] == 1]
        most_wins = most_close = 0
        for columns in combinations_with_replacement(monic, self.columns):
            combined = (syndromes[:, None] + coins @ syndromes[list(columns)]) % p @ places
            agreeing, common = fits[combined], fits & np.bitwise_and.reduce(fits[list(columns)])
            for _ in range(1, self.tests):
                agreeing = (agreeing[:, None, :, None] & fits[combined][:, None]).reshape(
                    len(agreeing) * len(fits), -1
                )
                common = (common[:, None] & fits).reshape(-1)
            wins = np.count_nonzero(agreeing & ~common[:, None], axis=1)
            close = np.count_nonzero(agreeing[common == 0], axis=1)
            most_wins = max(most_wins, int(wins.max()))
            most_close = max(most_close, int(close.max(initial=0)))
        return most_wins, most_close


@pytest.mark.parametrize(
    "game",
    [
        Game(7, n=4, t=2, d=1),
        Game(13, n=5, t=3, d=1),
        Game(7, n=5, t=2, d=1),
        Game(7, n=5, t=1, d=2),
        Game(7, n=4, t=2, d=1, columns=2),
        Game(5, n=4, t=2, d=1, tests=2),
        Game(5, n=5, t=3, d=1, tests=2),
    ],
    ids=str,
)
def test_a_device_wins_with_few_coins_if_half_of_the_surplus_complain(game: Game) -> None:
    wins, close = game.most_coins()
    assert wins <= (game.n + game.d) * game.share_of_coins
    assert close <= game.n * game.share_of_coins


@pytest.mark.parametrize(
    "game", [Game(7, n=4, t=2, d=1), Game(7, n=4, t=2, d=1, columns=2)], ids=str
)
def test_the_bound_of_the_cited_theorem_is_reached(game: Game) -> None:
    assert game.most_coins()[1] == game.n * game.share_of_coins


@pytest.mark.parametrize("game", [Game(11, n=5, t=2, d=2), Game(7, n=4, t=1, d=2)], ids=str)
def test_the_bound_does_not_hold_if_more_than_half_of_the_surplus_complain(game: Game) -> None:
    wins, close = game.most_coins()
    assert close > game.n
    assert wins >= close
