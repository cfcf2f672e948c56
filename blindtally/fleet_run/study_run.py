"""One study from its creation to its answer: an analyst, a fleet, and a check of every sum.

The check does not rely on the server. The fleet knows the vectors that its devices encoded, so each
sum is compared with theirs, bit for bit, as soon as it is available.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from blindtally.fleet_run.fleet_setup import FleetSetup
from blindtally.fleet_run.results import RoundResult, summarize_round, verify_sum
from client.analyst.analyst import Analyst, Study
from client.fleet.config_and_results import FleetRound
from client.fleet.fleet import Fleet, ProgressReporter
from client.fleet.shards import ShardPool
from client.http.transport import http_client
from protocol.api.phases import Phase
from protocol.mechanisms.registry import REPORT_MECHANISMS

_CHECK_SECONDS: Final = 0.5  # between two checks that the server is alive


@dataclass(frozen=True, slots=True)
class StudyObservers:
    """Callbacks of a running study: after each step, after each round, and before it goes on.

    `background_task` runs until the study ends; its errors end the fleet.
    """

    on_step: ProgressReporter
    on_round: Callable[[RoundResult], None]
    check_server: Callable[[], None]  # raises if the server is gone
    background_task: Callable[[], Coroutine[Any, Any, None]] | None = None


def create_study(analyst: Analyst, setup: FleetSetup) -> Study:
    return analyst.create(
        setup.name,
        setup.question,
        setup.terms,
        rounds=setup.rounds,
        timeouts=setup.timeouts,
        stop_at=setup.stop_at,
    )


def run_fleet(
    url: str,
    study: Study,
    setup: FleetSetup,
    observers: StudyObservers,
    workers: ShardPool | None = None,
) -> tuple[list[FleetRound], list[RoundResult]]:
    """Take part in a study until it is over; return its rounds, with every sum verified.

    The devices run in this process, or in `workers`.

    Raises:
        LostWorkersError: if the workers have ended.
        InexactSumError: if a sum is not the sum of its survivors' vectors.
    """
    fleet = Fleet(
        partial(http_client, url),
        study.view,
        setup.holdings,
        setup.fleet_config,
        observers.on_step,
        workers,
    )
    played: list[FleetRound] = []
    rounds: list[RoundResult] = []

    async def play() -> None:
        async for finished in fleet.run():
            played.append(finished)
            exact = await asyncio.to_thread(_verify_sums, study, finished, setup.seats)
            rounds.append(summarize_round(finished, exact))
            observers.on_round(rounds[-1])

    asyncio.run(_run_until_done(play(), observers))
    return played, rounds


async def _run_until_done(work: Coroutine[None, None, None], observers: StudyObservers) -> None:
    """Finish `work`, or cancel it when the check or the background task of `observers` raises."""
    task = asyncio.create_task(work)
    tasks = {task}
    if observers.background_task:
        tasks.add(asyncio.create_task(observers.background_task()))
    try:
        while not task.done():
            done, _ = await asyncio.wait(
                tasks, timeout=_CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            observers.check_server()
            for ended in done:
                await ended
    finally:
        for unfinished in tasks:
            unfinished.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _verify_sums(study: Study, played: FleetRound, seats: int) -> bool | None:
    """Verify every sum of a round that the service shows; return whether there was a sum.

    Return None for reports, which have no sum, and for a sum with vectors of people, who may take
    `seats`: nobody else knows their vectors.
    """
    if study.view.question.mechanism in REPORT_MECHANISMS or 0 < played.others_in_sum <= seats:
        return None
    summed = [cohort for cohort in played.view.cohorts if cohort.phase is Phase.SUMMED]
    if study.view.question.discards_sums:
        return bool(summed)
    for cohort in summed:
        verify_sum(played, cohort, study.cohort_sum(played.view, cohort.number))
    return bool(summed)
