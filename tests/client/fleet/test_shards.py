"""Fleets in shards: the same devices take part and drop out, in any process."""

import asyncio
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from blindtally.fleet_run.results import verify_sum
from client.analyst.analyst import Analyst, Study
from client.device.device import DeviceStep
from client.device.driver import EndState
from client.fleet.behaviour import DeviceBehaviour
from client.fleet.config_and_results import FleetConfig, FleetProgress, FleetRound
from client.fleet.devices import DeviceSnapshot
from client.fleet.fleet import Fleet
from client.fleet.shards import LostWorkersError, ShardPool, gather_results
from client.http.transport import http_client
from protocol.api.messages import Timeouts
from protocol.api.phases import MessageKind, Phase
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from tests.server.application import ServiceOnPort, on_a_port
from tests.support.policies import trusting_policy

HOLDINGS = [{"common": 1, f"rare {index % 3}": 2} for index in range(18)]
STEPS_BEFORE_MASKING = {DeviceStep.JOINED, DeviceStep.SHARED, DeviceStep.CHECKED}
CONFIG = FleetConfig(9, dropout=0.2, seed=1, policy=trusting_policy(min_cohort=3, min_corrupt=0.05))
QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=2, domain=Utf8(max_bytes=12), message_bytes=3264
)


class Elsewhere(ThreadPoolExecutor):
    """Threads that receive work as bytes, like other processes; stores the results."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.returned: list[Any] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Run `work` in a thread; arguments and results are bytes."""
        return super().submit(self._unpickle_and_run, pickle.dumps((work, args, options)))

    def _unpickle_and_run(self, request: bytes) -> Any:
        work, args, options = pickle.loads(request)  # noqa: S301 - from `submit`
        answer = pickle.loads(pickle.dumps(work(*args, **options)))  # noqa: S301
        self.returned.append(answer)
        return answer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceOnPort]:
    with on_a_port(tmp_path_factory.mktemp("service")) as running:
        yield running


def create(analyst: Analyst) -> Study:
    terms = Terms(cohort_size=9, minimum=5, corrupt=0.05, dropout=0.4)
    timeouts = Timeouts(idle=1)
    return analyst.create("shards", QUESTION, terms, rounds=1, timeouts=timeouts)


async def play(fleet: Fleet) -> list[FleetRound]:
    return [each async for each in fleet.run()]


def ended(played: list[FleetRound]) -> list[list[tuple[int, EndState, DeviceStep | None]]]:
    return [[(e.device, e.state, e.last_step) for e in each.results] for each in played]


def test_shards_give_the_same_results_as_one_process(service: ServiceOnPort) -> None:
    reports: list[FleetProgress] = []
    results = []
    with Analyst(service.url) as analyst, Elsewhere(3) as elsewhere:
        for pool in (None, ShardPool(elsewhere, 3)):
            study, wire = create(analyst), partial(http_client, service.url)
            fleet = Fleet(wire, study.view, HOLDINGS, CONFIG, reports.append, pool)
            played = asyncio.run(play(fleet))
            for fleet_round in played:
                (cohort,) = fleet_round.view.cohorts
                assert cohort.phase is Phase.SUMMED
                verify_sum(fleet_round, cohort, study.cohort_sum(fleet_round.view, 0))
            results.append(ended(played))
    assert results[0] == results[1]
    assert {end for _, end, _ in results[0][0]} == {EndState.FINISHED, EndState.DROPPED_OUT}
    assert len(elsewhere.returned) == 3
    last = reports[-1]  # of the round that is over: no phase keeps the count of an earlier poll
    assert last.view.state == "decoded"
    received = {each.phase: each.received for each in last.view.cohorts[0].history}
    assert last.steps_taken[DeviceStep.CONFIRMED] == received[Phase.CONFIRMING] > 1
    assert last.steps_taken[DeviceStep.UNMASKED] == received[Phase.UNMASKING] > 1
    # The returned journal of a device that sent its vector has an entry for it.
    known = {e.device: given for part in elsewhere.returned for e, given in part}
    gave = {
        device
        for device, given in known.items()
        if any(g.kind is MessageKind.MASKED_INPUT for g in given)
    }
    assert gave == {
        device for device, _, last in results[0][0] if last not in {None, *STEPS_BEFORE_MASKING}
    }


def test_shards_differ_by_one_device_at_most() -> None:
    pool: Any = partial(ShardPool, None)
    assert pool(3).split(range(8)) == [range(0, 8, 3), range(1, 8, 3), range(2, 8, 3)]
    assert pool(4).split([1, 2]) == [[1], [2]]


async def test_devices_of_a_dead_worker_drop_out_with_an_error() -> None:
    loop = asyncio.get_running_loop()
    for problem in (BrokenExecutor(), asyncio.CancelledError()):
        first, second = loop.create_future(), loop.create_future()
        first.set_exception(problem)
        with pytest.raises(LostWorkersError, match=r"devices with (it|them)"):
            await gather_results([first, second])
        assert second.cancelled()


async def test_cancelling_a_fleet_cancels_its_shards() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    waiting = asyncio.create_task(gather_results(futures))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(future.cancelled() for future in futures)


def test_what_goes_to_a_worker_shows_no_secret() -> None:
    member = DeviceSnapshot(
        1, b"very secret", (), b"", "btd_hidden", is_enrolled=False, behaviour=DeviceBehaviour()
    )
    assert "very" not in repr(member)
    assert "hidden" not in repr(member)
