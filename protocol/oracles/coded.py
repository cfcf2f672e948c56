"""Oracles whose report is one integer: its fields in a mixed radix, checked by one comparison."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from protocol.chance import Chance
from protocol.oracles.counts import Codes, Reports, Support, Values, Votes
from protocol.oracles.oracle import Oracle


@dataclass(frozen=True)
class Coded(Oracle):
    """An oracle whose report is one integer below `space`, its fields in a mixed radix.

    So it has the fewest bits that all reports can have, and one comparison checks all fields.
    """

    def __post_init__(self) -> None:
        Oracle.__post_init__(self)
        if self.space > 2**64:
            raise ValueError(
                f"domain must be smaller: reports of {self.name} over {self.domain:,} values "
                f"take {self.bits} bits, and 64 are the most"
            )

    @property
    @abstractmethod
    def space(self) -> int:
        """Return the number of reports."""

    @property
    def bits(self) -> int:
        """Return the bits of a report."""
        return (self.space - 1).bit_length()

    @abstractmethod
    def _encode(self, values: Values, chance: Chance) -> Codes: ...

    @abstractmethod
    def _say(self, codes: Codes, candidates: Values) -> Votes:
        """Return the votes of reports that are in range."""

    @abstractmethod
    def _count(self, codes: Codes) -> Support:
        """Return the cells of reports that are in range."""

    def _perturb(self, values: Values, chance: Chance) -> Reports:
        return self.pack(self._encode(values, chance))

    def pack(self, codes: Codes) -> Reports:
        """Return integers below `space` as they travel."""
        return codes.astype("<u8").view(np.uint8).reshape(-1, 8)[:, : self.nbytes]

    def codes(self, reports: Reports) -> Codes:
        """Return reports as integers.

        Raises:
            ValueError: if they are malformed.
        """
        self.check(reports)
        return self._codes(reports)

    def _codes(self, reports: Reports) -> Codes:
        wide: Reports = np.zeros((len(reports), 8), np.uint8)
        wide[:, : self.nbytes] = reports
        return wide.view("<u8").reshape(-1).astype(np.uint64)

    def _check(self, reports: Reports) -> None:
        codes = self._codes(reports)
        wrong = np.flatnonzero(codes > np.uint64(self.space - 1))
        if len(wrong):
            row = int(wrong[0])
            raise ValueError(
                f"report {row} must be within 0 and {self.space - 1}, not {codes[row]}"
            )

    def _votes(self, reports: Reports, candidates: Values) -> Votes:
        return self._say(self._codes(reports), candidates)

    def _gather(self, reports: Reports) -> Support:
        return self._count(self._codes(reports))
