"""Simulated rounds of tokens, each of which is used once, and the score of what a study finds."""

import itertools

import numpy as np
import pytest

from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.scores import compare_with_truth
from blindtally.simulate.token_study import KeyedPopulation, run_tokens
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet, Utf8

ITEMS = tuple(a + b for a in "abcdefghijklmnop" for b in "ponmlkjihgfedcba")  # not sorted
SHARES = 1 / np.arange(1, len(ITEMS) + 1)
LETTERS = Alphabet(characters="abcdefghijklmnop", length=2)


def population(domain: Domain = LETTERS) -> ItemPopulation:
    return ItemPopulation(ITEMS, SHARES / SHARES.sum(), domain)


@pytest.mark.parametrize("contribution", [1, 7])
def test_all_tokens_are_used_and_no_device_gets_too_many(contribution: int) -> None:
    counts = np.random.default_rng(1).multinomial(1000, SHARES / SHARES.sum())
    known = KeyedPopulation.of(population(), 1000)
    (round_,) = known.distribute([counts], contribution, np.random.default_rng(2)).rounds
    assert (round_.item_totals(round_.counts)[known.places] == counts).all()
    assert len(round_) == -(-1000 // contribution)
    assert round_.device_totals.max() == contribution
    assert round_.device_totals.sum() == 1000
    devices = [tuple(histogram) for histogram in round_]
    assert all(list(items) == sorted(set(items)) for items in devices)


@pytest.mark.parametrize("domain", [LETTERS, Utf8(max_bytes=30)])
@pytest.mark.parametrize("contribution", [1, 5])
def test_a_study_with_enough_words_finds_the_heavy_items(domain: Domain, contribution: int) -> None:
    known = KeyedPopulation.of(population(domain), 800)
    assert isinstance(known.domain, Hashed) == (domain is not LETTERS)
    rng = np.random.default_rng(3)
    counts = rng.multinomial(800, SHARES / SHARES.sum(), 6)
    study = run_tokens("tracked", known.distribute(counts, contribution, rng), 6000, 60, rng)
    assert study.rounds_decoded == 6
    totals = counts.sum(axis=0)
    # The first round is sampled, so an estimate may be off by a few counts.
    is_clear = np.abs(totals - 60) > 6
    assert (study.found_items == (totals >= 60))[is_clear].all()
    assert 0 < study.vector_bytes <= 12_000
    assert study.plan_bytes > 100


def test_items_outside_the_domain_and_unknown_names_are_not_found() -> None:
    domain = Hashed(max_bytes=9, key_bits=24)
    names = dict[str, str]()
    first, second = next(
        (item, names[name])
        for item in map(str, itertools.count())
        if (name := domain.name(item)) in names or names.__setitem__(name, item)
    )  # two items with the same key, whose string cannot be fetched
    items = (first, second, "#00ff00", "green")
    known = KeyedPopulation(ItemPopulation(items, np.ones(4) / 4, domain), domain)
    rng = np.random.default_rng(1)
    counts = np.tile([20, 15, 30, 25], (8, 1))
    study = run_tokens("tracked", known.distribute(counts, 1, rng), 3000, 50, rng)
    assert study.found_items[:4].tolist() == [False, False, False, True]
    assert study.found_items[4:].all()  # names that are not items


def test_an_item_that_is_known_by_its_key_only_has_the_true_count_of_the_key() -> None:
    """An interval may hold the count of an item that is not found."""
    domain = Hashed(max_bytes=9)
    truth = {"known": 60, "hidden": 70, "rare": 3}
    rows = [("known", 61.0, 1.0, 59.0, 63.0), (domain.name("hidden"), 69.0, 2.0, 65.0, 73.0)]
    compared = compare_with_truth(rows, truth, 50, domain)
    assert [each.true_count for each in compared.found_items] == [60, 70]
    assert compared.interval_coverage == 1
    assert (compared.score.precision, compared.score.recall) == (0.5, 0.5)
    assert compared.missed == {"hidden": 70}
