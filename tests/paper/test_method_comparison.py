"""Tracking compared with the paper's tables."""

import numpy as np
import pytest

from blindtally.planning import f1_by_words
from blindtally.planning.f1_by_words import TRACKED, StudyCase, StudySetting, f1_over_sizes
from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.token_study import KeyedPopulation
from paper.f1_curves import PAPER, compare_methods
from paper.gascon23 import run_paper_adaptive
from protocol.domains.strings import Alphabet

ITEMS = tuple(a + b for a in "abcdefghijklmnop" for b in "abcdefghijklmnop")
SHARES = 1 / np.arange(1, len(ITEMS) + 1)
LETTERS = Alphabet(characters="abcdefghijklmnop", length=2)


def population() -> ItemPopulation:
    return ItemPopulation(ITEMS, SHARES / SHARES.sum(), LETTERS)


def test_the_papers_tables_find_all_if_there_is_room_and_nothing_without() -> None:
    rng = np.random.default_rng(1)
    counts = rng.multinomial(1000, SHARES / SHARES.sum(), 5)
    tokens = KeyedPopulation.of(population(), 1000).distribute(counts, 1, rng)
    assert (run_paper_adaptive(tokens, 8000, 30, rng) == (counts.sum(axis=0) >= 30)).all()
    assert run_paper_adaptive(tokens, 24, 30, rng).sum() < 40


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f1_by_words, "_SIZE_RATIO", 1.7)
    monkeypatch.setattr(f1_by_words, "_CONFIRMING_SIZES", 0)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("contribution", [1, 4])
def test_tracking_needs_a_fraction_of_the_words(contribution: int) -> None:
    known = KeyedPopulation.of(population(), 1000)
    case, setting = StudyCase(known, "none", contribution), StudySetting(12, 40, 1000, 0)
    reached = {
        method.name: f1_over_sizes(case, method, setting, [(1, 0), (1, 1)]).x_reaching(0.95)
        for method in (PAPER, TRACKED)
    }
    words, papers = reached["tracked"], reached["adaptive IBLT"]
    assert words is not None
    assert papers is not None
    assert words < papers / 4


def test_methods_are_compared_with_the_same_number_of_words() -> None:
    settings = [StudySetting(6, 30, 1000, words) for words in (100, 400)]
    pairs = [compare_methods(population(), (5,), setting) for setting in settings]
    assert [pair.setting for pair in pairs] == settings
    assert all(pair.tracked_f1 > pair.paper_f1 for pair in pairs)
