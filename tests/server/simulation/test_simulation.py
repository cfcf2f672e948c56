"""Whatever happens, and in whichever order: nothing is lost, counted twice, or stuck.

`make soak` plays 10,000 operations on each database; here are some, and what was found.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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

_BRIEF = settings(
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
@_BRIEF
def test_on_sqlite_nothing_is_lost_counted_twice_or_stuck(
    sqlite: Shelf, happening: list[Operation], seed: int
) -> None:
    play(sqlite.empty(), Shape(rounds=2), seed, happening)


@given(happening=histories(6, 12), seed=st.integers(0, 2**16))
@_BRIEF
def test_on_postgresql_two_services_lose_nothing_count_nothing_twice_and_are_not_stuck(
    postgres: Shelf, happening: list[Operation], seed: int
) -> None:
    play(postgres.empty(), Shape(rounds=2, workers=2), seed, happening)


def test_a_world_in_which_nothing_goes_wrong_counts_everybody_once(shelf: Shelf) -> None:
    score = play(shelf.empty(), Shape(rounds=1), 1, [Everybody()] * 5)
    assert (score.acknowledged, score.included, score.summed, score.failed) == (24, 6, 1, 0)


def test_a_study_that_is_stopped_in_the_middle_shows_no_sum(shelf: Shelf) -> None:
    score = play(shelf.empty(), Shape(), 1, [*[Everybody()] * 4, Stop()])
    assert (score.acknowledged, score.summed, score.failed) == (18, 0, 1)


@dataclass(frozen=True)
class Expect(Operation):
    """So many claims of a sum were made, and so many sums published; `up` servers are up."""

    claims: int
    sums: int
    up: int

    async def happen(self, world: World) -> None:
        """See the class."""
        book = world.loop.book
        claims = [who for work, who in book.claims if work.startswith("sum ")]
        up = sum(worker.is_up for worker in world.workers)
        assert (len(claims), len(book.sums), up) == (self.claims, self.sums, self.up)
        assert len(world.published) == self.sums
        assert len(set(claims)) == self.claims, "somebody claimed twice"


def test_the_lease_of_a_server_that_died_runs_out_and_another_makes_the_sum(
    postgres: Shelf,
) -> None:
    happening = [
        StrikeHolder("sum"),
        *[Everybody()] * 5,
        Expect(claims=1, sums=0, up=1),
        Advance(16),
        Expect(claims=2, sums=1, up=1),
    ]
    score = play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)
    assert (score.summed, score.included, score.claims, score.taken_over) == (1, 6, 2, 1)


@dataclass(frozen=True)
class ExpectForgotten(Operation):
    """Cohorts are over, and nothing is left of what was said in them."""

    async def happen(self, world: World) -> None:
        """See the class."""
        store = next(one for one in world.workers if one.is_up).app.state.service.store
        assert world.published
        assert not await store.cohorts.over()


def test_what_a_server_that_died_was_to_forget_is_forgotten_by_another(postgres: Shelf) -> None:
    happening = [StrikeHolder("forget"), *[Everybody()] * 5]
    happening += [Advance(2), Advance(16), ExpectForgotten()]  # the other sees the lease, then ends
    play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)


def test_what_a_server_that_stood_still_was_to_forget_is_forgotten_when_it_goes_on(
    sqlite: Shelf,
) -> None:
    happening = [StrikeHolder("forget", 29), *[Everybody()] * 5, Advance(30), ExpectForgotten()]
    for seed in range(5):  # in which order its transactions come
        play(sqlite.empty(), Shape(rounds=1), seed, happening)


def test_a_server_that_is_frozen_while_it_stops_ends_once_it_goes_on(sqlite: Shelf) -> None:
    happening = [Everybody(), AtOnce((Start(0), Freeze(0, 29))), *[Everybody()] * 4]
    score = play(sqlite.empty(), Shape(rounds=1), 1, happening)
    assert (score.included, score.summed, score.failed) == (6, 1, 0)


def test_a_server_that_stood_still_for_longer_than_its_lease_publishes_nothing(
    postgres: Shelf,
) -> None:
    happening = [
        StrikeHolder("sum", 40),
        *[Everybody()] * 5,
        Expect(claims=1, sums=0, up=2),
        Advance(16),
        Expect(claims=2, sums=1, up=2),
        Advance(40),
        Expect(claims=2, sums=1, up=2),
    ]
    score = play(postgres.empty(), Shape(rounds=1, workers=2), 1, happening)
    assert (score.summed, score.included, score.claims, score.taken_over) == (1, 6, 2, 1)
