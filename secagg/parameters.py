"""Parameters of a cohort, from the assumptions: holders, threshold and spot checks.

Among n participants at most A = floor(corrupt n) are corrupt, and at most D = floor(dropout n)
drop out. Each participant selects k holders at random, with which it also masks, and any t of their
shares recover its secrets. The server is active: it sends any messages to any participant. The
parameters keep the promises below except with probability 2^-sigma (privacy) and 2^-eta
(correctness):

    holders      no participant has t or more corrupt holders, and each has t or more surviving
                 ones: both numbers are hypergeometric, and t lies between their tails. No group of
                 honest survivors is cut off from the others, or its sum would be visible: the
                 server names any participants as dropouts, but no group has t shares inside;
    spot checks  two survivor sets, each signed by a quorum, have forged signatures between them:
                 a participant that checks s random ones detects one.

Tails are computed exactly, where the paper bounds them, and the smallest even k that passes is
used. If none below n - 1 passes, the graph is complete and nothing is random. The proof names the
three privacy bounds HOLD (`threshold_range`), CUT (`log_cut_probability`) and SPLIT
(`_spot_checks`).

Source: the graph of k holders and its tails [Bell20, section 3.2, Definitions 3.1 to 3.3], which is
for a server that follows the protocol. Spot checks and the proof against an active server are
additions of blindtally: `docs/security-proof.md`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.errors import InfeasibleError

LogArray: TypeAlias = NDArray[np.float64]
_Tail: TypeAlias = Callable[[int, LogArray, int, int], LogArray]
_RATE_TOLERANCE = 1e-14  # rates such as 0.2 are not exact: 0.2 of 1000 must count as 200
_LN2 = math.log(2)
# ln n! is a table up to 4,095, and Stirling's series with three terms beyond, where the next term
# is below 10^-21. Devices compute parameters without scipy.
_LOG_FACTORIALS: Final = np.array([math.lgamma(n + 1.0) for n in range(4096)])
_HALF_LOG_TWO_PI: Final = math.log(2 * math.pi) / 2
_FLOAT_NATS = 50  # a hundred thousand terms of e^-50 of a sum do not change its 53 bits
_SIZES_AT_ONCE = 256
# The proof computes the effects of forged confirmations and invented entries; with these minima
# its bounds hold also where few dropouts are assumed, or few participants.
_MIN_HOLDERS = 10
_MIN_CUT_DROPOUTS = 6
MAX_EXPONENT = 128  # as unlikely as guessing a key
MAX_HOLDERS = 2_000  # key shares of 130 kB, and a bounded search
# The largest corrupt + 2 dropout for which promises are possible.
MAX_FAULT_FRACTION = 0.9


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The rates that a cohort tolerates, and the probabilities with which it may fail.

    `corrupt` and `dropout` are fractions of the cohort; 2^-sigma and 2^-eta are the probabilities
    that privacy and correctness fail.
    """

    corrupt: float
    dropout: float
    sigma: int = 40
    eta: int = 30

    def __post_init__(self) -> None:
        for name, rate in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not 0 <= rate < 1:
                raise ValueError(f"{name} is a fraction from 0 to below 1, got {rate}")
        if not (1 <= self.sigma <= MAX_EXPONENT and 1 <= self.eta <= MAX_EXPONENT):
            given = f"{self.sigma} and {self.eta}"
            raise ValueError(f"sigma and eta are 1 to {MAX_EXPONENT}, got {given}")

    def max_corrupt(self, n: int) -> int:
        """Return the maximum number of corrupt participants among `n` (A)."""
        return math.floor((self.corrupt + _RATE_TOLERANCE) * n)

    def max_dropouts(self, n: int) -> int:
        """Return the maximum number of dropouts among `n` participants (D)."""
        return math.floor((self.dropout + _RATE_TOLERANCE) * n)

    def quorum(self, n: int) -> int:
        """Return the number of `n` participants without which a phase fails."""
        return n - self.max_dropouts(n)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of a cohort of `n`: k holders, threshold t, s spot checks.

    Each threshold from `threshold` to `threshold + slack` keeps all promises, and the smallest is
    the cheapest.
    """

    n: int
    holders: int
    threshold: int
    spot_checks: int
    slack: int

    @property
    def is_complete(self) -> bool:
        """Return whether each participant is a holder of every other."""
        return self.holders == self.n - 1


@lru_cache(maxsize=1024)
def choose_parameters(n: int, assumptions: Assumptions) -> Parameters:
    """Return the cheapest parameters of a cohort of `n` under `assumptions`.

    Raises:
        InfeasibleError: if `n` is below 2, the rates add up to more than `MAX_FAULT_FRACTION`, more
            than `MAX_HOLDERS` are needed, or even the complete graph has no room between
            the corrupt and the surviving shares.
    """
    if n < 2:
        raise InfeasibleError(f"a sum of {n} participants hides nothing: at least 2 are needed")
    load = assumptions.corrupt + 2 * assumptions.dropout
    if load > MAX_FAULT_FRACTION:
        raise InfeasibleError(
            f"corrupt + 2 dropout is {load:.2f}, above {MAX_FAULT_FRACTION}: assume less"
        )
    for holders in range(_MIN_HOLDERS, min(n - 2, MAX_HOLDERS) + 1, 2):
        parameters = _sparse_parameters(n, holders, assumptions)
        if parameters is not None:
            return parameters
    if n - 1 > MAX_HOLDERS:
        raise InfeasibleError(
            f"{n:,} participants would need more than {MAX_HOLDERS:,} holders each: assume "
            f"lower rates, smaller sigma or eta, or a smaller cohort"
        )
    return _complete_graph_parameters(n, assumptions)


def _sparse_parameters(n: int, holders: int, assumptions: Assumptions) -> Parameters | None:
    """Return the parameters with this number of holders each, or None if that is too few."""
    lowest, highest = threshold_range(n, holders, assumptions)
    if lowest > highest:
        return None
    allowed = _allowed_cut(assumptions)
    for threshold in range(lowest, highest + 1):
        if log_cut_probability(n, holders, threshold, assumptions) <= allowed:
            checks = _spot_checks(n, assumptions)
            return Parameters(n, holders, threshold, checks, highest - threshold)
    return None


def _complete_graph_parameters(n: int, assumptions: Assumptions) -> Parameters:
    corrupt, survivors = assumptions.max_corrupt(n), assumptions.quorum(n)
    threshold = corrupt + 2
    if threshold > survivors:
        raise InfeasibleError(
            f"{n} participants with {n - survivors} dropouts have {survivors} shares, but with "
            f"{corrupt} corrupt participants the threshold is {threshold}: assume less, or ask for "
            f"more participants"
        )
    return Parameters(n, n - 1, threshold, _spot_checks(n, assumptions), survivors - threshold)


def _log_probability(exponent: float) -> float:
    return -exponent * _LN2


def threshold_range(n: int, holders: int, assumptions: Assumptions) -> tuple[int, int]:
    """Return the smallest and the largest t for this number of holders; none if they cross."""
    corrupt = _log_pmf(n - 1, assumptions.max_corrupt(n), holders)
    above = np.logaddexp.accumulate(corrupt[::-1])[::-1]  # above[t] = log Pr[X >= t]
    private = _log_probability(assumptions.sigma + 2) - math.log(n)
    t1 = int(np.argmax(np.append(above[1:], -np.inf) <= private))
    surviving = math.ceil((1 - assumptions.dropout - _RATE_TOLERANCE) * n)
    below = np.logaddexp.accumulate(_log_pmf(n, surviving, holders))  # log Pr[Y <= t]
    highest = int(np.count_nonzero(below <= _log_probability(assumptions.eta) - math.log(n)))
    return max(t1 + 1, 2), highest


def log_cut_probability(n: int, holders: int, threshold: int, assumptions: Assumptions) -> float:
    """Return the log of the probability that an active server can cut off any honest group.

    A group of c is cut off if each of its members has t - 1 holders or more in the group or among
    the corrupt, and no honest survivor outside selected a member. The server chooses the dropouts
    outside, D or `_MIN_CUT_DROPOUTS`. The result is exact up to `_allowed_cut`; above, it may be
    too small, but stays above.
    """
    corrupt = assumptions.max_corrupt(n)
    dropouts = max(assumptions.max_dropouts(n), _MIN_CUT_DROPOUTS)
    size = np.arange(1.0, (n - corrupt) // 2 + 1)
    others = n - corrupt - size
    surviving = np.maximum(others - dropouts, 0)
    avoiding = _log_choose(n - 1 - size, holders) - _log_choose(n - 1, holders)
    avoiding = surviving * np.where(surviving > 0, avoiding, 0)
    choices = _log_choose(others, np.minimum(dropouts, others))
    outside = np.minimum(choices + avoiding, 0)
    groups = _log_choose(n - corrupt, size) + outside

    def cut(size: LogArray, tail: _Tail) -> LogArray:
        inside = tail(n - 1, corrupt + size - 1, holders, threshold - 1)
        result: LogArray = groups[size.astype(int) - 1] + size * inside
        return result

    # Most sizes are negligible by a bound on their tails.
    allowed, bound = _allowed_cut(assumptions), cut(size, log_tail_bound)
    relevant = bound > allowed - _FLOAT_NATS
    rest = log_sum_exp(np.append(bound[~relevant], -np.inf))
    return float(np.logaddexp(rest, log_sum(partial(cut, tail=log_tail), size[relevant], allowed)))


def _allowed_cut(assumptions: Assumptions) -> float:
    return _log_probability(assumptions.sigma + 2)


def log_sum(terms: Callable[[LogArray], LogArray], size: LogArray, limit: float) -> float:
    """Return the log of the sum of exp(terms) over all `size`, or of a part that is above `limit`.

    Group sizes are added by the hundred, to use little memory and to stop early.
    """
    total = -math.inf
    for start in range(0, len(size), _SIZES_AT_ONCE):
        part = log_sum_exp(terms(size[start : start + _SIZES_AT_ONCE]))
        total = float(np.logaddexp(total, part))
        if total > limit:
            break
    return total


def _spot_checks(n: int, assumptions: Assumptions) -> int:
    """Return the number of confirmations that each participant checks (s).

    Honest participants sign one set and corrupt ones any. Two sets of q signatures each have at
    least z = 2 q - n - A forged ones together; detection is hardest if each set has half.
    """
    quorum = assumptions.quorum(n)
    forged = 2 * quorum - n - assumptions.max_corrupt(n)
    passing = math.log2(1 - max(forged, 1) / (2 * quorum))
    exponent = assumptions.sigma + 2 + 2 * math.log2(n)
    return min(math.ceil(exponent / (-2 * passing)), quorum - 1)


def relative_entropy(p: LogArray | float, q: LogArray | float) -> LogArray:
    """Return the relative entropy of coins with probabilities `p` and `q`, in nats."""
    return relative_entropy_term(p, q) + relative_entropy_term(1 - p, 1 - q)


def log_tail(population: int, marked: LogArray, draws: int, least: int) -> LogArray:
    """Return log Pr[at least `least` of the `marked` are drawn], for each number of marked."""
    x = np.arange(least, draws + 1.0)[:, np.newaxis]
    pmf = _log_choose(marked, x) + _log_choose(population - marked, draws - x)
    tail: LogArray = log_sum_exp(pmf, axis=0) - _log_choose(population, draws)
    return np.minimum(tail, 0)


def log_tail_bound(population: int, marked: LogArray, draws: int, least: int) -> LogArray:
    """Return a bound on `log_tail` that needs no sum [Hoeffding 1963, (2.1)]."""
    share, need = marked / population, least / draws
    return -draws * np.where(share < need, relative_entropy(need, share), 0)


def _log_pmf(population: int, marked: int, draws: int) -> LogArray:
    """Return log Pr[x marked among `draws`] for x = 0 .. draws, hypergeometric."""
    unmarked = _log_choices(population - marked)[draws::-1]
    every = _log_choices(population)[draws]
    pmf: LogArray = _log_choices(marked)[: draws + 1] + unmarked - every
    return pmf


@lru_cache(maxsize=8)
def _log_choices(n: int) -> LogArray:
    """Return the logs of the binomial coefficients of `n` over 0 to `MAX_HOLDERS`."""
    return _log_choose(n, np.arange(MAX_HOLDERS + 1.0))


def _log_choose(n: LogArray | float, k: LogArray | float) -> LogArray:
    """Return the log of the binomial coefficient of `n`, 0 or more; -inf where it is zero."""
    # There a factorial below the line is one of a negative number, which is infinite.
    return log_factorial(n) - log_factorial(k) - log_factorial(n - k)


def log_factorial(n: LogArray | float) -> LogArray:
    """Return ln n! for whole numbers `n`; inf below zero."""
    whole, size = np.asarray(n, np.float64), len(_LOG_FACTORIALS)
    logs: LogArray = _LOG_FACTORIALS[np.clip(whole, 0, size - 1).astype(np.intp)]
    if np.max(whole, initial=0) >= size:
        logs = np.where(whole < size, logs, _stirling(np.maximum(whole, size)))
    if np.min(whole, initial=0) < 0:
        logs = np.where(whole < 0, np.inf, logs)
    return logs


def _stirling(n: LogArray) -> LogArray:
    inverse = 1 / n
    correction = inverse * (1 / 12 - inverse * inverse / 360)
    result: LogArray = (n + 0.5) * np.log(n) - n + _HALF_LOG_TWO_PI + correction
    return result


def log_sum_exp(terms: LogArray, axis: int | None = None) -> LogArray:
    """Return the log of the sum of exp(`terms`) along `axis`, or of all; -inf if each is -inf."""
    largest = np.max(terms, axis=axis, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):  # the log of zero is -inf
        sums = np.log(np.sum(np.exp(terms - shift), axis=axis, keepdims=True)) + shift
    result: LogArray = np.squeeze(sums, axis=axis)
    return result


def relative_entropy_term(p: LogArray | float, q: LogArray | float) -> LogArray:
    """Return p ln(p / q), which is 0 if p is 0, and inf if only q is 0."""
    p, q = np.broadcast_arrays(np.asarray(p, np.float64), np.asarray(q, np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, p * np.log(p / q), 0.0)
