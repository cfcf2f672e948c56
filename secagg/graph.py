"""Who masks with whom: a sparse neighbour graph, its degree and its sharing threshold.

Participants sit on a ring in a random order, and each is a neighbour of the k/2 on either
side. Two secrets of each participant are shared among its neighbours and itself, so that any
`threshold` of these shares recover it. Degree k and threshold t must keep two promises, for
n participants of which at most A = floor(corrupt n) are corrupt and D = floor(dropout n) lost:

    privacy      except with odds 2^-sigma, no participant has t or more corrupt neighbours,
                 and losses do not cut the graph of the honest ones in two;
    correctness  except with odds 2^-eta, everybody has t or more surviving neighbours.

Neighbours of a fixed participant are a random k-subset, so the numbers of corrupt and of
surviving ones are hypergeometric, and the ring is cut only by two gaps of k/2 bad seats.
We compute with these tails exactly instead of bounding them, and take the smallest even k,
which the paper's closed formula overestimates. If none below n - 1 will do, the graph is
complete and nothing is left to chance.

Source: [Bell20, section 3.2, Definitions 3.1 to 3.3 and Theorem 3.10].
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import gammaln, logsumexp

from secagg.errors import InfeasibleError
from secagg.keys import Stream

Mode: TypeAlias = Literal["semi-honest", "active"]
_ROUNDING = 1e-14  # rates such as 0.2 are not exact: 0.2 * 1000 must count as 200
_LN2 = math.log(2)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The rates a cohort is secure against, and the odds at which it may fail.

    `corrupt` and `dropout` are fractions of the cohort; `sigma` and `eta` are the exponents
    of the odds against privacy and against correctness. Against an `active` server, which
    may tell neighbours different stories, t also exceeds half of what neighbours hold.
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
        """Return the most participants that may be lost of `n` (D)."""
        return math.floor((self.dropout + _ROUNDING) * n)

    def quorum(self, n: int) -> int:
        """Return how many of `n` participants each phase must keep."""
        return n - self.lost(n)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Degree k and sharing threshold t of a cohort of `n`.

    `slack` says how far t could grow before correctness suffers: any threshold in
    `threshold .. threshold + slack` keeps both promises, and the least is the cheapest.
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
        InfeasibleError: if even the complete graph keeps no promise: the rates leave no
            room between the corrupt and the surviving, or `n` is below 2.
    """
    if n < 2:
        raise InfeasibleError(f"a sum of {n} participants hides nothing: at least 2 are needed")
    load = assumptions.corrupt + assumptions.dropout
    if assumptions.mode == "active":
        load += assumptions.dropout
    if load <= 0.9:  # beyond, [Bell20] proves nothing of sparse graphs
        for degree in range(2, n - 1, 2):
            if not _is_connected(n, degree, assumptions):
                continue
            least, most = _thresholds(n, degree, assumptions)
            if least <= most:
                return Parameters(n, degree, least, most - least)
    return _complete(n, assumptions)


def _complete(n: int, assumptions: Assumptions) -> Parameters:
    corrupt, kept = assumptions.corrupted(n), assumptions.quorum(n)
    least = max(corrupt + 1, 2)
    if assumptions.mode == "active":
        least = max((n + corrupt) // 2 + 1, least)  # 2 t > n + A: no two stories get t each
    if least > kept:
        raise InfeasibleError(
            f"{n} participants, {corrupt} of them corrupt and {n - kept} lost: {kept} shares "
            f"remain where {least} are needed; assume less, or ask for a larger cohort"
        )
    return Parameters(n, n - 1, least, kept - least)


def _is_connected(n: int, degree: int, assumptions: Assumptions) -> bool:
    """Return whether the honest survivors stay connected except with odds 2^-(sigma+1)."""
    bad = assumptions.corrupted(n) + assumptions.lost(n)
    if degree > bad:
        return True
    seats = np.arange(degree)
    run = float(np.sum(np.log(bad - seats) - np.log(n - seats)))
    pairs = math.log(n) + math.log(n - degree - 1) - _LN2
    return pairs + run < -(assumptions.sigma + 1) * _LN2


def _thresholds(n: int, degree: int, assumptions: Assumptions) -> tuple[int, int]:
    """Return the least and greatest t for `degree`; no t will do if least > greatest."""
    corrupt = _log_pmf(n, assumptions.corrupted(n), degree)
    above = np.logaddexp.accumulate(corrupt[::-1])[::-1]  # above[t] = log Pr[X >= t]
    private = -(assumptions.sigma + 1) * _LN2 - math.log(n)
    t1 = int(np.argmax(np.append(above[1:], -np.inf) <= private))
    if assumptions.mode == "active":
        t1 = math.ceil((t1 + degree - 1.25) / 2)
    surviving = _log_pmf(n, math.ceil((1 - assumptions.dropout - _ROUNDING) * n), degree)
    below = np.logaddexp.accumulate(surviving)  # below[t] = log Pr[Y <= t]
    correct = -assumptions.eta * _LN2 - math.log(n)
    most = int(np.count_nonzero(below <= correct))
    return max(t1 + 1, 2), most


def _log_pmf(population: int, marked: int, draws: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return log Pr[x marked among `draws`] for x = 0 .. draws (hypergeometric)."""
    x = np.arange(draws + 1)

    def log_choose(n: object, k: object) -> object:
        return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)  # type: ignore

    return x
