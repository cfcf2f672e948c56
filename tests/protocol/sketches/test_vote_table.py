"""Tables of votes are read whole except with the stated probability, and never read wrong."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from protocol.numerics.array_types import Integers
from protocol.sketches.vote_table import (
    MAX_BOUND,
    MAX_KEYS,
    SUBTABLES,
    VoteTable,
    VoteTableShape,
    failure_probability_bound,
    log_no_singleton_probability,
    max_votes,
    min_width,
)
from secagg.oneshot.moduli import PAIRWISE, Moduli

SEED = bytes(range(32))


def table(
    bound: int, votes: int, failure_probability: float = 1e-9, seed: bytes = SEED
) -> VoteTable:
    shape = VoteTableShape.fitting(bound, votes, failure_probability)
    assert shape is not None
    return VoteTable(shape, seed)


def drawn(rng: np.random.Generator, count: int, bound: int) -> Integers:
    return np.unique(rng.integers(0, bound, count))


def is_read(votes_table: VoteTable, numbers: Integers, votes: Integers) -> bool:
    decoded, decoded_votes = votes_table.decode(votes_table.insert(numbers, votes))
    return decoded.tolist() == numbers.tolist() and decoded_votes.tolist() == votes.tolist()


@pytest.mark.parametrize("moduli", [PAIRWISE, Moduli(13)])
@given(held=st.dictionaries(st.integers(0, 10**9 - 1), st.integers(1, 5), max_size=20))
def test_what_was_inserted_is_read(moduli: Moduli, held: dict[int, int]) -> None:
    """Fails with probability 1e-9 per example."""
    numbers = np.array(sorted(held), np.int64)
    votes = np.array([held[number] for number in numbers.tolist()], np.int64)
    votes_table = replace(table(10**9, 100), moduli=moduli)
    assert votes_table.cell.parts == (1 if moduli is PAIRWISE else 4)
    vector = votes_table.insert(numbers, votes)
    votes_table.ring.check(vector)
    decoded, decoded_votes = votes_table.decode(vector)
    assert dict(zip(decoded.tolist(), decoded_votes.tolist(), strict=True)) == held
    assert votes_table.fault(vector, int(votes.sum())) is None


def test_tables_add_up() -> None:
    votes_table, rng = table(10**6, 50), np.random.default_rng(1)
    numbers = drawn(rng, 15, 10**6)
    votes = rng.integers(1, 4, len(numbers))
    total = votes_table.ring.zero()
    for number, vote in zip(numbers, votes, strict=True):
        for _ in range(vote):
            votes_table.ring.add(total, votes_table.insert(np.array([number]), np.array([1])))
    assert votes_table.ring.pack(total) == votes_table.ring.pack(votes_table.insert(numbers, votes))


@pytest.mark.parametrize(("votes", "bound"), [(100, 30_000), (1500, 10**12)])
def test_full_tables_are_read(votes: int, bound: int) -> None:
    rng = np.random.default_rng(votes)
    for _ in range(20):
        votes_table = table(bound, votes, seed=rng.bytes(32))
        numbers = drawn(rng, votes, bound)
        assert is_read(votes_table, numbers, np.ones(len(numbers), np.int64))


def test_a_key_takes_few_bits() -> None:
    votes_table = table(10**6, 1600, 1e-10)
    assert 8 * votes_table.ring.nbytes / 1600 < 185
    wide = table(MAX_BOUND, 1600, 1e-10)
    assert wide.ring.nbytes < 1.5 * votes_table.ring.nbytes


# The probability of failure.


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_the_probability_that_no_ball_is_alone_is_that_of_enumeration(width: int) -> None:
    for balls in range(7):
        throws = product(range(width), repeat=balls)
        expected = sum(all(t.count(b) != 1 for b in range(width)) for t in throws) / width**balls
        computed = math.exp(log_no_singleton_probability(6, width)[balls])
        assert computed == pytest.approx(expected, abs=1e-12)


def none_alone(balls: int, width: int) -> float:
    """Return the probability by filling one bin after the other, in integers."""
    ways = [1] + [0] * balls
    for _ in range(width):
        ways = [
            sum(math.comb(s, k) * ways[s - k] for k in range(s + 1) if k != 1)
            for s in range(balls + 1)
        ]
    return ways[balls] / width**balls


@pytest.mark.parametrize(("balls", "width"), [(40, 10), (64, 30), (65, 30), (90, 25), (120, 60)])
def test_the_probability_for_many_balls_is_exact_or_bounded_from_above(
    balls: int, width: int
) -> None:
    exact, bound = (
        none_alone(balls, width),
        math.exp(log_no_singleton_probability(balls, width)[balls]),
    )
    if balls <= 64:
        assert bound == pytest.approx(exact, rel=1e-9)
    else:
        assert exact <= bound < 60 * exact


def failures(keys: int, width: int, runs: int) -> int:
    rng, failed = np.random.default_rng([keys, width]), 0
    shape = VoteTableShape(bound=10**6, votes=2 * keys, width=width, evidence=2**40)
    for _ in range(runs):
        numbers = drawn(rng, keys, 10**6)
        failed += not is_read(
            VoteTable(shape, rng.bytes(32)), numbers, np.ones(len(numbers), np.int64)
        )
    return failed


def test_twins_are_as_frequent_as_stated() -> None:
    """Two keys in all the same eight cells of two each: once in 256 tables.

    With another seed none of 1,000 fails with probability 2%, and too many with 1e-4.
    """
    assert failure_probability_bound(2, 2) == pytest.approx(2.0**-8, rel=1e-9)
    assert 0 < failures(2, 2, 1000) <= 1000 / 256 + 4.5 * (1000 / 256) ** 0.5


@pytest.mark.parametrize(
    ("keys", "width", "runs"), [(3, 2, 300), (8, 4, 100), (30, 12, 70), (60, 20, 70)]
)
def test_tables_fail_no_more_often_than_stated(keys: int, width: int, runs: int) -> None:
    """The bound counts each set of keys that may be left, so it is above, and far if near 1."""
    bound = failure_probability_bound(keys, width)
    failed = failures(keys, width, runs)
    assert failed <= runs * bound + 4.5 * (runs * bound) ** 0.5


def test_a_width_keeps_its_failure_probability_and_no_smaller_one_does() -> None:
    for keys in (1, 2, 30, 1000, 20_000):
        width = min_width(keys, 1e-10)
        assert failure_probability_bound(keys, width) <= 1e-10
        assert width <= 8 or failure_probability_bound(keys, int(width * 0.995) - 1) > 1e-10


@pytest.mark.parametrize(("devices", "p"), [(10, 0.3), (1000, 0.01), (10**6, 0.146)])
@pytest.mark.parametrize("tail", [0.1, 1e-6, 1e-12])
def test_most_votes_are_a_quantile(devices: int, p: float, tail: float) -> None:
    most = max_votes(devices, p, tail)
    assert binom.sf(most, devices, p) <= tail
    assert most == 1 or binom.sf(most - 1, devices, p) > tail


# What is not honest, or goes wrong.


def test_false_keys_are_taken_back() -> None:
    """Many cells of several keys pass for one if evidence is low, and all is read."""
    rng = np.random.default_rng(3)
    shape = VoteTableShape(bound=50, votes=200, width=40, evidence=1)
    false = 0
    for _ in range(40):
        votes_table = VoteTable(shape, rng.bytes(32))
        numbers = drawn(rng, 60, 50)
        votes = rng.integers(1, 6, len(numbers))
        assert is_read(votes_table, numbers, votes)
        vector = votes_table.insert(numbers, votes)
        counts = vector[0].astype(np.int64)
        alone, _ = votes_table.pure_keys(
            counts, vector[1].astype(np.int64).reshape(len(counts), -1), np.flatnonzero(counts)
        )
        false += len(set(alone.tolist()) - set(numbers.tolist()))
    assert false > 0


@pytest.mark.parametrize("many", [2, 6, 60])
def test_an_overfull_table_is_read_in_part_or_not_at_all_but_not_wrong(many: int) -> None:
    votes_table, rng = table(10**9, 300), np.random.default_rng(many)
    numbers = drawn(rng, 300 * many, 10**9)
    decoded, votes = votes_table.decode(
        votes_table.insert(numbers, np.ones(len(numbers), np.int64))
    )
    assert set(decoded.tolist()) <= set(numbers.tolist())
    assert (votes == 1).all()


def test_garbage_is_a_fault_and_takes_bounded_work() -> None:
    votes_table, rng = table(10**6, 200), np.random.default_rng(2)
    lanes = votes_table.ring.lanes
    for _ in range(5):
        garbage = tuple(rng.integers(0, lane.q, lane.length).astype(lane.dtype) for lane in lanes)
        votes_table.decode(garbage)
        assert votes_table.fault(garbage, 10**9) == "the sub-tables' votes add up differently"


def test_keys_that_are_in_one_cell_only_take_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is taken from eight cells, given back to seven, and so on, so keys are counted."""
    votes_table, key_counts = table(10**6, 1000), list[int]()
    alone = VoteTable.pure_keys

    def counted(self: VoteTable, *cells: Integers) -> tuple[Integers, Integers]:
        keys = alone(self, *cells)
        key_counts.append(len(keys[0]))
        return keys

    monkeypatch.setattr(VoteTable, "pure_keys", counted)
    counts, sums = votes_table.insert(np.arange(300), np.ones(300, np.int64))
    counts[votes_table.shape.width :] = 0
    sums.reshape(-1, votes_table.cell.chunks)[votes_table.shape.width :] = 0
    votes_table.decode((counts, sums))
    assert sum(key_counts) <= 1000 + 64 + 300
    assert votes_table.fault((counts, sums), 300) is not None


def test_laws_are_kept_by_honest_tables_only() -> None:
    votes_table = table(10**6, 20)
    vector = votes_table.insert(np.array([7, 9]), np.array([2, 1]))
    assert votes_table.fault(vector, 3) is None
    assert votes_table.fault(vector, 2) == "there are more votes than devices have items"
    for lane in (0, 1):
        changed = tuple(array.copy() for array in vector)
        changed[lane][5] = (int(changed[lane][5]) + 1) % votes_table.ring.lanes[lane].q
        assert votes_table.fault(changed, 10) == "the sub-tables' votes add up differently"


@pytest.mark.parametrize(
    "fields",
    [{"bound": 1}, {"bound": MAX_BOUND + 1}, {"votes": 0}, {"width": 0}, {"evidence": 2**90}],
)
def test_shapes_out_of_range_are_refused(fields: dict[str, int]) -> None:
    whole = {"bound": 100, "votes": 10, "width": 9, "evidence": 2**30}
    assert VoteTableShape.model_validate(whole).ring(PAIRWISE).lanes[0].length == SUBTABLES * 9
    with pytest.raises(ValueError):
        VoteTableShape.model_validate(whole | fields)


def test_there_is_no_table_where_probability_or_numbers_are_out_of_reach() -> None:
    assert VoteTableShape.fitting(MAX_BOUND + 1, 10, 1e-9) is None
    assert VoteTableShape.fitting(100, 10, 1e-40) is None
    assert VoteTableShape.fitting(10**9, MAX_KEYS + 1, 1e-9) is None
