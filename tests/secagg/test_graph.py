"""Picks: distinct, uniform, nobody else's business; partners: mutual, whoever looks."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.graph import GRAPH_NONCE_BYTES, NeighbourSelection
from secagg.parameters import Parameters
from tests.vectors.reference import holders as by_definition

LABEL = b"L" * 32


def shape(n: int, k: int, m: int | None = None) -> Parameters:
    """Return parameters of which only n, k and m matter here."""
    return Parameters(n, k, 2, k if m is None else m, 0, 0)


def said(n: int, seed: int = 0) -> dict[int, bytes]:
    """Return a contribution of everybody."""
    rng = Random(seed)
    return {slot: rng.randbytes(GRAPH_NONCE_BYTES) for slot in range(n)}


shapes = st.integers(4, 90).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n - 2)).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), st.just(pair[1]), st.integers(1, pair[1]))
    )
)
contributions = st.binary(min_size=GRAPH_NONCE_BYTES, max_size=GRAPH_NONCE_BYTES)


@given(shapes, st.data(), contributions)
def test_holders_are_the_first_k_distinct_draws_never_oneself(
    drawn: tuple[int, int, int], data: st.DataObject, contribution: bytes
) -> None:
    n, k, m = drawn
    slot = data.draw(st.integers(0, n - 1))
    holders = NeighbourSelection(LABEL, shape(n, k, m)).holders(slot, contribution)
    assert list(holders) == by_definition(LABEL, n, k, slot, contribution)
    assert len(set(holders)) == k
    assert set(holders) <= set(range(n)) - {slot}


@given(shapes, st.integers(0, 2**32))
def test_partners_are_mutual_and_those_that_brute_force_finds(
    drawn: tuple[int, int, int], seed: int
) -> None:
    n, k, m = drawn
    picking, chance = NeighbourSelection(LABEL, shape(n, k, m)), Random(seed)
    here = {slot: c for slot, c in said(n, seed).items() if chance.random() < 0.8}
    picked = {
        slot: set(by_definition(LABEL, n, m, slot, contribution))
        for slot, contribution in here.items()
    }
    for slot in here:
        others = {o for o in here if o in picked[slot] or slot in picked[o]} - {slot}
        assert picking.neighbours(slot, here) == others


@pytest.mark.parametrize(("n", "k", "m"), [(5_000, 60, 60), (5_000, 60, 12), (2**13 + 1, 30, 30)])
def test_partners_of_the_first_the_last_and_one_between_are_found_among_thousands(
    n: int, k: int, m: int
) -> None:
    picking, here = NeighbourSelection(LABEL, shape(n, k, m)), said(n)
    picked = {slot: set(picking.holders(slot, here[slot])[:m]) for slot in here}
    for slot in (0, 1, n // 2, n - 2, n - 1):
        others = {o for o in here if o in picked[slot] or slot in picked[o]}
        assert picking.neighbours(slot, here) == others


def test_the_first_partners_do_not_depend_on_how_many_hold() -> None:
    here = said(40)
    few, many = NeighbourSelection(LABEL, shape(40, 6)), NeighbourSelection(LABEL, shape(40, 20))
    for slot, contribution in here.items():
        assert many.holders(slot, contribution)[:6] == few.holders(slot, contribution)


def test_what_others_contribute_changes_nobodys_picks() -> None:
    picking, here = NeighbourSelection(LABEL, shape(30, 6)), said(30)
    before = {slot: picking.holders(slot, here[slot]) for slot in here}
    for other in (1, 2, 3):
        there = {**here, other: b"\xff" * GRAPH_NONCE_BYTES}
        moved = {slot for slot in there if picking.holders(slot, there[slot]) != before[slot]}
        assert moved == {other}
        for slot in set(here) - {other}:
            assert picking.neighbours(slot, there) - {other} == picking.neighbours(slot, here) - {
                other
            }


@pytest.mark.parametrize("changed", ["label", "slot", "first half", "second half"])
def test_another_label_slot_or_contribution_gives_other_picks(changed: str) -> None:
    contribution = bytes(GRAPH_NONCE_BYTES)
    one = NeighbourSelection(LABEL, shape(1_000, 10)).holders(500, contribution)
    label = b"M" * 32 if changed == "label" else LABEL
    slot = 501 if changed == "slot" else 500
    halves = {"first half": b"\1" + bytes(31), "second half": bytes(16) + b"\1" * 16}
    contribution = halves.get(changed, contribution)
    other = NeighbourSelection(label, shape(1_000, 10)).holders(slot, contribution)
    assert len(set(one) & set(other)) < 3  # odds of 3 or more in common: 120 / 10^6, fixed


@pytest.mark.parametrize("slot", [0, 7, 19])
def test_each_other_is_picked_as_often_in_each_place(slot: int) -> None:
    # 4,000 contributions of one of 20: each of the 19 others is expected 4,000 / 19 times as
    # first, as second, ... as sixth pick. Chi-squared with 18 degrees of freedom: a sound one
    # exceeds 59 with odds of 3e-6 in each of the 18 tables. The seed is fixed.
    picking, rng = NeighbourSelection(LABEL, shape(20, 6)), Random(slot)
    drawn = [picking.holders(slot, rng.randbytes(GRAPH_NONCE_BYTES)) for _ in range(4_000)]
    for place in range(6):
        counts = Counter(holders[place] for holders in drawn)
        assert counts[slot] == 0
        expected = 4_000 / 19
        others = set(range(20)) - {slot}
        assert sum((counts[other] - expected) ** 2 / expected for other in others) < 59


def test_each_pair_of_holders_is_as_likely() -> None:
    # 6,600 contributions of one of 12, two picks: 55 unordered pairs, 120 each. Chi-squared
    # with 54 degrees of freedom exceeds 115 with odds of 3e-6. The seed is fixed.
    picking, rng = NeighbourSelection(LABEL, shape(12, 2)), Random(2)
    drawn = [frozenset(picking.holders(4, rng.randbytes(32))) for _ in range(6_600)]
    counts = Counter(drawn)
    assert len(counts) == 55
    assert sum((count - 120) ** 2 / 120 for count in counts.values()) < 115


def test_picks_of_two_participants_are_independent() -> None:
    # Whether 3 picked 5 and whether 4 picked 5, over 4,000 pairs of contributions: a table of
    # four, chi-squared with one degree of freedom, exceeds 24 with odds of 1e-6.
    picking, rng = NeighbourSelection(LABEL, shape(12, 4)), Random(3)
    table = Counter(
        tuple(5 in picking.holders(slot, rng.randbytes(32)) for slot in (3, 4))
        for _ in range(4_000)
    )
    p = 4 / 11
    for one in (True, False):
        for other in (True, False):
            expected = 4_000 * (p if one else 1 - p) * (p if other else 1 - p)
            assert (table[one, other] - expected) ** 2 / expected < 24


@given(st.integers(2, 40), st.data())
def test_in_a_complete_graph_everybody_holds_for_everybody(n: int, data: st.DataObject) -> None:
    slot = data.draw(st.integers(0, n - 1))
    here = data.draw(st.sets(st.integers(0, n - 1)).map(lambda slots: slots | {slot}))
    picking = NeighbourSelection(LABEL, shape(n, n - 1))
    holders = picking.holders(slot, b"whatever is said")
    assert holders == tuple(other for other in range(n) if other != slot)
    assert picking.neighbours(slot, dict.fromkeys(here, b"")) == here - {slot}


def test_who_is_alone_has_no_partners() -> None:
    assert (
        NeighbourSelection(LABEL, shape(10, 4)).neighbours(3, {3: bytes(GRAPH_NONCE_BYTES)})
        == frozenset()
    )
