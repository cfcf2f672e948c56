"""Prefix extension (PEM): the heavy strings of a domain that is too large to enumerate.

Each device draws one of g lengths start, start + step, .., length, independently of its string, and
reports its prefix of that length by a frequency oracle, so the oracle's epsilon is spent once. The
server estimates all 2^start prefixes from the first group, keeps the `keep` highest, estimates
their extensions from the next group, and so on. The last group's estimates are the answer:

    count = n / n_g (the oracle's among n_g),    Var = (n / n_g)^2 (the oracle's + sampling's)

A string is listed if its count is above a threshold that an absent string exceeds with probability
`beta` over the number of candidates of the last length, whose noise does not depend on their
selection. So any absent string is listed with probability at most `beta`. If there are more
prefixes than the oracle's domain, they are hashed into it, by a new function for each length.

Source: [Wang21], algorithm 1. There groups are split beforehand; here each device draws its own,
so that a report does not depend on the other devices.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from protocol.hashing import HashFamily, fast_range
from protocol.numerics import special
from protocol.numerics.array_types import Bytes, ItemValues, PackedReports
from protocol.numerics.binary_search import boundary
from protocol.oracles.limits import check_report_shape
from protocol.oracles.oracle import Oracle
from protocol.randomness import RandomWords, uniform_below

MAX_CANDIDATES = 2**22
_MAX_CANDIDATE_BYTES = 2**25  # of one copy; some are made


@dataclass(frozen=True, slots=True)
class HeavyString:
    """A string, the estimated number of devices that hold it, and the variance of the estimate."""

    value: bytes
    count: float
    variance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixExtension:
    """Prefix extension by `oracle` for strings of `size` bytes, 8 bits each, the highest first."""

    oracle: Oracle
    size: int
    seed: bytes = field(repr=False)
    start: int = 12
    step: int = 8
    keep: int = 64
    beta: float = 0.05

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 512:
            raise ValueError(f"size must be from 1 to 512 bytes, not {self.size}")
        if not 1 <= self.start <= min(20, self.length):
            raise ValueError(f"start must be from 1 to 20, at most {self.length}")
        if not 1 <= self.step <= 16:
            raise ValueError(f"step must be from 1 to 16 bits, not {self.step}")
        if not 1 <= self.keep <= MAX_CANDIDATES >> self.step:
            raise ValueError(f"keep must be from 1 to {MAX_CANDIDATES >> self.step:,}")
        if (self.keep << self.step) * self.size > _MAX_CANDIDATE_BYTES:
            raise ValueError(
                f"keep, step and size must give at most {_MAX_CANDIDATE_BYTES >> 20} MB of "
                f"candidates, not {self.keep} << {self.step} of {self.size} bytes"
            )
        if not 0 < self.beta < 1:
            raise ValueError(f"beta must be above 0 and below 1, not {self.beta}")
        if len(self.lengths) > 256:
            raise ValueError(f"step must be larger: {len(self.lengths)} lengths are more than 256")
        if len(self.seed) != 32:
            raise ValueError(f"seed must have 32 bytes, not {len(self.seed)}")

    @property
    def length(self) -> int:
        return 8 * self.size

    @property
    def lengths(self) -> list[int]:
        """Return the lengths of prefixes that are reported, in bits."""
        return [*range(self.start, self.length, self.step), self.length]

    @property
    def bits(self) -> int:
        """Return the bits of a report: a byte and the oracle's."""
        return 8 + self.oracle.bits

    def perturb(self, strings: Bytes, chance: RandomWords) -> PackedReports:
        """Return a report for each of `strings`, `(n, size)`: length and the oracle's report."""
        if strings.dtype != np.uint8 or strings.ndim != 2 or strings.shape[1] != self.size:
            raise ValueError(
                f"strings must be uint8 of shape (n, {self.size}), "
                f"not {strings.dtype} {strings.shape}"
            )
        if not len(strings):
            raise ValueError("strings are empty: one or more are needed")
        groups = uniform_below(chance, len(self.lengths), len(strings)).astype(np.uint8)
        reports = np.empty((len(strings), -(-self.bits // 8)), np.uint8)
        reports[:, 0] = groups
        for group in np.unique(groups).tolist():
            rows = np.flatnonzero(groups == group)
            reports[rows, 1:] = self.oracle.perturb(self._keys(strings[rows], group), chance)
        return reports

    def check(self, reports: PackedReports) -> None:
        """Raise ValueError for a wrong size or prefix length, or if the oracle refuses its part."""
        self._check_groups(reports)
        self.oracle.check(reports[:, 1:])

    def identify(self, reports: PackedReports, max_results: int = 10) -> list[HeavyString]:
        """Return up to `max_results` heavy strings, the highest count first.

        Raises ValueError if `reports` are malformed, or none has some length.
        """
        self._check_groups(reports)
        if max_results < 1:
            raise ValueError(f"max_results must be 1 or more, not {max_results}")
        groups = reports[:, 0]
        candidates, counts, candidate_count = np.zeros((1, self.size), np.uint8), np.zeros(1), 1
        for group, length in enumerate(self.lengths):
            group_reports = reports[groups == group, 1:]
            if not len(group_reports):
                raise ValueError(f"no report is of {length} bits: more devices are needed")
            candidates = self._extensions(candidates, group)
            candidate_count = len(candidates)
            distinct, index = np.unique(self._keys(candidates, group), return_inverse=True)
            counts = len(group_reports) * self.oracle.estimate(group_reports, distinct)[index]
            order = np.argsort(-counts, kind="stable")[: self.keep]
            order = order[counts[order] > 0]
            candidates, counts = candidates[order], counts[order]
        n, last = len(reports), int((groups == len(self.lengths) - 1).sum())
        threshold = last * self.oracle.detection_threshold(
            last, self.beta / max(1, candidate_count)
        )
        heavy = [
            HeavyString(string.tobytes(), n / last * count, self.variance(n, last, count))
            for string, count in zip(candidates, counts.tolist(), strict=True)
            if count > threshold
        ]
        return heavy[:max_results]

    def variance(self, n: int, last: int, count: float) -> float:
        """Return the variance of a final count: `count` of the group's `last` of `n` reports."""
        share = min(max(count / last, 0.0), 1.0)
        sampled = last * share * (1 - share) * (n - last) / max(1, n - 1)
        of_oracle = last**2 * float(self.oracle.variance(np.array([share]), last)[0])
        return (n / last) ** 2 * (of_oracle + sampled)

    def reliably_detected_count(self, n: int, probability: float = 0.95) -> float:
        """Return the count from which a string of `n` devices is listed with `probability`.

        The string must be kept at every length and exceed the threshold of the last; each may fail
        with an equal part of 1 - `probability`. Infinite if no count suffices.
        """
        groups = len(self.lengths)
        last = max(1, round(n / groups))
        tails = [min(0.5, self.keep / self._candidate_count(group)) for group in range(groups - 1)]
        tails.append(self.beta / self._candidate_count(groups - 1))
        threshold = max(last * self.oracle.detection_threshold(last, tail) for tail in tails)
        z = -float(special.ndtri((1 - probability) / groups))

        def is_detected(count: float) -> bool:
            margin = z * math.sqrt(self.variance(n, last, count * last / n))
            return count > n / last * threshold + margin

        return boundary(is_detected, 0.0, float(n), 1e-6) if is_detected(n) else math.inf

    def _candidate_count(self, group: int) -> int:
        before, end = [0, *self.lengths][group], self.lengths[group]
        kept = min(self.keep, 1 << min(before, 62)) if before else 1
        return kept << (end - before)

    def _check_groups(self, reports: PackedReports) -> None:
        check_report_shape(reports, -(-self.bits // 8))
        if len(reports) and reports[:, 0].max() >= len(self.lengths):
            raise ValueError(f"reports must have length numbers below {len(self.lengths)}")

    def _extensions(self, prefixes: Bytes, group: int) -> Bytes:
        start = self.lengths[group - 1] if group else 0
        end = self.lengths[group]
        endings = np.zeros((2 ** (end - start), self.size), np.uint8)
        numbers = np.arange(len(endings))
        for at in range(start, end):
            bits = numbers >> (end - 1 - at) & 1
            endings[:, at // 8] |= (bits << (7 - at % 8)).astype(np.uint8)
        return (prefixes[:, np.newaxis] | endings).reshape(-1, self.size)

    def _keys(self, strings: Bytes, group: int) -> ItemValues:
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
        words = HashFamily(self.seed, f"prefix {group}", chunks.shape[1], 1).hash(chunks)[:, 0]
        return fast_range(words, min(self.oracle.domain, 2**32 - 1))
