"""Rates of items by round, and the items whose rates changed, with a false-discovery rate.

A *rate* is the expected number of an item's tokens per device, of which the devices of a round are
a sample. So an interval of a rate has the chance of which devices come, also for an item that a
round counts exactly. The interval of a heavy hitter's total does not have it: a total is that of
the devices that did come.

An item's `tokens` were observed among devices of some `exposure` (`History` in
`mechanisms/tracked/rate_filter.py`). Devices that are counted give all of their tokens, devices
that are sampled at t the share 1/t, and those of a table that was not read none. Sampled or not,
the tokens are a Poisson count at the item's rate x,

    s  ~  mean x e, variance D x e          e: the exposure, D: the dispersion of the item

so no item seems to rise because it is counted from a round on and was only sampled before. The
exposure of a round depends on earlier rounds only, so s - x e is 0 on average, round by round, even
though an item is counted because it was sampled. D is 1 if tokens come one by one, as those of
different devices, and larger if an item comes in bursts. It is measured by the differences of an
item's rates in neighbouring rounds, which a slow change or a single step moves little, together
with the D of all items.

**Two rates are compared** given their common number of tokens. s / D tokens out of e / D devices
carry the information of a Poisson count. If the rates are equal, the later one of two such counts
has a binomial share e2 / (e1 + e2) of their sum [PrzyborowskiWilenski40]. So the p-value is exact
for any number of tokens, and too large by chance's grain if there are few. The same share gives the
interval of the *factor* between the rates, as of [ClopperPearson34].

**Many items are compared at once**, so some differ by chance. Of k p-values, the r smallest are
reported for the largest r such that the r-th is at most q r / k. Then on average at most a share q
of the reported changes is false: the *false-discovery rate* [BenjaminiHochberg95]. Intervals of the
reported factors have the level 1 - q r / k, so that on average at most a share q of them misses the
true factor [BenjaminiYekutieli05]. Such an interval excludes 1 exactly if the change is reported.

Where an answer does not list an item, only a bound on its tokens is known. The item is compared as
if it reached this bound, and only a higher rate in the other answer is a change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from protocol.numerics import special
from protocol.numerics.array_types import Flags, Floats, Indices

ChangeKind = Literal["rising", "falling", "new", "gone"]
_RATE_LEVEL = 0.95  # of the interval of one rate
_PRIOR_PAIRS = 10.0  # pairs of rounds that the dispersion of all items counts for
_COUNTED_SHARE = 1 - 1e-9  # of the devices; sums of many rounds are rounded


@dataclass(frozen=True, slots=True)
class RateHistory:
    """Observed tokens and exposure of k items in B blocks of rounds, both (k, B).

    The blocks have `devices` (B,) and end with the rounds `last_rounds` (B,). `dispersion` is that
    of all items, where it is measured.
    """

    tokens: Floats
    exposure: Floats
    devices: Floats
    last_rounds: Indices
    dispersion: float = 1.0

    @property
    def first_rounds(self) -> Indices:
        first: Indices = np.append(0, self.last_rounds[:-1]) + 1
        return first

    @property
    def is_counted(self) -> Flags:
        """Return a mask of the blocks that counted all tokens of an item (k, B)."""
        counted: Flags = (self.exposure >= _COUNTED_SHARE * self.devices) & (self.devices > 0)
        return counted

    @property
    def _is_read(self) -> Flags:
        """Return a mask of the blocks that observed the items (B,)."""
        observed: Floats = self.exposure.sum(axis=0) if len(self.exposure) else self.devices
        return observed > 0

    def select(self, rows: Sequence[int]) -> "RateHistory":
        """Return the observations of the items in `rows`."""
        chosen = np.array(rows, np.int64)
        return replace(self, tokens=self.tokens[chosen], exposure=self.exposure[chosen])

    def dispersions(self) -> Floats:
        """Return the dispersion D of each item, 1 or more."""
        rates = self.tokens.sum(axis=1) / np.maximum(self.exposure.sum(axis=1), 1e-9)
        with np.errstate(divide="ignore", invalid="ignore"):
            by_block = self.tokens / self.exposure
            widths = 1 / self.exposure[:, 1:] + 1 / self.exposure[:, :-1]
            squares = np.diff(by_block, axis=1) ** 2 / (rates[:, np.newaxis] * widths)
        is_pair = np.isfinite(squares)
        pairs, sums = is_pair.sum(axis=1), np.where(is_pair, squares, 0).sum(axis=1)
        measured = (sums + _PRIOR_PAIRS * self.dispersion) / (pairs + _PRIOR_PAIRS)
        dispersions: Floats = np.maximum(1, measured)
        return dispersions

    def by_block(self) -> "RateSample":
        """Return the sample of each block (k, B)."""
        dispersions = self.dispersions()[:, np.newaxis]
        return RateSample(self.tokens / dispersions, self.exposure / dispersions)

    def sample(self, first_round: int, last_round: int) -> "RateSample":
        """Return the sample of each item in the blocks inside these rounds.

        Raises:
            ValueError: if no block that was read is inside.
        """
        inside = (self.first_rounds >= first_round) & (self.last_rounds <= last_round)
        if not (inside & self._is_read).any():
            size = int(self.last_rounds[0])
            raise ValueError(
                f"rounds {first_round}-{last_round} contain no block of {size} rounds that was read"
                if size > 1
                else f"no round of {first_round}-{last_round} was read"
            )
        dispersions = self.dispersions()
        tokens, exposure = (each[:, inside].sum(axis=1) for each in (self.tokens, self.exposure))
        return RateSample(tokens / dispersions, exposure / dispersions)

    def halves(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the first and last round of both halves of the blocks that were read.

        Raises:
            ValueError: if fewer than two were read.
        """
        read = self.last_rounds[self._is_read]
        if len(read) < 2:
            raise ValueError("a change needs two rounds whose sums were read")
        middle = int(read[len(read) // 2 - 1])
        return (1, middle), (middle + 1, int(self.last_rounds[-1]))


@dataclass(frozen=True, slots=True)
class RateSample:
    """Poisson counts that carry what is known of rates: `tokens` among an `exposure` of devices.

    Where `is_bound`, the item is not listed, and had at most these tokens.
    """

    tokens: Floats
    exposure: Floats
    is_bound: Flags | bool = False

    @classmethod
    def of_totals(
        cls, totals: Floats, variances: Floats, devices: int, is_bound: Flags | bool = False
    ) -> Self:
        """Return the sample of estimated `totals` of all `devices`, with their `variances`."""
        spread = 1 + variances / np.maximum(totals, 1e-9)
        return cls(np.maximum(totals, 0) / spread, devices / spread, is_bound)

    def rates(self) -> tuple[Floats, Floats, Floats]:
        """Return each rate in tokens per device, with a 95% interval; nan without exposure.

        A rate of an item that is not listed is nan, and its interval starts at 0.
        """
        exposure = np.where(self.exposure > 0, self.exposure, np.nan)
        tail = (1 - _RATE_LEVEL) / 2
        low = np.where(self.tokens > 0, special.gammaincinv(self.tokens, tail), 0.0)
        high = special.gammainccinv(self.tokens + 1, tail)
        is_unknown = self.is_bound | np.isnan(exposure)
        rates = np.where(is_unknown, np.nan, self.tokens / exposure)
        return rates, np.where(self.is_bound, 0.0, low) / exposure, high / exposure


@dataclass(frozen=True, slots=True)
class RateChanges:
    """Changes of k items: kinds (None if not significant), p-values, and factors at `level`.

    A factor is nan, and the end of an interval infinite, where nothing bounds it. `tested` items
    could be compared.
    """

    kinds: Sequence[ChangeKind | None]
    p_values: Floats
    factors: Floats
    low: Floats
    high: Floats
    level: float
    tested: int


def compare_rates(
    before: RateSample, after: RateSample, false_discovery_rate: float = 0.05
) -> RateChanges:
    """Return the changes of the rates of each item, at a false-discovery rate.

    A new item rises from no token, or from a bound; one that is gone falls to these.
    """
    early, late = before.tokens, after.tokens
    is_testable = (before.exposure > 0) & (after.exposure > 0) & (early + late > 0)
    exposure = np.where(is_testable, before.exposure, 1), np.where(is_testable, after.exposure, 1)
    share = exposure[1] / (exposure[0] + exposure[1])
    rise = np.where(after.is_bound, 1.0, _tail(late, early, share))
    fall = np.where(before.is_bound, 1.0, _tail(early, late, 1 - share))
    p_values = np.where(is_testable, np.minimum(1, 2 * np.minimum(rise, fall)), 1.0)
    tested = int(is_testable.sum())
    is_changed = benjamini_hochberg(p_values, false_discovery_rate, tested)
    level = 1 - false_discovery_rate * max(1, int(is_changed.sum())) / max(1, tested)
    ratio = exposure[0] / exposure[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(early > 0, late / early * ratio, np.nan)
        low = ratio / (1 / _min_share(late, early, level) - 1)
        high = ratio * (1 / _min_share(early, late, level) - 1)
    is_bound = before.is_bound | after.is_bound | ~is_testable
    starts, ends = before.is_bound | (early == 0), after.is_bound | (late == 0)
    columns = (column.tolist() for column in (is_changed, rise <= fall, starts, ends))
    kinds = [_kind(*row) for row in zip(*columns, strict=True)]
    return RateChanges(
        kinds,
        p_values,
        np.where(is_bound, np.nan, factors),
        np.where(after.is_bound | ~is_testable, 0.0, low),
        np.where(before.is_bound | ~is_testable, np.inf, high),
        level,
        tested,
    )


def rate_variances(totals: Floats, variances: Floats, dispersions: Floats) -> Floats:
    """Return the variances that `totals` have as rates, beyond those of single tokens.

    Their own `variances` are of the sampling. Tokens with a dispersion c that are sampled at t have
    t + c - 1 times the variance of single tokens.
    """
    beyond: Floats = np.maximum(variances, 0) + totals * (dispersions - 1)
    return beyond


def listed_bound(threshold: float, variance: float, confidence: float) -> float:
    """Return the tokens from which an item is listed: those of an estimate that just is.

    An item is listed if it reaches `threshold` with probability `confidence`; `variance` is that of
    its estimate.
    """
    margin = float(special.ndtri(confidence)) * math.sqrt(variance)
    return max(threshold, threshold + margin)


def benjamini_hochberg(p_values: Floats, false_discovery_rate: float, tests: int) -> Flags:
    """Return a mask of the significant p-values, at a false-discovery rate among all `tests`."""
    ordered = np.sort(p_values)
    limits = false_discovery_rate * np.arange(1, len(ordered) + 1) / max(1, tests)
    below = np.flatnonzero(ordered <= limits)
    significant: Flags = p_values <= (ordered[below[-1]] if len(below) else -1.0)
    return significant


def _kind(changed: bool, rises: bool, starts_unseen: bool, ends_unseen: bool) -> ChangeKind | None:
    if not changed:
        return None
    if rises:
        return "new" if starts_unseen else "rising"
    return "gone" if ends_unseen else "falling"


def _tail(count: Floats, other: Floats, share: Floats) -> Floats:
    """Return the probability of `count` tokens or more of `count + other`, each with `share`."""
    tail: Floats = np.where(
        count > 0, special.betainc(np.maximum(count, 1e-300), other + 1, share), 1.0
    )
    return tail


def _min_share(count: Floats, other: Floats, level: float) -> Floats:
    """Return the lower end of the share of `count` in all tokens [ClopperPearson34]."""
    tail = (1 - level) / 2
    share = special.betaincinv(np.maximum(count, 1e-300), other + 1, tail)
    low: Floats = np.where(count > 0, share, 0.0)
    return low
