"""Word budgets are found where they are."""

import numpy as np
import pytest

from blindtally.planning import words_needed
from blindtally.planning.words_needed import GOALS, TRACKED, StudyCase, StudySetting, f1_over_sizes
from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.token_study import KeyedPopulation
from protocol.domains.strings import Alphabet

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
        words_needed, "score_method", lambda *arguments: sizes.get(arguments[2], 1.0)
    )
    case, setting = (
        StudyCase(KeyedPopulation.of(POPULATION, 100), "none", 1),
        StudySetting(1, 40, 100, 0),
    )
    whole, sparse = (f1_over_sizes(case, TRACKED, setting, [(1,)], every=of) for of in (1, every))
    assert [sparse.x_reaching(goal) for goal in GOALS] == [whole.x_reaching(goal) for goal in GOALS]
    assert len(sparse.points) <= len(whole.points) - 5
