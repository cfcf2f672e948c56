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
from tests.server.simulation.operations import (
    Advance,
    AtOnce,
    Everybody,
    Freeze,
    Operation,
    Start,
    Stop,
    StrikeHolder,
    histories,
    play,
)
from tests.server.simulation.shelf import Shelf
from tests.server.simulation.world import Shape, World

_FEW_EXAMPLES = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def sqlite(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
def postgres(tmp_path: Path, postgres_url: str) -> Shelf:
    return Shelf(tmp_path, postgres_url)


@pytest.fixture(params=["sqlite", "postgres"])
def shelf(request: pytest.FixtureRequest) -> Shelf:
    """Return databases of each kind in turn."""
    return request.getfixturevalue(request.param)


@given(happening=histories(6, 12), seed=st.integers(0, 2**16))
@_FEW_EXAMPLES
def test_sqlite_counts_each_once(sqlite: Shelf, happening: list[Operation], seed: int) -> None:
    play(sqlite.empty(), Shape(rounds=2), seed, happening)


@given(happening=histories(6, 12), seed=st.integers(0, 2**16))
@_FEW_EXAMPLES
def test_on_postgresql_two_services_lose_nothing_count_nothing_twice_and_are_not_stuck(
    postgres: Shelf, happening: list[Operation], seed: int
) -> None:
    play(postgres.empty(), Shape(rounds=2, workers=2), seed, happening)


def test_a_world_without_failures_counts_every_device_once(shelf: Shelf) -> None:
    score = play(shelf.empty(), Shape(rounds=1), 1, [Everybody()] * 6)
    assert (score.acknowledged, score.included, score.summed, score.failed) == (30, 6, 1, 0)


def test_a_study_that_is_stopped_in_the_middle_shows_no_sum(shelf: Shelf) -> None:
    score = play(shelf.empty(), Shape(), 1, [*[Everybody()] * 5, Stop()])
    assert (score.acknowledged, score.summed, score.failed) == (24, 0, 1)


@dataclass(frozen=True)
class Expect(Operation):
    """Jobs of a kind were claimed and published so often, and `up` servers are up."""

    claims: int
    results: int
    up: int
    work: str = "sum-cohort"

    async def happen(self, world: World) -> None:
        book = world.loop.book
        claims = [who for work, who in book.claims if work.startswith(f"{self.work} ")]
        assert (len(claims), len(set(claims))) == (self.claims, self.claims), "one claimed twice"
        assert sum(worker.is_up for worker in world.workers) == self.up
        if self.work == "sum-cohort":
            assert len(book.sums) == len(world.published) == self.results
        else:
            closings = select(func.count()).select_from(EventRow)
            closings = closings.where(EventRow.kind == EventKind.ROUND_CLOSED)
            assert ask(world, closings) == self.results


def test_the_lease_of_a_server_that_died_expires_and_another_sums(postgres: Shelf) -> None:
    happening = [
        StrikeHolder("sum-cohort"),
        *[Everybody()] * 6,
        Expect(claims=1, results=0, up=1),
        Advance(16),
        Expect(claims=2, results=1, up=1),
    ]
    score = play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)
    assert (score.summed, score.included, score.claims, score.taken_over) == (1, 6, 2, 1)


@dataclass(frozen=True)
class ExpectForgotten(Operation):
    """All cohorts are closed, and their message bodies are deleted."""

    async def happen(self, world: World) -> None:
        store = next(worker for worker in world.workers if worker.is_up).app.state.service.store
        assert world.published
        assert not await store.cohorts.finished_with_bodies()


def test_what_a_server_that_died_was_to_forget_is_forgotten_by_another(postgres: Shelf) -> None:
    happening = [StrikeHolder("delete-bodies"), *[Everybody()] * 6]
    happening += [Advance(2), Advance(16), ExpectForgotten()]  # the other sees the lease, then ends
    play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)


def test_a_frozen_server_deletes_what_it_must_when_it_goes_on(sqlite: Shelf) -> None:
    happening = [
        StrikeHolder("delete-bodies", 29),
        *[Everybody()] * 6,
        Advance(30),
        Advance(2),  # a job that failed is repeated after a second
        ExpectForgotten(),
    ]
    for seed in range(5):  # in which order its transactions come
        play(sqlite.empty(), Shape(rounds=1), seed, happening)


def test_a_server_that_is_frozen_while_it_stops_ends_once_it_goes_on(sqlite: Shelf) -> None:
    happening = [Everybody(), AtOnce((Start(0), Freeze(0, 29))), *[Everybody()] * 5]
    score = play(sqlite.empty(), Shape(rounds=1), 1, happening)
    assert (score.included, score.summed, score.failed) == (6, 1, 0)


def test_a_server_frozen_for_longer_than_its_lease_publishes_nothing(postgres: Shelf) -> None:
    happening = [
        StrikeHolder("sum-cohort", 40),
        *[Everybody()] * 6,
        Expect(claims=1, results=0, up=2),
        Advance(16),
        Expect(claims=2, results=1, up=2),
        Advance(40),
        Expect(claims=2, results=1, up=2),
    ]
    score = play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)
    assert (score.summed, score.included, score.claims, score.taken_over) == (1, 6, 2, 1)


def ask(world: World, count: Select[tuple[int]]) -> int | None:
    """Return a number from the database; no server needs to run."""
    engine = create_engine(parse_url(world.url))
    with engine.connect() as connection:
        number = connection.scalar(count)
    engine.dispose()
    return number


@dataclass(frozen=True)
class ExpectKept(Operation):
    """At least `least` messages of a kind are stored; `acknowledged` of them have an answer."""

    kind: str
    least: int
    acknowledged: int

    async def happen(self, world: World) -> None:
        query = select(func.count()).select_from(MessageRow).where(MessageRow.kind == self.kind)
        assert (ask(world, query) or 0) >= self.least
        accepted = [
            seat for member in world.members for seat in member.seats if self.kind in seat.accepted
        ]
        assert len(accepted) == self.acknowledged


def test_an_upload_whose_server_dies_between_commit_and_answer_counts_once(shelf: Shelf) -> None:
    """The first messages of each phase that are stored together get no response."""
    happening: list[Operation] = [Everybody()]
    for kind in KINDS:
        happening += [StrikeHolder(kind), Everybody(), Expect(claims=0, results=0, up=0)]
        happening += [ExpectKept(kind, 1, 0), Start(0), Everybody(), ExpectKept(kind, 6, 6)]
    score = play(shelf.empty(), Shape(rounds=1), 1, happening)
    assert (score.acknowledged, score.included, score.summed, score.failed) == (30, 6, 1, 0)


def test_a_round_whose_server_dies_decoding_is_decoded_once_by_another(postgres: Shelf) -> None:
    happening = [StrikeHolder("close"), *[Everybody()] * 6]
    happening += [Expect(claims=1, results=0, up=1, work="close-round"), Advance(16)]
    happening += [Expect(claims=2, results=1, up=1, work="close-round")]
    score = play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)
    assert (score.included, score.summed, score.failed) == (6, 1, 0)
