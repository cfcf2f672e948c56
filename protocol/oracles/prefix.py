"""Prefix extension (PEM): the heavy strings of a domain that nobody could enumerate.

Each device draws one of g lengths, start, start + step .., length, whatever its string, and tells a
frequency oracle the prefix of that length: the oracle's epsilon is spent once. The server
asks the first group for all 2^start prefixes, keeps the `keep` highest, asks the next group for
their extensions, 2^step each, and so on. The last group's estimates are the answer:

    count = n / n_g (the oracle's among n_g),    Var = (n / n_g)^2 (the oracle's + sampling's)

A string is listed if its count is above a bar that counts of nothing exceed with odds of `beta`
over the number of candidates of the last length, so that any of those that nobody holds is
listed with odds of `beta`: what was kept before says nothing about the last group's noise. The
bar is by the oracle's exact tail (`tails.py`).

Prefixes of more values than the oracle's domain D are hashed into it, anew for each length, so
that a candidate has the key of a heavy prefix with odds of (heavy prefixes) / D.

Source: [Wang21], algorithm 1. There groups are split beforehand; here each device draws its own,
so that a report is the same whoever else takes part.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from protocol.chance import Chance, below
from protocol.hashing import Family, reduce
from protocol.oracles.projection import Values
from protocol.oracles.randomizers import Floats
from protocol.oracles.wire import Reports

Strings = NDArray[np.uint8]
MOST_CANDIDATES = 2**22
_MOST_BYTES = 2**25  # of candidates, of which there are some copies


class FrequencyOracle(Protocol):
    """What a frequency oracle does: reports of values below `domain`, and estimated counts."""

    @property
    def domain(self) -> int:
        """Return the bound of values."""

    @property
    def bits(self) -> int:
        """Return the bits of a report, which takes as many bytes as hold them."""

    def perturb(self, values: Values, chance: Chance) -> Reports:
        """Return a report for each of `values`, shape `(n, bytes)`."""

    def check(self, reports: Reports) -> None:
        """Raise ValueError if one of `reports` cannot be one."""

    def estimate(self, reports: Reports, candidates: Values) -> Floats:
        """Return how many of `reports` are estimated to be of each of `candidates`."""

    def bar(self, n: int, tail: float) -> float:
        """Return the count that a value nobody holds exceeds with odds of `tail` at most."""

    def variance(self, n: int, count: float) -> float:
        """Return the variance of the estimate of a value that `count` of `n` reports are of."""


@dataclass(frozen=True, slots=True)
class HeavyString:
    """A string, how many devices are estimated to hold it, and the variance of that."""

    value: bytes
    count: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixExtension:
    """Prefix extension over `oracle` for strings of `size` bytes, 8 bits each, the highest first.

    Raises:
        ValueError: if a parameter is out of its range; the message says which, and the range.
    """

    oracle: FrequencyOracle
    size: int
    seed: bytes = field(repr=False)
    start: int = 12
    step: int = 8
    keep: int = 64
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 512:
            raise ValueError(f"size must be within 1 and 512 bytes, not {self.size}")
        if not 1 <= self.start <= min(20, self.length):
            raise ValueError(f"start must be within 1 and 20, {self.length} at most")
        if not 1 <= self.step <= 16:
            raise ValueError(f"step must be within 1 and 16 bits, not {self.step}")
        if not 1 <= self.keep <= MOST_CANDIDATES >> self.step:
            raise ValueError(f"keep must be within 1 and {MOST_CANDIDATES >> self.step:,}")
        if (self.keep << self.step) * self.size > _MOST_BYTES:
            raise ValueError(
                f"keep, step and size must have {_MOST_BYTES >> 20} MB of candidates at most: "
                f"{self.keep} of {self.size} bytes with 2^{self.step} extensions are more"
            )
        if not 0 < self.beta < 1:
            raise ValueError(f"beta must be above 0 and below 1, not {self.beta}")
        if len(self.lengths) > 256:
            raise ValueError(f"step must be larger: {len(self.lengths)} lengths, 256 are the most")
        if len(self.seed) != 32:
            raise ValueError(f"seed must have 32 bytes, not {len(self.seed)}")

    @property
    def length(self) -> int:
        """Return the bits of a string."""
        return 8 * self.size

    @property
    def lengths(self) -> list[int]:
        """Return the lengths of prefixes that are reported, in bits."""
        return [*range(self.start, self.length, self.step), self.length]

    @property
    def bits(self) -> int:
        """Return the bits of a report: a byte and the oracle's."""
        return 8 + self.oracle.bits

    def perturb(self, strings: Strings, chance: Chance) -> Reports:
        """Return a report for each of `strings`: which length, a byte, and the oracle's report.

        Raises:
            ValueError: if `strings` is not of uint8 and shape `(n, size)`, n >= 1.
        """
        if strings.dtype != np.uint8 or strings.ndim != 2 or strings.shape[1] != self.size:
            raise ValueError(
                f"strings must be uint8 of shape (n, {self.size}), "
                f"not {strings.dtype} {strings.shape}"
            )
        if not len(strings):
            raise ValueError("strings are empty: one or more are needed")
        groups = below(chance, len(self.lengths), len(strings)).astype(np.uint8)
        said = list[tuple[NDArray[np.intp], Reports]]()
        for group in np.unique(groups).tolist():
            rows = np.flatnonzero(groups == group)
            said.append((rows, self.oracle.perturb(self._keys(strings[rows], group), chance)))
        reports = np.empty((len(strings), -(-self.bits // 8)), np.uint8)
        reports[:, 0] = groups
        for rows, part in said:
            reports[rows, 1:] = part
        return reports

    def check(self, reports: Reports) -> None:
        """Refuse what is no batch of reports.

        Raises:
            ValueError: if they have a wrong length, or name none of the lengths, or if the oracle
                refuses what is its own.
        """
        self._check_groups(reports)
        self.oracle.check(reports[:, 1:])

    def identify(self, reports: Reports, most: int = 10) -> list[HeavyString]:
        """Return up to `most` strings that are surely held by some, the highest count first.

        Reports of several batches are concatenated.

        Raises:
            ValueError: if `reports` are no reports, or none is of some length, or `most` < 1.
        """
        self._check_groups(reports)
        if most < 1:
            raise ValueError(f"most must be 1 or more, not {most}")
        groups = reports[:, 0]
        found, counts, asked = np.zeros((1, self.size), np.uint8), np.zeros(1), 1
        for group, length in enumerate(self.lengths):
            heard = reports[groups == group, 1:]
            if not len(heard):
                raise ValueError(f"no report is of {length} bits: more devices are needed")
            found = self._extensions(found, group)
            asked = len(found)
            counts = self.oracle.estimate(heard, self._keys(found, group))
            order = np.argsort(-counts, kind="stable")[: self.keep]
            order = order[counts[order] > 0]
            found, counts = found[order], counts[order]
        n, last = len(reports), int((groups == len(self.lengths) - 1).sum())
        least = self.oracle.bar(last, self.beta / max(1, asked))
        heavy = [
            HeavyString(string.tobytes(), n / last * count, self.variance(n, last, count))
            for string, count in zip(found, counts.tolist(), strict=True)
            if count > least
        ]
        return heavy[:most]

    def variance(self, n: int, last: int, count: float) -> float:
        """Return the variance of a final count, `count` of the `last` of `n` reports' group."""
        share = min(max(count / last, 0.0), 1.0)
        sampled = last * share * (1 - share) * (n - last) / max(1, n - 1)
        return (n / last) ** 2 * (self.oracle.variance(last, count) + sampled)

    def least_count(self, n: int) -> float:
        """Return the count from which on one of `n` devices' strings is listed with odds of 1/2.

        This is the last length's threshold; a prefix of so many devices is among the `keep` of
        the lengths before, unless `step` is so large that noise of `keep` others is above it.
        """
        last = self._group_of(n)
        return n / last * self.oracle.bar(last, self.beta / self._asked(len(self.lengths) - 1))

    def sure_count(self, n: int, odds: float = 0.95) -> float:
        """Return the count from which on one of `n` devices' strings is listed with `odds`.

        It is kept at every length and above the bar of the last, each but for an equal part of
        what is missing from `odds`. Infinite if not even a string of all devices is.
        """
        last, groups = self._group_of(n), len(self.lengths)
        tails = [min(0.5, self.keep / self._asked(group)) for group in range(groups - 1)]
        tails.append(self.beta / self._asked(groups - 1))
        bar = max(self.oracle.bar(last, tail) for tail in tails)
        z = -float(ndtri((1 - odds) / groups))

        def is_sure(count: float) -> bool:
            margin = z * math.sqrt(self.variance(n, last, count * last / n))
            return count > n / last * bar + margin

        if not is_sure(n):
            return math.inf
        low, high = 0.0, float(n)
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if is_sure(middle) else (middle, high)
        return high

    def _group_of(self, n: int) -> int:
        return max(1, round(n / len(self.lengths)))

    def _asked(self, group: int) -> int:
        """Return how many candidates the group is asked for, at most."""
        before, end = [0, *self.lengths][group], self.lengths[group]
        kept = min(self.keep, 1 << min(before, 62)) if before else 1
        return kept << (end - before)

    def _check_groups(self, reports: Reports) -> None:
        width = -(-self.bits // 8)
        if reports.dtype != np.uint8 or reports.ndim != 2 or reports.shape[1] != width:
            raise ValueError(f"reports must be uint8 of shape (n, {width}), not {reports.shape}")
        if len(reports) and reports[:, 0].max() >= len(self.lengths):
            raise ValueError(f"reports must be of lengths below {len(self.lengths)}, not all are")

    def _extensions(self, prefixes: Strings, group: int) -> Strings:
        """Return all extensions of `prefixes` to the length of `group`."""
        start = self.lengths[group - 1] if group else 0
        end = self.lengths[group]
        endings = np.zeros((2 ** (end - start), self.size), np.uint8)
        numbers = np.arange(len(endings))
        for at in range(start, end):
            bits = numbers >> (end - 1 - at) & 1
            endings[:, at // 8] |= (bits << (7 - at % 8)).astype(np.uint8)
        return (prefixes[:, np.newaxis] | endings).reshape(-1, self.size)

    def _keys(self, strings: Strings, group: int) -> Values:
        """Return the oracle's values of the prefixes of `strings`: themselves, or hashes."""
        length = self.lengths[group]
        prefixes = strings[:, : -(-length // 8)].copy()
        if length % 8:
            prefixes[:, -1] &= 256 - (1 << (8 - length % 8))
        if length < 32 and 2**length <= self.oracle.domain:
            padded = np.pad(prefixes, ((0, 0), (0, 4 - prefixes.shape[1])))
            return (padded.view(">u4")[:, 0] >> (32 - length)).astype(np.uint64)
        padded = np.pad(prefixes, ((0, 0), (0, -prefixes.shape[1] % 4)))
        chunks = padded.view(">u4").astype(np.uint64)
        words = Family(self.seed, f"prefix {group}", chunks.shape[1], 1).hash(chunks)[:, 0]
        return reduce(words, min(self.oracle.domain, 2**32 - 1))
