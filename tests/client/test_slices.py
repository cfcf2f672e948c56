"""A fleet in slices: the same devices play, give and are lost, whoever plays them."""

import asyncio
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from blindtally.demo.results import verify
from blindtally.demo.service import Service
from client.analyst import Analyst, Study
from client.crew import Crew, Played, Standing
from client.fleet import Fleet
from client.habits import Behaviour
from client.journal import What
from client.part import End
from client.participation import Step
from client.policy import Policy
from client.slices import LostWorkersError, Member, Slicing, gathered
from client.transport import connect
from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import Timeouts
from protocol.round import Phase

HOLDINGS = [{"common": 1, f"rare {index % 3}": 2} for index in range(18)]
EARLY = {Step.JOINED, Step.SHARED}
CREW = Crew(9, dropout=0.2, seed=1, policy=Policy(min_cohort=3))
QUESTION = AdaptiveIbltQuestion(threshold=5, contribution=2, domain=Utf8(max_bytes=12), words=1000)


class Elsewhere(ThreadPoolExecutor):
    """Threads to which everything goes as bytes, as to other processes; keeps what comes back."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.returned: list[Any] = []

    def submit(self, work: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Do it in a thread, with bytes alone going there and back."""
        return super().submit(self._there, pickle.dumps((work, args, options)))

    def _there(self, asked: bytes) -> Any:
        work, args, options = pickle.loads(asked)  # noqa: S301 - our own
        answer = pickle.loads(pickle.dumps(work(*args, **options)))  # noqa: S301
        self.returned.append(answer)
        return answer


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("service"), is_open=True) as running:
        yield running


def create(analyst: Analyst) -> Study:
    terms = Terms(cohort_size=9, minimum=5, corrupt=0.05, dropout=0.4)
    timeouts = Timeouts(patience=1)
    return analyst.create("slices", QUESTION, terms, rounds=1, timeouts=timeouts)


async def play(fleet: Fleet) -> list[Played]:
    return [one async for one in fleet.play()]


def ended(played: list[Played]) -> list[list[tuple[int, End, Step | None]]]:
    return [[(e.device, e.end, e.last) for e in one.entries] for one in played]


def test_slices_play_give_and_lose_as_one_fleet_does(service: Service) -> None:
    standings: list[Standing] = []
    found = []
    with Analyst(service.url) as analyst, Elsewhere(3) as elsewhere:
        for slicing in (None, Slicing(elsewhere, 3)):
            study, wire = create(analyst), partial(connect, service.url)
            fleet = Fleet(wire, study.view, HOLDINGS, CREW, standings.append, slicing)
            played = asyncio.run(play(fleet))
            for one in played:
                (cohort,) = one.view.cohorts
                assert cohort.phase is Phase.SUMMED
                verify(one, cohort, study.cohort_sum(one.view, 0))
            found.append(ended(played))
    assert found[0] == found[1]
    assert {end for _, end, _ in found[0][0]} == {End.FINISHED, End.VANISHED}
    assert len(elsewhere.returned) == 3
    assert max(standing.done.get(Step.JOINED, 0) for standing in standings[-3:]) > 0
    # Whoever gave its vector has that in the journal that came back.
    known = {e.device: given for part in elsewhere.returned for e, given in part}
    gave = {device for device, given in known.items() if any(g.what is What.VECTOR for g in given)}
    assert gave == {device for device, _, last in found[0][0] if last not in {None, *EARLY}}


def test_slices_differ_by_one_device_at_most() -> None:
    slicing: Any = partial(Slicing, None)
    assert slicing(3).cut(range(8)) == [range(0, 8, 3), range(1, 8, 3), range(2, 8, 3)]
    assert slicing(4).cut([1, 2]) == [[1], [2]]


async def test_devices_of_a_worker_that_died_are_lost_and_that_is_said() -> None:
    loop = asyncio.get_running_loop()
    for problem in (BrokenExecutor(), asyncio.CancelledError()):
        one, other = loop.create_future(), loop.create_future()
        one.set_exception(problem)
        with pytest.raises(LostWorkersError, match=r"devices with (it|them)"):
            await gathered([one, other])
        assert other.cancelled()


async def test_whoever_stops_a_fleet_stops_its_slices() -> None:
    futures = [asyncio.get_running_loop().create_future() for _ in range(2)]
    waiting = asyncio.create_task(gathered(futures))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(future.cancelled() for future in futures)


def test_what_goes_to_a_worker_shows_no_secret() -> None:
    member = Member(1, b"very secret", (), b"", "btd_hidden", is_known=False, behaviour=Behaviour())
    assert "very" not in repr(member)
    assert "hidden" not in repr(member)
