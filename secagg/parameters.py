"""How many hold, how many mask, how many vouch: from what is assumed of a cohort.

Among n participants at most A = floor(corrupt n) are corrupt, and at most D = floor(dropout n)
are lost. Each participant picks k holders at random, among whom any t shares recover its
secrets; the first m of them are its partners, with whom it masks. These numbers keep, but
for odds of 2^-sigma (privacy) and 2^-eta (correctness):

    holders   nobody has t or more corrupt holders, everybody has t or more surviving ones:
              their numbers are hypergeometric, and t lies between their tails;
    partners  no group of honest survivors is cut off from the others, or its sum would show.
              Against a semi-honest server losses do not depend on the graph, and few partners
              do. An `active` one names whom it likes as lost; but whoever is unmasked has t
              shares given away, by itself, by corrupt holders and by honest ones that are in
              its group. With all holders as partners (m = k) no group has so many inside;
    witnesses two survivor sets, each signed by a quorum, hold forged signatures between them:
              whoever checks s of them at random finds one (`active` only).

Tails are computed exactly where the paper bounds them, and the least even k that passes is
taken. If none below n - 1 does, the graph is complete and nothing is left to chance.

Source: k and t of the semi-honest mode [Bell20, section 3.2, Definitions 3.1 to 3.3, Theorem
3.10]. Partners, witnesses and the proof for the active mode are ours: `docs/threat-model.md`.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from secagg.errors import InfeasibleError

Mode: TypeAlias = Literal["semi-honest", "active"]
_Logs: TypeAlias = NDArray[np.float64]
_ROUNDING = 1e-14  # rates such as 0.2 are not exact: 0.2 of 1000 must count as 200
_LN2 = math.log(2)
MOST_HOLDERS = 2_000  # parcels of 130 kB a deal, and a bounded search
MOST_LOAD = 0.9  # of corrupt and lost (lost twice if active): beyond, little can be promised


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The rates a cohort is secure against, and the odds at which it may fail.

    `corrupt` and `dropout` are fractions of the cohort; `sigma` and `eta` are the exponents
    of the odds against privacy and against correctness. A `semi-honest` server keeps to the
    protocol; an `active` one says to each participant what it likes.
    """

    corrupt: float
    dropout: float
    sigma: int = 40
    eta: int = 30
    mode: Mode = "active"

    def __post_init__(self) -> None:
        for name, rate in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name} is a fraction from 0 to below 1, got {rate}")
        if not (1 <= self.sigma <= 256 and 1 <= self.eta <= 256):
            raise ValueError(f"sigma and eta are 1 to 256, got {self.sigma} and {self.eta}")
        if self.mode not in ("semi-honest", "active"):
            raise ValueError(f"mode is semi-honest or active, got {self.mode!r}")

    @property
    def is_active(self) -> bool:
        """Return whether the server may do what it likes."""
        return self.mode == "active"

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
    """What a cohort of `n` needs: k `holders`, of whom m `partners`, t `threshold`, s `witnesses`.

    `slack` says how far t could grow before correctness suffers: each threshold from
    `threshold` to `threshold + slack` keeps all promises, and the least is the cheapest.
    """

    n: int
    holders: int
    threshold: int
    partners: int
    witnesses: int
    slack: int

    @property
    def is_complete(self) -> bool:
        """Return whether everybody holds shares of everybody."""
        return self.holders == self.n - 1


@lru_cache(maxsize=1024)
def parameters(n: int, assumptions: Assumptions) -> Parameters:
    """Return the cheapest parameters of a cohort of `n` under `assumptions`.

    Raises:
        InfeasibleError: if `n` is below 2, the rates add up to more than `MOST_LOAD`, more
            than `MOST_HOLDERS` are needed, or even the complete graph has no room between
            the corrupt and the surviving.
    """
    if n < 2:
        raise InfeasibleError(f"a sum of {n} participants hides nothing: at least 2 are needed")
    load = assumptions.corrupt + assumptions.dropout * (1 + assumptions.is_active)
    if load > MOST_LOAD:
        counted = "corrupt + 2 dropout" if assumptions.is_active else "corrupt + dropout"
        raise InfeasibleError(f"{counted} is {load:.2f}, above {MOST_LOAD}: assume less")
    for holders in range(2, min(n - 2, MOST_HOLDERS) + 1, 2):
        found = _sparse(n, holders, assumptions)
        if found is not None:
            return found
    if n - 1 > MOST_HOLDERS:
        raise InfeasibleError(
            f"{n:,} participants would need more than {MOST_HOLDERS:,} holders each: assume "
            f"fewer corrupt or lost, larger odds, or a smaller cohort"
        )
    return _complete(n, assumptions)


def _sparse(n: int, holders: int, assumptions: Assumptions) -> Parameters | None:
    """Return the parameters with so many holders each, or None if that is too few."""
    least, most = _thresholds(n, holders, assumptions)
    if least > most:
        return None
    if not assumptions.is_active:
        partners = _partners(n, holders, assumptions)
        if partners is None:
            return None
        return Parameters(n, holders, least, partners, 0, most - least)
    for threshold in range(least, most + 1):
        if _log_cut_active(n, holders, threshold, assumptions) <= _odds(assumptions.sigma + 2):
            witnesses = _witnesses(n, assumptions)
            return Parameters(n, holders, threshold, holders, witnesses, most - threshold)
    return None


def _complete(n: int, assumptions: Assumptions) -> Parameters:
    corrupt, kept = assumptions.corrupted(n), assumptions.quorum(n)
    least = max(corrupt + 1 + assumptions.is_active, 2)
    if least > kept:
        raise InfeasibleError(
            f"of {n} participants {corrupt} corrupt and {n - kept} lost leave {kept} shares, "
            f"where a threshold of {least} is needed: assume less, or ask for more participants"
        )
    witnesses = _witnesses(n, assumptions) if assumptions.is_active else 0
    return Parameters(n, n - 1, least, n - 1, witnesses, kept - least)


def _odds(exponent: float) -> float:
    return -exponent * _LN2


def _thresholds(n: int, holders: int, assumptions: Assumptions) -> tuple[int, int]:
    """Return the least and the greatest t for so many holders; none will do if least > greatest."""
    active = int(assumptions.is_active)
    corrupt = _log_pmf(n - active, assumptions.corrupted(n), holders)
    above = np.logaddexp.accumulate(corrupt[::-1])[::-1]  # above[t] = log Pr[X >= t]
    private = _odds(assumptions.sigma + 1 + active) - math.log(n)
    t1 = int(np.argmax(np.append(above[1:], -np.inf) <= private))
    surviving = math.ceil((1 - assumptions.dropout - _ROUNDING) * n)
    below = np.logaddexp.accumulate(_log_pmf(n, surviving, holders))  # log Pr[Y <= t]
    most = int(np.count_nonzero(below <= _odds(assumptions.eta) - math.log(n)))
    return max(t1 + 1, 2), most


def _partners(n: int, holders: int, assumptions: Assumptions) -> int | None:
    """Return the least m with which random losses cut no honest group off."""
    bad = assumptions.corrupted(n) + assumptions.lost(n)
    honest = n - bad
    size = np.arange(1.0, honest // 2 + 1)
    for m in range(1, holders + 1):
        all_picks = _log_choose(n - 1, m)
        inside = _log_choose(bad + size - 1, m) - all_picks  # of one in the group
        outside = _log_choose(n - 1 - size, m) - all_picks  # of one who is not
        groups = _log_choose(honest, size) + size * inside + (honest - size) * outside
        if logsumexp(np.append(groups, -np.inf)) <= _odds(assumptions.sigma + 1):
            return m
    return None


def _log_cut_active(n: int, holders: int, threshold: int, assumptions: Assumptions) -> float:
    """Return the log of the odds that an active server can cut any honest group off.

    A group of c is cut off if each of its members has t - 1 holders or more among its own
    and the corrupt, and all honest survivors outside picked nobody in it. Which of those
    outside are lost is up to the server: any D of them.
    """
    corrupt, lost = assumptions.corrupted(n), assumptions.lost(n)
    size = np.arange(1.0, (n - corrupt) // 2 + 1)
    inside = _log_tail(n - 1, corrupt + size - 1, holders, threshold - 1)
    others = n - corrupt - size
    silent = np.maximum(others - lost, 0)
    avoiding = _log_choose(n - 1 - size, holders) - _log_choose(n - 1, holders)
    outside = np.minimum(_log_choose(others, np.minimum(lost, others)) + silent * avoiding, 0)
    groups = _log_choose(n - corrupt, size) + size * inside
    return float(logsumexp(np.append(np.where(silent > 0, groups + outside, groups), -np.inf)))


def _witnesses(n: int, assumptions: Assumptions) -> int:
    """Return how many confirmations each participant checks (s).

    Honest participants sign one set and corrupt ones any. Two sets of q signatures each hold
    z = 2 q - n - A forged ones or more; it is hardest to find one if each set has half.
    """
    quorum = assumptions.quorum(n)
    forged = 2 * quorum - n - assumptions.corrupted(n)
    passing = math.log2(1 - max(forged, 1) / (2 * quorum))
    exponent = assumptions.sigma + 2 + 2 * math.log2(n)
    return min(math.ceil(exponent / (-2 * passing)), quorum - 1)


def _log_tail(population: int, marked: _Logs, draws: int, least: int) -> _Logs:
    """Return log Pr[`least` or more of those `marked` are drawn], for each number of marked."""
    x = np.arange(max(least, 0), draws + 1.0)[:, np.newaxis]
    pmf = _log_choose(marked, x) + _log_choose(population - marked, draws - x)
    tail: _Logs = logsumexp(pmf, axis=0) - _log_choose(population, draws)
    return np.minimum(tail, 0)


def _log_pmf(population: int, marked: int, draws: int) -> _Logs:
    """Return log Pr[x marked among `draws`] for x = 0 .. draws, hypergeometric."""
    x = np.arange(draws + 1.0)
    every = _log_choose(population, draws)
    return _log_choose(marked, x) + _log_choose(population - marked, draws - x) - every


def _log_choose(n: _Logs | float, k: _Logs | float) -> _Logs:
    """Return the log of the binomial coefficient, -inf where it is zero."""
    possible = (np.asarray(k) >= 0) & (np.asarray(k) <= np.asarray(n))
    with np.errstate(invalid="ignore"):
        logs = gammaln(np.asarray(n) + 1.0) - gammaln(np.asarray(k) + 1.0)
        logs = logs - gammaln(np.maximum(np.asarray(n) - np.asarray(k), 0) + 1.0)
    found: _Logs = np.where(possible, logs, -np.inf)
    return found
