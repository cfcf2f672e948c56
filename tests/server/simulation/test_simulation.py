"""Whatever happens, and in whichever order: nothing is lost, counted twice, or stuck.

`make soak` plays 10,000 operations on each database; here are some, and what was found.
"""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server import decoding
from server.database import writing
from server.store.cohorts import Cohorts
from server.store.participants import Participants
from server.store.rounds import Rounds
from tests.server.simulation.loop import Moment, die_now
from tests.server.simulation.operations import Everybody, Operation, Stop, histories, play
from tests.server.simulation.shelf import Shelf
from tests.server.simulation.world import Shape

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


def test_who_is_too_late_is_not_in_the_sum_and_nobody_hears_otherwise(shelf: Shelf) -> None:
    """Found by the soak in a service that took vectors in any phase."""
    happening = [*[Everybody()] * 2, Everybody(missing=0), *[Everybody()] * 4]
    score = play(shelf.empty(), Shape(rounds=1), 1, happening)
    assert (score.included, score.summed, score.failed) == (5, 1, 0)


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
@pytest.mark.parametrize(
    ("book", "method"), [(Participants, "_accept"), (Cohorts, "finish"), (Rounds, "close")]
)
def test_a_server_killed_at_a_commit_costs_no_device_its_place_in_the_sum(
    sqlite: Shelf, monkeypatch: pytest.MonkeyPatch, book: type, method: str, moment: Moment
) -> None:
    inside = vars(book)[method].__wrapped__  # what happens in the transaction
    monkeypatch.setattr(book, method, writing(dying(inside, moment)))
    check_everybody_is_counted(sqlite)


@pytest.mark.parametrize("work", ["_add", "unmask", "_decode"])
def test_a_server_killed_while_it_sums_unmasks_or_decodes_does_it_again_from_rows(
    sqlite: Shelf, monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    inside = vars(decoding)[work]
    monkeypatch.setattr(decoding, work, dying(inside, "before the commit"))
    check_everybody_is_counted(sqlite)


def dying(inside: Callable[..., Any], moment: Moment) -> Callable[..., Any]:
    """Return `inside`, in which a server dies the first time."""
    deaths: list[Moment] = []

    @wraps(inside)
    def die_once(*args: Any, **kwargs: Any) -> Any:
        result = inside(*args, **kwargs)
        if not deaths:
            deaths.append(moment)
            die_now(moment)
        return result

    return die_once


def check_everybody_is_counted(shelf: Shelf) -> None:
    """Let six devices take part, with a server that is started again when it died."""
    score = play(shelf.empty(), Shape(rounds=1), 1, [Everybody()] * 6)
    assert (score.acknowledged, score.included, score.summed, score.failed) == (24, 6, 1, 0)
