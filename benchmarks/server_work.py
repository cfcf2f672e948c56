"""What a server does in one secure sum: CPU seconds beside those of the primitives alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import process_time

from benchmarks.floors import Floors
from benchmarks.rows import BenchmarkRow
from secagg.parameters import Mode
from secagg.shares import ENCRYPTED_SHARE_BYTES


@dataclass(slots=True)
class Stopwatch:
    """CPU seconds by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the CPU time of the block to `name`."""
        start = process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + process_time() - start


@dataclass(frozen=True, slots=True)
class CpuWork:
    """CPU seconds of some work, and its floor."""

    seconds: float
    floor: float

    def __add__(self, other: "CpuWork") -> "CpuWork":
        return CpuWork(self.seconds + other.seconds, self.floor + other.floor)

    def row(self, name: str) -> BenchmarkRow:
        """Return the row of this work."""
        return BenchmarkRow(
            f"server: {name}", self.seconds, "s", self.floor, self.seconds / self.floor
        )


def checking_work(
    floors: Floors, each: dict[str, float], n: int, share: float, mode: Mode
) -> CpuWork:
    """Return the work of hearing `n` participants, a `share` of whom are lost before they upload.

    `each` has the seconds for a participant's key deal, its upload, its confirmation and reveal.
    """
    kept = n * (1 - share)
    spent = n * each["deal"] + kept * (each["upload"] + each["last"])
    signed = 3 if mode == "active" else 2  # the upload, the confirmation, the reveal
    verified = n + kept * signed
    return CpuWork(spent, verified * floors["verification"] + kept * floors["arrival"])


def deals_floor(floors: Floors, n: int, kept: float, holders: int, vector_bytes: int) -> float:
    """Return the seconds that the hashes of all deals take: what the others leave out.

    Each of `n` deals its mask key, each that is kept its seed, and signs what it was handed.
    """
    return (n + 2 * kept) * floors["hash"] / vector_bytes * holders * ENCRYPTED_SHARE_BYTES


def unmasking_work(floors: Floors, seconds: float, survivors: int, pairs: int) -> CpuWork:
    """Return the work of taking off so many own masks, and so many between two."""
    masks = (survivors + pairs) * floors["mask"]
    return CpuWork(seconds, masks + pairs * floors["agreement"])
