"""Holders are distinct, uniform and independent; neighbours are mutual."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from math import log
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.parameters import Parameters, relative_entropy
from secagg.roster import GRAPH_NONCE_BYTES
from secagg.session import NeighbourSelection
from tests.vectors.reference import holders as by_definition

LABEL = b"L" * 32


def shape(n: int, k: int) -> Parameters:
    return Parameters(n, k, 2, 0, 0)


def graph_nonces(n: int, seed: int = 0) -> dict[int, bytes]:
    rng = Random(seed)
    return {slot: rng.randbytes(GRAPH_NONCE_BYTES) for slot in range(n)}


shapes = st.integers(4, 90).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 2)))
nonces = st.binary(min_size=GRAPH_NONCE_BYTES, max_size=GRAPH_NONCE_BYTES)


@given(shapes, st.data(), nonces)
def test_holders_are_the_first_k_distinct_draws_never_oneself(
    drawn: tuple[int, int], data: st.DataObject, graph_nonce: bytes
) -> None:
    n, k = drawn
    slot = data.draw(st.integers(0, n - 1))
    holders = NeighbourSelection(LABEL, shape(n, k)).holders(slot, graph_nonce)
    assert list(holders) == by_definition(LABEL, n, k, slot, graph_nonce)
    assert len(set(holders)) == k
    assert set(holders) <= set(range(n)) - {slot}


@given(shapes, st.integers(0, 2**32))
def test_neighbours_are_mutual_and_those_that_brute_force_finds(
    drawn: tuple[int, int], seed: int
) -> None:
    n, k = drawn
    selection, chance = NeighbourSelection(LABEL, shape(n, k)), Random(seed)
    nonces = {slot: c for slot, c in graph_nonces(n, seed).items() if chance.random() < 0.8}
    selected = {
        slot: set(by_definition(LABEL, n, k, slot, graph_nonce))
        for slot, graph_nonce in nonces.items()
    }
    for slot in nonces:
        others = {o for o in nonces if o in selected[slot] or slot in selected[o]} - {slot}
        assert selection.neighbours(slot, nonces) == others


@pytest.mark.parametrize(("n", "k"), [(5_000, 60), (5_000, 12), (2**13 + 1, 30)])
def test_neighbours_among_thousands_are_those_that_brute_force_finds(n: int, k: int) -> None:
    selection, nonces = NeighbourSelection(LABEL, shape(n, k)), graph_nonces(n)
    selected = [set(holders) for holders in selection.all_holders(nonces).tolist()]
    for slot in (0, 1, n // 2, n - 2, n - 1):
        others = {o for o in nonces if o in selected[slot] or slot in selected[o]}
        assert selection.neighbours(slot, nonces) == others


def test_holders_are_selected_also_among_barely_more_others() -> None:
    graph_nonce = bytes(range(32))  # its stream is longer than a batch
    holders = NeighbourSelection(LABEL, shape(202, 200)).holders(7, graph_nonce)
    assert list(holders) == by_definition(LABEL, 202, 200, 7, graph_nonce)


@pytest.mark.parametrize(("others", "count"), [(11, 6), (99_999, 150), (50, 49)])
def test_a_stream_is_the_shortest_with_enough_distinct_draws(others: int, count: int) -> None:
    # The bound of Chernoff on the repetitions, for a fraction above their mean.
    def exponent(draws: int) -> float:
        return float(draws * relative_entropy(1 - count / draws, count / others) / log(2))

    draws = vars(NeighbourSelection(LABEL, shape(others + 1, count)))["_draws"]
    assert 1 - count / draws > count / others
    assert exponent(draws - 1) <= 80 < exponent(draws)


@pytest.mark.parametrize("step", [-1, 0])
def test_a_word_at_the_edge_of_two_slots_selects_one(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 12
    for value in range(n - 1):
        word = (-(-(value << 32) // (n - 1)) + step) % 2**32

        def streams(_: object, nonces: Mapping[int, bytes], word: int = word) -> Any:
            yield np.array([*nonces]), np.full((len(nonces), 1), word, np.uint32)

        monkeypatch.setattr(NeighbourSelection, "_streams", streams)
        selection, nonces = NeighbourSelection(LABEL, shape(n, 1)), graph_nonces(n)
        drawn = word * (n - 1) >> 32
        selected = {slot: drawn + (drawn >= slot) for slot in nonces}
        for slot in nonces:
            others = {o for o in nonces if selected[slot] == o or selected[o] == slot}
            assert selection.neighbours(slot, nonces) == others


@pytest.mark.parametrize("slot", [0, 7, 19])
def test_each_participant_is_equally_frequent_in_each_place(slot: int) -> None:
    # 1,500 graph nonces of one of 20: each of the 19 others is expected 1,500 / 19 times as
    # first, as second, ... as sixth holder. Chi-squared with 18 degrees of freedom exceeds 59 with
    # probability 3e-6 in each of the 18 tables. The seed is fixed.
    selection, rng = NeighbourSelection(LABEL, shape(20, 6)), Random(slot)
    drawn = [selection.holders(slot, rng.randbytes(GRAPH_NONCE_BYTES)) for _ in range(1_500)]
    for place in range(6):
        counts = Counter(holders[place] for holders in drawn)
        assert counts[slot] == 0
        expected = 1_500 / 19
        others = set(range(20)) - {slot}
        assert sum((counts[other] - expected) ** 2 / expected for other in others) < 59


def test_each_pair_of_holders_is_equally_frequent() -> None:
    # 2,200 graph nonces of one of 12, two holders: 55 unordered pairs, 40 each. Chi-squared
    # with 54 degrees of freedom exceeds 115 with probability 3e-6. The seed is fixed.
    selection, rng = NeighbourSelection(LABEL, shape(12, 2)), Random(2)
    drawn = [frozenset(selection.holders(4, rng.randbytes(32))) for _ in range(2_200)]
    counts = Counter(drawn)
    assert len(counts) == 55
    assert sum((count - 40) ** 2 / 40 for count in counts.values()) < 115


def test_holders_of_two_participants_are_independent() -> None:
    # Whether 3 selects 5 and whether 4 selects 5, over 1,500 pairs of graph nonces: a table of
    # four, chi-squared with one degree of freedom, exceeds 24 with probability 1e-6.
    selection, rng = NeighbourSelection(LABEL, shape(12, 4)), Random(3)
    table = Counter(
        tuple(5 in selection.holders(slot, rng.randbytes(32)) for slot in (3, 4))
        for _ in range(1_500)
    )
    p = 4 / 11
    for first, second in product((True, False), repeat=2):
        expected = 1_500 * (p if first else 1 - p) * (p if second else 1 - p)
        assert (table[first, second] - expected) ** 2 / expected < 24


@given(st.integers(2, 40), st.data())
def test_in_a_complete_graph_all_others_are_holders(n: int, data: st.DataObject) -> None:
    slot = data.draw(st.integers(0, n - 1))
    others = data.draw(st.sets(st.integers(0, n - 1)))
    selection = NeighbourSelection(LABEL, shape(n, n - 1))
    holders = selection.holders(slot, b"any graph nonce")
    assert holders == tuple(other for other in range(n) if other != slot)
    nonces = dict.fromkeys(others | {slot}, b"")
    assert selection.neighbours(slot, nonces) == others - {slot}
