"""Word budgets are found where they are."""

import numpy as np
import pytest

from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.planning import f1_by_words
from blindtally.planning.f1_by_words import (
    GOALS,
    TRACKED,
    StudyCase,
    StudySetting,
    draw_study,
    f1_over_sizes,
)
from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.token_study import KeyedPopulation
from protocol.domains.strings import Alphabet, smallest_domain

ITEMS = tuple("abcdefghijklmnop")
POPULATION = ItemPopulation(
    ITEMS, np.full(16, 1 / 16), Alphabet(characters="abcdefghijklmnop", length=1)
)


@pytest.mark.parametrize("every", [2, 3, 7])
def test_sizes_that_are_left_out_move_no_goal(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    rising = np.linspace(0.1, 1, 25)
    rising[23] = 0.94  # 0.95 is reached after this one and stays
    sizes = {round(60 * 1.2**number): f1 for number, f1 in enumerate(rising)}
    monkeypatch.setattr(
        f1_by_words, "score_method", lambda *arguments: sizes.get(arguments[2], 1.0)
    )
    case, setting = (
        StudyCase(KeyedPopulation.of(POPULATION, 100), "none", 1),
        StudySetting(1, 40, 100, 0),
    )
    whole, sparse = (f1_over_sizes(case, TRACKED, setting, [(1,)], every=of) for of in (1, every))
    assert [sparse.x_reaching(goal) for goal in GOALS] == [whole.x_reaching(goal) for goal in GOALS]
    assert len(sparse.points) <= len(whole.points) - 5


def test_users_are_drawn_once_before_any_is_drawn_twice_and_send_at_most_the_contribution() -> None:
    users = DeviceHistograms.of({f"u{number}": 1, "all": 3} for number in range(50))
    items = users.items
    population = ItemPopulation(items, np.ones(len(items)) / len(items), smallest_domain(items))
    case = StudyCase(KeyedPopulation.of(population, 100), "none", 2, users)
    study = draw_study(case, StudySetting(rounds=3, tau=60, tokens=50, words=100), [1])
    sizes = [len(held) for held in study.tokens.rounds]
    assert sizes == [25, 25, 25]
    assert all(held.device_totals.max() == 2 for held in study.tokens.rounds)
    first, second, third = (
        {item for histogram in held for item in histogram} for held in study.tokens.rounds
    )
    assert not (first & second) - {"all"}
    assert [items[place] for place in np.flatnonzero(study.heavy)] == ["all"]
    assert third <= set(items)


def test_devices_count_the_copies_of_default_settings_and_all_in_papers() -> None:
    known = KeyedPopulation.of(ItemPopulation(("a",), np.ones(1), POPULATION.domain), 100)
    setting = StudySetting(rounds=1, tau=9, tokens=32, words=100)
    users = DeviceHistograms.of([{"a": 4}] * 8)
    for counted, case in (
        (1, StudyCase(known, "none", 4)),
        (1, StudyCase(known, "none", 4, users)),
        (4, StudyCase(known, "none", 4, counts_all_copies=True)),
    ):
        study = draw_study(case, setting, [1])
        counts = study.tokens.rounds[0].counts
        assert set(counts[:-1].tolist()) == {counted}  # the last device has the rest
        assert study.heavy.tolist() == [counts.sum() >= 9]
