"""Cohorts that differ more than honest ones are found, and do not count for the item."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from protocol.mechanisms import cohort_comparison
from protocol.mechanisms.cohort_comparison import (
    MAX_P_VALUE,
    compare_counts,
    compare_tables,
    max_unflagged_tokens,
    merge_tables,
)
from protocol.numerics.array_types import Integers
from protocol.sketches.iblt.table import DecodedTable


def split(totals: Integers, sizes: list[int], seed: int) -> Integers:
    """Return the tokens of honest devices in each cohort, a row for each."""
    rng, shares = np.random.default_rng(seed), np.array(sizes) / sum(sizes)
    return np.stack([rng.multinomial(total, shares) for total in totals.tolist()], axis=1)


def in_cohorts(*tokens: int) -> Integers:
    return np.array(tokens).reshape(-1, 1)


@pytest.mark.parametrize("sizes", [[100] * 10, [50] * 40, [1000, 600, 900], [20, 400, 30, 80]])
def test_honest_cohorts_are_counted_whole(sizes: list[int]) -> None:
    """3,000 items: one is flagged with probability 0.003 at most."""
    totals = np.r_[np.arange(2_000), np.full(1_000, 40)]
    compared = compare_counts(split(totals, sizes, 1), sizes, 1)
    assert compared.flags == [None] * 3_000
    assert (compared.counts == totals).all()
    assert (compared.shares == 1).all()
    assert not compared.missing_variances.any()


def test_rates_of_honest_cohorts_may_differ_by_a_factor_of_two() -> None:
    counts = np.array([[400, 40], [200, 20], [200, 20]])
    assert compare_counts(counts, [100] * 3, 1).flags == [None, None]
    assert compare_counts(3 * counts + [[600], [0], [0]], [100] * 3, 1).flags[0] is not None


def test_an_item_in_one_cohort_only_has_its_exact_probability() -> None:
    """Ten cohorts, one of which may have twice the rate: its token has a probability of 2 / 11."""
    compared = compare_counts(in_cohorts(12, *[0] * 9), [100] * 10, 1)
    assert compared.p_values.tolist() == [pytest.approx(20 * (2 / 11) ** 12)]
    assert compared.counts.tolist() == [0]


def test_an_honest_item_that_almost_only_one_cohort_holds_is_estimated_near_zero() -> None:
    assert compare_counts(in_cohorts(90, *[1] * 9), [100] * 10, 1).counts.tolist() == [10]


@pytest.mark.parametrize(("total", "cohort_count"), [(30, 10), (200, 10), (1_000, 4), (60, 30)])
def test_a_flag_is_as_rare_as_its_p_value(total: int, cohort_count: int) -> None:
    """Compare with the binomial distribution of the first cohort, at the largest honest rate."""
    q = 2 / (2 + cohort_count - 1)
    is_found = False
    for own in range(total + 1):
        rest = np.full(cohort_count - 1, (total - own) // (cohort_count - 1))
        rest[: (total - own) % (cohort_count - 1)] += 1
        (p,) = compare_counts(in_cohorts(own, *rest), [50] * cohort_count, 1).p_values
        if own > total * q and p < 1:
            tail = binom.sf(own - 1, total, q) * 2 * cohort_count
            assert tail * (1 - 1e-9) <= p <= MAX_P_VALUE
            is_found = True
    assert is_found


def test_devices_that_add_several_tokens_to_an_item_are_less_evidence() -> None:
    counts, sizes = in_cohorts(60, 0, 0, 0, 0), [100] * 5
    assert compare_counts(counts, sizes, 1).p_values[0] < 1e-20
    by_three = compare_counts(counts, sizes, 3).p_values[0]
    assert by_three == pytest.approx(10 * (1 / 3) ** 20)
    assert compare_counts(counts, sizes, 6).flags == [None]


@pytest.mark.parametrize(
    "lies",
    [[300], [-999], [300, 280, 250], [300, -999], [90_000, 300]],
    ids=["up", "down", "three", "both", "far"],
)
def test_liars_do_not_count_and_the_others_stand_for_them_without_bias(lies: list[int]) -> None:
    """2,000 rounds of 20 cohorts with 1,200 tokens; means hold to 4.5 standard errors (7e-6)."""
    sizes, totals = [50] * 20, np.full(2_000, 1_200)
    counts = split(totals, sizes, 2)
    counts[: len(lies)] = np.maximum(counts[: len(lies)] + np.array(lies)[:, np.newaxis], 0)
    compared = compare_counts(counts, sizes, 1)
    assert None not in compared.flags
    assert (compared.shares == 1 - len(lies) / 20).all()
    errors = compared.counts - 1_200
    assert abs(errors.mean()) < 4.5 * errors.std() / math.sqrt(2_000)
    assert errors.var() == pytest.approx(compared.missing_variances.mean(), rel=0.2)


def test_the_smallest_p_value_is_reported_and_not_that_of_the_last_cohort_left_out() -> None:
    counts, sizes = in_cohorts(300, 60, *[0] * 18), [50] * 20
    first = compare_counts(counts, sizes, 1)
    assert first.shares.tolist() == [0.9]
    assert first.p_values[0] < compare_counts(in_cohorts(60, *[0] * 19), sizes, 1).p_values[0]


@pytest.mark.parametrize(("cohort_count", "liars"), [(3, 1), (10, 1), (40, 3), (100, 10)])
def test_liars_stay_without_a_flag_up_to_the_tokens_computed(cohort_count: int, liars: int) -> None:
    most = max_unflagged_tokens(cohort_count, liars, 1)
    for each, is_flagged in ((math.floor(most / liars), False), (math.ceil(most / liars), True)):
        tokens = [each] * liars + [0] * (cohort_count - liars)
        compared = compare_counts(in_cohorts(*tokens), [20] * cohort_count, 1)
        assert (compared.flags != [None]) == is_flagged
        assert compared.counts.tolist() == [0 if is_flagged else sum(tokens)]


@pytest.mark.parametrize(("cohort_count", "liars"), [(2, 1), (10, 5), (60, 29)])
def test_where_liars_may_be_the_majority_nothing_is_left_out(cohort_count: int, liars: int) -> None:
    assert max_unflagged_tokens(cohort_count, liars, 1) == math.inf
    tokens = [9_000] * liars + [10] * (cohort_count - liars)
    compared = compare_counts(in_cohorts(*tokens), [20] * cohort_count, 1)
    assert compared.counts.tolist() == [sum(tokens)]


def test_items_in_many_batches_are_compared_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [50] * 20
    counts = split(np.arange(300), sizes, 3)
    counts[7, ::3] += 100
    at_once = compare_counts(counts, sizes, 1)
    monkeypatch.setattr(cohort_comparison, "_BATCH_COUNTS", 7 * len(sizes))
    by_batches = compare_counts(counts, sizes, 1)
    assert at_once.flags == by_batches.flags
    assert (at_once.counts == by_batches.counts).all()
    assert compare_counts(counts[:, :0], sizes, 1).flags == []


def test_cohorts_that_were_not_read_do_not_count_unless_they_are_half_of_all() -> None:
    counts = np.array([[70, 10], [10, 70], [10, 10], [10, 10], [10, 10]])
    is_read = np.array([[False, True], [True, False], [True, False], [True, False], [True, True]])
    compared = compare_counts(counts, [10] * 5, 1, is_read)
    assert compared.counts.tolist() == [50, 110]
    assert compared.shares.tolist() == [0.8, 1]
    assert is_read.sum() == 6


def table(values: dict[int, int]) -> DecodedTable:
    keys = np.array(list(values), np.uint64).reshape(-1, 1)
    return DecodedTable(keys, np.array(list(values.values()), np.int64), True, len(values), 0, 0.0)


def test_the_keys_of_tables_are_matched() -> None:
    parts = [table({5: 30, 2: 1}), table({2: 2, 9: 4}), table({9: 4, 2: 1}), table({2: 1})]
    whole = merge_tables(parts)
    assert dict(zip(whole.keys[:, 0].tolist(), whole.values.tolist(), strict=True)) == {
        2: 5,
        5: 30,
        9: 8,
    }
    shuffled = table({9: 8, 5: 30, 2: 5})
    compared = compare_tables(shuffled, parts, [10] * 4, 1)
    assert compared.counts.tolist() == [8, 0, 5]
    assert [flag is not None for flag in compared.flags] == [False, True, False]
    alone = compare_tables(shuffled, parts[:1], [40], 1)
    assert alone.counts.tolist() == [8, 30, 5]
    false_keys = [*parts, table({77: 3})]
    assert compare_tables(shuffled, false_keys, [10] * 5, 1).counts.tolist() == [8, 0, 5]
