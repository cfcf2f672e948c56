"""One study from its creation to its answer: an analyst, a fleet, and a look at every sum.

The server is never asked whether its sums are right: the fleet knows the vectors that its
devices encoded, so each sum is compared with theirs, bit for bit, as soon as it is there.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from blindtally.demo.results import (
    Results,
    RoundResult,
    measure,
    round_result,
    verify,
)
from client.analyst import Analyst, Study
from client.crew import Crew, Played
from client.fleet import Fleet, Report
from client.slices import Slicing
from client.transport import connect
from protocol.mechanism import Histogram, Terms
from protocol.mechanisms import AnyQuestion
from protocol.messages import Timeouts
from protocol.round import Phase

_LOOK_SECONDS: Final = 0.5  # between two looks at whether the server is alive


@dataclass(frozen=True, slots=True)
class Setup:
    """What is asked, of whom, and how they behave."""

    question: AnyQuestion
    terms: Terms
    rounds: int
    timeouts: Timeouts
    crew: Crew
    holdings: Sequence[Histogram]


@dataclass(frozen=True, slots=True)
class Watchers:
    """Whom to tell what happens: of each step, of each round, and whether to go on.

    What runs `beside` a study ends with it, and its errors are its own.
    """

    step: Report
    round: Callable[[RoundResult], None]
    check: Callable[[], None]  # raises if the server is gone
    beside: Callable[[], Coroutine[Any, Any, None]] | None = None


def run(url: str, setup: Setup, watchers: Watchers, settings: dict[str, Any]) -> Results:
    """Return the results of a new study on the service at `url`.

    Raises:
        InexactError: if a sum is not the sum of its survivors' vectors.
    """
    began = time.monotonic()
    with Analyst(url, setup.crew.key) as analyst:
        study = create(analyst, setup)
        played, rounds = follow(url, study, setup, watchers)
        rows = study.heavy_hitters()
    seconds = time.monotonic() - began
    return measure(study.view, rows, played, rounds=rounds, seconds=seconds, settings=settings)


def create(analyst: Analyst, setup: Setup) -> Study:
    """Create and start the study."""
    return analyst.create(
        "demo",
        setup.question,
        setup.terms,
        rounds=setup.rounds,
        timeouts=setup.timeouts,
    )


def follow(
    url: str, study: Study, setup: Setup, watchers: Watchers, workers: Slicing | None = None
) -> tuple[list[Played], list[RoundResult]]:
    """Take part in a study until it is over; return its rounds, with every sum verified.

    The devices are those of this process, or of `workers`.

    Raises:
        LostWorkersError: if these are gone.
        InexactError: if a sum is not the sum of its survivors' vectors.
    """
    fleet = Fleet(
        partial(connect, url), study.view, setup.holdings, setup.crew, watchers.step, workers
    )
    played: list[Played] = []
    rounds: list[RoundResult] = []

    async def play() -> None:
        async for one in fleet.play():
            played.append(one)
            exact = await asyncio.to_thread(_verified, study, one)
            rounds.append(round_result(one, exact))
            watchers.round(rounds[-1])

    asyncio.run(_guarded(play(), watchers))
    return played, rounds


async def _guarded(work: Coroutine[None, None, None], watchers: Watchers) -> None:
    """Finish `work`, or give it up once the check of `watchers` raises."""
    task = asyncio.create_task(work)
    every = [task, *([asyncio.create_task(watchers.beside())] if watchers.beside else [])]
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            watchers.check()
        await task
    finally:
        for one in every:
            one.cancel()
        await asyncio.gather(*every, return_exceptions=True)


def _verified(study: Study, played: Played) -> bool:
    """Verify every sum of a round that is shown; return whether there was one."""
    summed = [one for one in played.view.cohorts if one.phase is Phase.SUMMED]
    if study.view.question.withholds:
        return bool(summed)
    for cohort in summed:
        verify(played, cohort, study.cohort_sum(played.view, cohort.number))
    return bool(summed)
