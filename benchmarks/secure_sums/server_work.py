"""A server's work in one secure sum: CPU seconds, compared with those of the primitives alone."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from time import process_time

from benchmarks.harness import BenchmarkRow
from benchmarks.secure_sums.floors import Floors
from secagg.keys import Identity
from secagg.parameters import Assumptions
from secagg.participant import Confirmed, Joined, Masked, join
from secagg.roster import Roster, RosterEntry
from secagg.session import Session, Transcript
from secagg.shares import SHARE_PAIR_BYTES


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
        return BenchmarkRow(f"server: {name}", self.seconds, "s", self.floor)


def join_cohort(n: int, rng: Random, watch: Stopwatch) -> tuple[list[Joined], Session]:
    """Return `n` participants with rates of 0.2, and their session; time how they join."""
    joined = []
    for _ in range(n):
        identity = Identity.generate(rng)
        with watch.time("join"):
            joined.append(join(identity, rng))
    plan = rng.randbytes(32)
    roster = Roster.of(
        [
            RosterEntry(state.identity.public, state.public_keys, state.advertise(plan))
            for state in joined
        ]
    )
    return joined, Session(plan, 0, roster, Assumptions(0.2, 0.2))


def confirm_again(
    state: Masked, transcript: Transcript, survivors: Collection[int]
) -> tuple[Confirmed, bytes]:
    """Confirm `survivors` with a copy of `state`, which may confirm other survivors later."""
    return Masked(state.checked, transcript).confirm(survivors)


def checking_work(floors: Floors, each: dict[str, float], n: int, dropout: float) -> CpuWork:
    """Return the work of checking the messages of `n` participants, of which survivors upload.

    `each` has the seconds for a participant's key shares and complaints, its upload, and its last
    messages.
    """
    survivors = n * (1 - dropout)
    spent = n * each["key shares"] + survivors * (each["upload"] + each["last"])
    # All sign key shares and complaints; survivors the upload, confirmation and unmasking shares.
    verified = 2 * n + 3 * survivors
    return CpuWork(spent, verified * floors["verification"] + survivors * floors["arrival"])


def shares_floor(floors: Floors, n: int, holders: int, vector_bytes: int) -> float:
    """Return the seconds of hashing all share pairs, which other floors leave out.

    Each of `n` signs those that it sends, and those that it receives.
    """
    return 2 * n * floors["hash"] / vector_bytes * holders * SHARE_PAIR_BYTES


def unmasking_work(floors: Floors, seconds: float, survivors: int, pairs: int) -> CpuWork:
    """Return the work of removing the own masks of `survivors`, and `pairs` of pairwise masks."""
    masks = (survivors + pairs) * floors["mask"]
    return CpuWork(seconds, masks + pairs * floors["agreement"])


def sum_rows(
    case: str, checking: CpuWork, unmasking: CpuWork, masks: int, hashes: float
) -> list[BenchmarkRow]:
    """Return the rows of unmasking and of all work, without and with the floor of `hashes`."""
    whole = checking + unmasking
    return [
        unmasking.row(f"unmask, {case}, {masks:,} masks"),
        whole.row(f"all, {case}"),
        (whole + CpuWork(0.0, hashes)).row(f"all, {case}, hashes of shares too"),
    ]
