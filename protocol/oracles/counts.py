"""What oracles take and give, and what a server keeps of reports: counts, which add."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from protocol.oracles.oracle import Oracle

Values: TypeAlias = NDArray[np.uint64]  # (n,): what devices hold, below d
Codes: TypeAlias = NDArray[np.uint64]  # (n,): reports as integers
Reports: TypeAlias = NDArray[np.uint8]  # (n, nbytes): reports on the wire
Votes: TypeAlias = NDArray[np.int8]  # (n, k): what each report says of each candidate
Support: TypeAlias = NDArray[np.int64]
Frequencies: TypeAlias = NDArray[np.float64]
Parameters: TypeAlias = dict[str, str | bool | int | float]


@dataclass(frozen=True, eq=False)
class Counts:
    """What a server keeps of `reports` reports: `cells` (c,), which add.

    Without `candidates` the cells are the oracle's own and tell of the whole dictionary; with
    them, they are their support.
    """

    oracle: "Oracle"
    reports: int
    cells: Support = field(repr=False)
    candidates: Values | None = field(default=None, repr=False)

    def __add__(self, other: "Counts") -> "Counts":
        """Return the counts of both batches.

        Raises:
            ValueError: if the other's are of another oracle or of other candidates.
        """
        if self.oracle != other.oracle:
            raise ValueError(f"counts of {other.oracle} do not add to those of {self.oracle}")
        if not _same(self.candidates, other.candidates):
            raise ValueError("counts of different candidates do not add")
        cells = self.cells + other.cells
        return Counts(self.oracle, self.reports + other.reports, cells, self.candidates)


def _same(one: Values | None, other: Values | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
