"""Any operations in any order: no message is lost, counted twice, or stuck.

`make soak` plays 10,000 operations on each database; these tests play some, and the cases of
earlier failures.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Select, create_engine, func, select

from protocol.api.events import EventKind
from server.db.database_url import parse_url
from server.db.schema import EventRow, MessageRow
from tests.server.device import KINDS
from tests.server.simulation.databases import Databases
from tests.server.simulation.operations import (
    AdvanceTime,
    Concurrently,
    FreezeServer,
    InterruptJob,
    Operation,
    RestartServer,
    StepAll,
    StopStudy,
    histories,
    play,
)
from tests.server.simulation.study import SimulatedStudy, StudySize

_FEW_EXAMPLES = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def sqlite(tmp_path: Path) -> Databases:
    return Databases(tmp_path)


@pytest.fixture
def postgres(tmp_path: Path, postgres_url: str) -> Databases:
    return Databases(tmp_path, postgres_url)


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Databases:
    """Return databases of each kind in turn."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@given(operations=histories(6, 12), seed=st.integers(0, 2**16))
@_FEW_EXAMPLES
def test_sqlite_counts_each_once(sqlite: Databases, operations: list[Operation], seed: int) -> None:
    play(sqlite.empty(), StudySize(rounds=2), seed, operations)


@given(operations=histories(6, 12), seed=st.integers(0, 2**16))
@_FEW_EXAMPLES
def test_on_postgresql_two_services_lose_nothing_count_nothing_twice_and_are_not_stuck(
    postgres: Databases, operations: list[Operation], seed: int
) -> None:
    play(postgres.empty(), StudySize(rounds=2, servers=2), seed, operations)


def test_a_study_without_failures_counts_every_device_once(sqlite: Databases) -> None:
    figures = play(sqlite.empty(), StudySize(rounds=1), 1, [StepAll()] * 6)
    assert (figures.acknowledged, figures.included, figures.summed, figures.failed) == (30, 6, 1, 0)


def test_a_study_that_is_stopped_in_the_middle_shows_no_sum(sqlite: Databases) -> None:
    figures = play(sqlite.empty(), StudySize(), 1, [*[StepAll()] * 5, StopStudy()])
    assert (figures.acknowledged, figures.summed, figures.failed) == (24, 0, 1)


@dataclass(frozen=True)
class Expect(Operation):
    """Jobs of a kind were claimed and published so often, and `up` servers are up."""

    claims: int
    results: int
    up: int
    work: str = "sum-cohort"

    async def apply(self, study: SimulatedStudy) -> None:
        commit_log = study.loop.commit_log
        claims = [who for work, who in commit_log.claims if work.startswith(f"{self.work} ")]
        assert (len(claims), len(set(claims))) == (self.claims, self.claims), "one claimed twice"
        assert sum(server.is_up for server in study.servers) == self.up
        if self.work == "sum-cohort":
            assert len(commit_log.sums) == len(study.published) == self.results
        else:
            closings = select(func.count()).select_from(EventRow)
            closings = closings.where(EventRow.kind == EventKind.ROUND_CLOSED)
            assert ask(study, closings) == self.results


@dataclass(frozen=True)
class ExpectBodiesDeleted(Operation):
    """All cohorts are closed, and their message bodies are deleted."""

    async def apply(self, study: SimulatedStudy) -> None:
        store = next(server for server in study.servers if server.is_up).app.state.service.store
        assert study.published
        assert not await store.cohorts.finished_with_bodies()


def test_what_a_server_that_died_was_to_forget_is_forgotten_by_another(postgres: Databases) -> None:
    operations = [InterruptJob("delete-bodies"), *[StepAll()] * 6]
    operations += [
        AdvanceTime(2),
        AdvanceTime(16),
        ExpectBodiesDeleted(),
    ]  # the other sees the lease, then ends
    play(postgres.empty(), StudySize(rounds=1, servers=2), 1, operations)


def test_a_frozen_server_deletes_what_it_must_when_it_goes_on(sqlite: Databases) -> None:
    operations = [
        InterruptJob("delete-bodies", 29),
        *[StepAll()] * 6,
        AdvanceTime(30),
        AdvanceTime(2),  # a job that failed is repeated after a second
        ExpectBodiesDeleted(),
    ]
    for seed in range(5):  # in which order its transactions come
        play(sqlite.empty(), StudySize(rounds=1), seed, operations)


def test_a_server_that_is_frozen_while_it_stops_ends_once_it_goes_on(sqlite: Databases) -> None:
    operations = [
        StepAll(),
        Concurrently((RestartServer(0), FreezeServer(0, 29))),
        *[StepAll()] * 5,
    ]
    figures = play(sqlite.empty(), StudySize(rounds=1), 1, operations)
    assert (figures.included, figures.summed, figures.failed) == (6, 1, 0)


def ask(study: SimulatedStudy, count: Select[int]) -> int | None:
    """Return a number from the database; no server needs to run."""
    engine = create_engine(parse_url(study.url))
    with engine.connect() as connection:
        number = connection.scalar(count)
    engine.dispose()
    return number


@dataclass(frozen=True)
class ExpectStored(Operation):
    """At least `least` messages of a kind are stored; `acknowledged` of them have an answer."""

    kind: str
    least: int
    acknowledged: int

    async def apply(self, study: SimulatedStudy) -> None:
        query = select(func.count()).select_from(MessageRow).where(MessageRow.kind == self.kind)
        assert (ask(study, query) or 0) >= self.least
        accepted = [
            seat for device in study.devices for seat in device.seats if self.kind in seat.accepted
        ]
        assert len(accepted) == self.acknowledged


def test_an_upload_whose_server_dies_between_commit_and_answer_counts_once(
    databases: Databases,
) -> None:
    """The first messages of each phase that are stored together get no response."""
    operations: list[Operation] = [StepAll()]
    for kind in KINDS:
        operations += [InterruptJob(kind), StepAll(), Expect(claims=0, results=0, up=0)]
        operations += [
            ExpectStored(kind, 1, 0),
            RestartServer(0),
            StepAll(),
            ExpectStored(kind, 6, 6),
        ]
    figures = play(databases.empty(), StudySize(rounds=1), 1, operations)
    assert (figures.acknowledged, figures.included, figures.summed, figures.failed) == (30, 6, 1, 0)


@pytest.mark.parametrize(
    ("work", "seconds", "up"),
    [("close-round", None, 1), ("sum-cohort", None, 1), ("sum-cohort", 29, 2)],
    ids=["dies decoding", "dies summing", "is frozen while it sums"],
)
def test_the_work_of_a_server_that_dies_or_is_frozen_is_done_once_by_another(
    postgres: Databases, work: str, seconds: float | None, up: int
) -> None:
    operations = [InterruptJob(work, seconds), *[StepAll()] * 6]
    operations += [Expect(claims=1, results=0, up=up, work=work), AdvanceTime(16)]
    operations += [Expect(claims=2, results=1, up=up, work=work), AdvanceTime(16)]
    operations += [Expect(claims=2, results=1, up=up, work=work)]
    figures = play(postgres.empty(), StudySize(rounds=1, servers=2), 1, operations)
    assert (figures.included, figures.summed, figures.failed) == (6, 1, 0)
