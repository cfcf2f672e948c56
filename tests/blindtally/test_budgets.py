"""What figures simulate is what devices send, and budgets are found where they are."""

import itertools
import random
from typing import Any

import numpy as np
import pytest

from blindtally.figures import budgets
from blindtally.figures.budgets import PAPER, TRACKED, Case, beside, needed
from blindtally.figures.curves import GOALS, Setting
from blindtally.figures.devices import Held, Known, _send, deal, paper_adaptive
from blindtally.figures.populations import Population
from protocol.chance import seeded
from protocol.domain import Alphabet, Domain, Utf8
from protocol.hashed import Hashed
from protocol.mechanism import Terms
from protocol.mechanisms.counters import Group
from protocol.mechanisms.strings import Fetch
from protocol.mechanisms.tracked import Tracked, TrackedQuestion
from protocol.tally import NOTHING

ITEMS = tuple(a + b for a in "abcdefghijklmnop" for b in "abcdefghijklmnop")
SHARES = 1 / np.arange(1, len(ITEMS) + 1)
LETTERS = Alphabet(characters="abcdefghijklmnop", length=2)


def population(domain: Domain = LETTERS) -> Population:
    return Population(ITEMS, SHARES / SHARES.sum(), domain)


def histograms(held: Held, kinds: int) -> list[dict[str, int]]:
    """Return some devices that hold together what `held` does, tracked or not."""
    counts = np.bincount(held.items, held.counts, kinds).astype(int)
    return [{ITEMS[row]: int(counts[row])} for row in np.flatnonzero(counts)]


@pytest.mark.parametrize("contribution", [1, 7])
def test_all_tokens_are_dealt_and_no_device_gets_more_than_its_share(contribution: int) -> None:
    counts = np.random.default_rng(1).multinomial(1000, SHARES / SHARES.sum())
    held = deal(counts, contribution, np.random.default_rng(2))
    assert (np.bincount(held.items, held.counts, len(ITEMS)) == counts).all()
    assert held.devices == -(-1000 // contribution)
    assert held.counts.max() <= contribution


@pytest.mark.parametrize("domain", [LETTERS, Utf8(max_bytes=30)])
def test_what_is_simulated_is_what_the_mechanism_makes_of_devices(domain: Domain) -> None:
    known = Known.of(population(domain), 800)
    assert isinstance(known.domain, Hashed) == (domain is not LETTERS)
    mechanism, rng = Tracked(), np.random.default_rng(3)
    question = TrackedQuestion(threshold=20, contribution=1000, domain=known.domain, words=3000)
    terms, tally = Terms(cohort_size=1000, minimum=500), NOTHING
    plan = mechanism.first_plan(question, terms, "test", 4, random.Random(1))
    for _ in range(3):
        plan = plan.model_copy(update={"t": 1.0, "most": 2**20, "cells": 60})
        counts = rng.multinomial(800, known.population.shares)
        held = Held(np.arange(len(ITEMS)), counts, 800, 1000)
        whole = Held(held.items[counts > 0], counts[counts > 0], 800, 1000)
        sent = _send(plan, whole, known, rng)
        told = mechanism.encode_sum(plan, histograms(whole, len(ITEMS)), seeded(rng))
        assert all((one == other).all() for one, other in zip(sent, told, strict=True))
        plan = plan.model_copy(update={"cells": 900})
        answer = mechanism.decode(plan, _send(plan, whole, known, rng), 800, tally)
        tally = answer.tally
        plan = mechanism.next_plan(plan, answer, tally, random.Random(2))
        assert plan.groups


def test_what_a_device_may_not_hold_is_not_sent() -> None:
    domain = Hashed(max_bytes=9, key_bits=24)
    known = Known(Population(("#00ff00", "green"), np.ones(2) / 2, domain), domain)
    question = TrackedQuestion(threshold=9, contribution=20, domain=domain, words=300)
    terms = Terms(cohort_size=100, minimum=50)
    plan = Tracked().first_plan(question, terms, "test", 4, random.Random(1))
    plan = plan.model_copy(update={"t": 1.0, "past": None})
    held, rng = Held(np.arange(2), np.array([20, 5]), 2, 20), np.random.default_rng(1)
    listing = plan.table.iblt.list_entries(_send(plan, held, known, rng), known.keys[:0])
    assert listing.values.tolist() == [5]


def test_items_that_share_a_key_are_counted_together_and_fetched_in_vain() -> None:
    domain, names = Hashed(max_bytes=9, key_bits=24), dict[str, str]()
    one, other = next(
        (item, names[name])
        for item in map(str, itertools.count())
        if (name := domain.name(item)) in names or names.__setitem__(name, item)
    )
    known = Known(Population((one, other, "alone"), np.ones(3) / 3, domain), domain)
    question = TrackedQuestion(threshold=9, contribution=1, domain=domain, words=300)
    terms, name = Terms(cohort_size=100, minimum=50), domain.name(one)
    plan = Tracked().first_plan(question, terms, "test", 4, random.Random(1))
    group, fetch = Group(bits=6, items=(name,)), Fetch(name=name, piece=0)
    plan = plan.model_copy(update={"groups": (group,), "fetches": (fetch,), "past": None})
    held = Held(np.arange(3), np.array([20, 5, 8]), 33, 1)
    counted, total, _, string, *_ = _send(plan, held, known, np.random.default_rng(1))
    assert (counted[0], total[0]) == (25, 25)
    pieces = plan.strings.decode(string, {name: 25})
    assert pieces.get(name) not in {one.encode().ljust(9, b"\0"), other.encode().ljust(9, b"\0")}


@pytest.mark.parametrize("every", [2, 3, 7])
def test_sizes_that_are_left_out_move_no_goal(monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    rising = np.linspace(0.1, 1, 25)
    rising[23] = 0.94  # from which on 0.95 is reached for good
    sizes = {round(60 * 1.2**number): f1 for number, f1 in enumerate(rising)}
    monkeypatch.setattr(budgets, "_score", lambda *asked: sizes.get(asked[4], 1.0))
    case, setting = Case(population(), "none", 1), Setting(1, 40, 100, 0)
    whole, found = (needed(case, TRACKED, setting, [(1,)], every=of) for of in (1, every))
    assert [found.reaches(goal) for goal in GOALS] == [whole.reaches(goal) for goal in GOALS]
    assert len(found.points) <= len(whole.points) - 5


def test_the_papers_tables_find_all_if_there_is_room_and_nothing_without() -> None:
    rng = np.random.default_rng(1)
    held = [deal(rng.multinomial(1000, SHARES / SHARES.sum()), 1, rng) for _ in range(5)]
    truth = np.sum([np.bincount(one.items, one.counts, len(ITEMS)) for one in held], axis=0)
    assert (paper_adaptive(held, len(ITEMS), 8000, 30, rng) == (truth >= 30)).all()
    assert paper_adaptive(held, len(ITEMS), 24, 30, rng).sum() < 40


@pytest.fixture
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "_STEP", 1.7)
    monkeypatch.setattr(budgets, "_STILL", 0)


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("contribution", [1, 4])
def test_tracking_needs_a_fraction_of_the_words(contribution: int) -> None:
    case, setting = Case(population(), "none", contribution), Setting(12, 40, 1000, 0)
    reached: dict[str, Any] = {
        method: needed(case, method, setting, [(1, 0), (1, 1)]).reaches(0.95)
        for method in (PAPER, TRACKED)
    }
    assert reached[TRACKED] < reached[PAPER] / 4


def test_methods_are_compared_with_as_many_words() -> None:
    settings = [Setting(6, 30, 1000, words) for words in (100, 400)]
    pairs = [beside(population(), (5,), setting) for setting in settings]
    assert [pair.setting for pair in pairs] == settings
    assert all(pair.tracked > pair.paper for pair in pairs)
