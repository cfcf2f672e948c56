"""Workers that share the rounds of a simulation: the same result as of one process, sooner.

    round                       piece of work                      comes back
    added up in the open        some stretches of devices          their sum, what they hold
    of private reports          some stretches of devices          what is heard, what they hold
    summed securely             a cohort, with its vectors         its sum, who is in it

A piece that takes less than half a second costs more to hand out than it saves. How much of a
processor a stretch takes is measured as work goes on, and decides how many make a piece, or that
none is handed out at all; what comes of them hangs on neither.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Final

from blindtally.progress import watched
from blindtally.workers import crowd, flowing
from protocol.simulation import ALONE, Hands, SecureCohort, Summed, sum_cohort
from protocol.stretches import A, Growing, Stretch

LEAST_SECONDS: Final = 0.5  # of a piece
_PIECES: Final = 4  # a worker, the most of a round: whoever is done early takes another


@contextmanager
def hands(count: int, dask: str | None, least: float = LEAST_SECONDS) -> Iterator[Hands]:
    """Yield who plays a simulation: this process, `count` of them, or workers of Dask.

    No piece takes fewer than `least` seconds of a processor.

    Raises:
        typer.Exit: as `blindtally.workers.hired`.
    """
    with crowd(count, dask) as (executor, workers):
        yield ALONE if executor is None else Together(executor, workers, least)


class Together:
    """Workers behind an executor, so many at a time."""

    def __init__(
        self,
        executor: Executor,
        workers: int,
        least: float = LEAST_SECONDS,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._executor, self._workers = executor, workers
        self._least, self._clock = least, clock
        self._each: float | None = None  # seconds of a stretch

    def add(self, growing: Growing[A], stretches: Sequence[Stretch]) -> None:
        """Add stretches, in their order, to what there is so far."""
        rest = list(stretches)
        if rest and self._each is None:
            self._here(growing, rest[:1])
            del rest[0]
        pieces = self._pieces(len(rest))
        if pieces < 2:
            self._here(growing, rest)
            return
        ends = [len(rest) * number // pieces for number in range(pieces + 1)]
        cut = [rest[start:end] for start, end in pairwise(ends)]
        work, most = partial(_timed, growing.elsewhere), 2 * self._workers
        for piece, (part, seconds) in zip(
            cut, flowing(self._executor, work, cut, most), strict=True
        ):
            growing.add(part)
            self._each = seconds / len(piece)

    def sum_cohorts(self, cohorts: Iterable[SecureCohort]) -> Iterator[Summed | None]:
        """Sum each cohort by a worker; vectors of one more than there are workers are held."""
        return watched(flowing(self._executor, sum_cohort, cohorts, self._workers + 1), "cohorts")

    def _pieces(self, stretches: int) -> int:
        whole = math.floor(stretches * (self._each or 0) / self._least)
        pieces = min(stretches, whole, _PIECES * self._workers)
        # As many for each: of three pieces for two, one would wait for the third of the other.
        return pieces - pieces % self._workers if pieces > self._workers else pieces

    def _here(self, growing: Growing[A], stretches: Sequence[Stretch]) -> None:
        started = self._clock()
        ALONE.add(growing, stretches)
        if stretches:
            self._each = (self._clock() - started) / len(stretches)


def _timed(play: Callable[[Sequence[Stretch]], A], stretches: Sequence[Stretch]) -> tuple[A, float]:
    started = time.thread_time()
    part = play(stretches)
    return part, time.thread_time() - started
