"""Whatever happens, and in whichever order: nothing is lost, counted twice, or stuck.

`make soak` plays 10,000 operations on each database; here are some, and what was found.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.simulation.operations import Everybody, Operation, Stop, histories, play
from tests.server.simulation.shelf import Shelf
from tests.server.simulation.world import Shape

_BRIEF = settings(
    max_examples=4,
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


@given(happening=histories(8, 16), seed=st.integers(0, 2**16))
@_BRIEF
def test_on_sqlite_nothing_is_lost_counted_twice_or_stuck(
    sqlite: Shelf, happening: list[Operation], seed: int
) -> None:
    play(sqlite.empty(), Shape(workers=1), seed, happening)


@given(happening=histories(8, 16), seed=st.integers(0, 2**16))
@_BRIEF
def test_on_postgresql_two_services_lose_nothing_count_nothing_twice_and_are_not_stuck(
    postgres: Shelf, happening: list[Operation], seed: int
) -> None:
    play(postgres.empty(), Shape(workers=2), seed, happening)


def test_a_world_in_which_nothing_goes_wrong_counts_everybody_once(shelf: Shelf) -> None:
    score = play(shelf.empty(), Shape(rounds=1), 1, [Everybody()] * 5)
    assert (score.acknowledged, score.included, score.summed, score.failed) == (24, 6, 1, 0)


def test_a_study_that_is_stopped_in_the_middle_shows_no_sum(shelf: Shelf) -> None:
    score = play(shelf.empty(), Shape(), 1, [*[Everybody()] * 4, Stop()])
    assert (score.acknowledged, score.summed, score.failed) == (18, 0, 1)
