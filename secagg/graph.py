"""Who masks with whom: a sparse neighbour graph, its degree and its sharing threshold.

Participants sit on a ring in a random order, and each is a neighbour of the k/2 on either
side. Two secrets of each participant are shared among its neighbours and itself, so that any
t of these shares recover one. Degree k and threshold t must keep two promises, for n
participants of which at most A = floor(corrupt n) are corrupt and D = floor(dropout n) lost:

    privacy      except with odds 2^-sigma, no participant has t or more corrupt neighbours,
                 and losses do not cut the graph of the honest ones in two;
    correctness  except with odds 2^-eta, everybody has t or more surviving neighbours.

The neighbours of a fixed participant are a random k-subset, so the numbers of corrupt and of
surviving ones are hypergeometric, and the ring is cut only by two gaps of k/2 bad seats.
We compute these tails exactly where the paper bounds them, and take the smallest even k that
passes. If none below n - 1 does, the graph is complete and nothing is left to chance.

Source: [Bell20, section 3.2, Definitions 3.1 to 3.3, Theorem 3.10].
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from secagg.errors import InfeasibleError
from secagg.keys import Stream

Mode: TypeAlias = Literal["semi-honest", "active"]
_ROUNDING = 1e-14  # rates such as 0.2 are not exact: 0.2 of 1000 must count as 200
_LN2 = math.log(2)
MOST_DEGREE = 2_000  # envelopes of 200 kB a device, and a bounded search
MOST_LOAD = 0.9  # of corrupt and lost (lost twice if active): beyond, [Bell20] proves nothing


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The rates a cohort is secure against, and the odds at which it may fail.

    `corrupt` and `dropout` are fractions of the cohort; `sigma` and `eta` are the exponents
    of the odds against privacy and against correctness. Against an `active` server, which
    may tell neighbours different stories, no two stories may collect t shares each.
    """

    corrupt: float
    dropout: float
    sigma: int = 40
    eta: int = 30
    mode: Mode = "semi-honest"

    def __post_init__(self) -> None:
        for name, rate in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name} is a fraction from 0 to below 1, got {rate}")
        if not (1 <= self.sigma <= 256 and 1 <= self.eta <= 256):
            raise ValueError(f"sigma and eta are 1 to 256, got {self.sigma} and {self.eta}")
        if self.mode not in ("semi-honest", "active"):
            raise ValueError(f"mode is semi-honest or active, got {self.mode!r}")

    def corrupted(self, n: int) -> int:
        """Return the most corrupt participants among `n` (A)."""
        return math.floor((self.corrupt + _ROUNDING) * n)

    def lost(self, n: int) -> int:
        """Return the most participants of `n` that may be lost (D)."""
        return math.floor((self.dropout + _ROUNDING) * n)

    def quorum(self, n: int) -> int:
        """Return how many of `n` participants every phase must keep."""
        return n - self.lost(n)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Degree k and sharing threshold t of a cohort of `n`.

    `slack` says how far t could grow before correctness suffers: each threshold from
    `threshold` to `threshold + slack` keeps both promises, and the least is the cheapest.
    """

    n: int
    degree: int
    threshold: int
    slack: int

    @property
    def is_complete(self) -> bool:
        """Return whether everybody is everybody's neighbour."""
        return self.degree == self.n - 1


@lru_cache(maxsize=1024)
def parameters(n: int, assumptions: Assumptions) -> Parameters:
    """Return the cheapest parameters of a cohort of `n` under `assumptions`.

    Raises:
        InfeasibleError: if `n` is below 2, the rates add up to more than `MOST_LOAD`, more
            than `MOST_DEGREE` neighbours are needed, or even the complete graph has no room
            between the corrupt and the surviving.
    """
    if n < 2:
        raise InfeasibleError(f"a sum of {n} participants hides nothing: at least 2 are needed")
    load = assumptions.corrupt + assumptions.dropout * (1 + (assumptions.mode == "active"))
    if load > MOST_LOAD:
        counted = "corrupt + 2 dropout" if assumptions.mode == "active" else "corrupt + dropout"
        raise InfeasibleError(f"{counted} is {load:.2f}, above {MOST_LOAD}: assume less")
    for degree in range(2, min(n - 2, MOST_DEGREE) + 1, 2):
        if _is_connected(n, degree, assumptions):
            least, most = _thresholds(n, degree, assumptions)
            if least <= most:
                return Parameters(n, degree, least, most - least)
    if n - 1 > MOST_DEGREE:
        raise InfeasibleError(
            f"{n:,} participants would need more than {MOST_DEGREE:,} neighbours each: assume "
            f"fewer corrupt or lost, larger odds, or a smaller cohort"
        )
    return _complete(n, assumptions)


def _complete(n: int, assumptions: Assumptions) -> Parameters:
    corrupt, kept = assumptions.corrupted(n), assumptions.quorum(n)
    least = max(corrupt + 1, 2)
    if assumptions.mode == "active":
        least = max((n + corrupt) // 2 + 1, least)  # 2 t > n + A: two stories never get t each
    if least > kept:
        raise InfeasibleError(
            f"of {n} participants {corrupt} corrupt and {n - kept} lost leave {kept} shares, "
            f"where a threshold of {least} is needed: assume less, or ask for more participants"
        )
    return Parameters(n, n - 1, least, kept - least)


def _is_connected(n: int, degree: int, assumptions: Assumptions) -> bool:
    """Return whether the honest survivors stay connected but for odds of 2^-(sigma+1)."""
    bad = assumptions.corrupted(n) + assumptions.lost(n)
    if degree > bad:
        return True  # too few to fill two gaps
    seats = np.arange(degree)
    gaps = float(np.sum(np.log(bad - seats) - np.log(n - seats)))
    pairs = math.log(n) + math.log(n - degree - 1) - _LN2
    return pairs + gaps < -(assumptions.sigma + 1) * _LN2


def _thresholds(n: int, degree: int, assumptions: Assumptions) -> tuple[int, int]:
    """Return the least and the greatest t for `degree`; none will do if least > greatest."""
    corrupt = _log_pmf(n, assumptions.corrupted(n), degree)
    above = np.logaddexp.accumulate(corrupt[::-1])[::-1]  # above[t] = log Pr[X >= t]
    private = -(assumptions.sigma + 1) * _LN2 - math.log(n)
    t1 = int(np.argmax(np.append(above[1:], -np.inf) <= private))
    if assumptions.mode == "active":
        t1 = math.ceil((t1 + degree - 1.25) / 2)  # 2 t >= k + t1 + 1
    surviving = math.ceil((1 - assumptions.dropout - _ROUNDING) * n)
    below = np.logaddexp.accumulate(_log_pmf(n, surviving, degree))  # log Pr[Y <= t]
    most = int(np.count_nonzero(below <= -assumptions.eta * _LN2 - math.log(n)))
    return max(t1 + 1, 2), most


def _log_pmf(population: int, marked: int, draws: int) -> NDArray[np.float64]:
    """Return log Pr[x marked among `draws`] for x = 0 .. draws, hypergeometric."""
    x = np.arange(draws + 1.0)
    unmarked = population - marked
    possible = (x <= marked) & (draws - x <= unmarked)
    x = np.where(possible, x, max(draws - unmarked, 0))
    log_pmf: NDArray[np.float64] = (
        _log_choose(marked, x)
        + _log_choose(unmarked, draws - x)
        - _log_choose(population, np.float64(draws))
    )
    return np.where(possible, log_pmf, -np.inf)


def _log_choose(n: int, k: NDArray[np.float64] | np.float64) -> NDArray[np.float64]:
    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1) - gammaln(n - k + 1))


class Graph:
    """The neighbours in a cohort of `n`: a ring of degree `degree` in the order of `seed`.

    Seats are taken in the order of n 64-bit words of AES-CTR keystream under `seed`, so
    that everybody who knows the 32 public bytes computes the same graph.
    """

    def __init__(self, n: int, degree: int, seed: bytes) -> None:
        self.n = n
        self.degree = degree
        words = np.empty(n, dtype="<u8")
        Stream(seed).fill(words)
        self._order = np.argsort(words, kind="stable")  # slot by seat
        self._seat = np.empty(n, dtype=np.intp)  # seat by slot
        self._seat[self._order] = np.arange(n)

    def neighbours(self, slot: int) -> tuple[int, ...]:
        """Return the neighbours of `slot`, in rising order.

        Raises:
            ValueError: if no participant has that slot.
        """
        if not 0 <= slot < self.n:
            raise ValueError(f"slots are 0 to {self.n - 1}, got {slot}")
        if self.degree >= self.n - 1:
            return tuple(other for other in range(self.n) if other != slot)
        half = self.degree // 2
        steps = np.concatenate((np.arange(-half, 0), np.arange(1, half + 1)))
        found = self._order[(self._seat[slot] + steps) % self.n]
        return tuple(int(other) for other in np.sort(found))


graph = lru_cache(maxsize=64)(Graph)  # a server asks for the same few graphs again and again
