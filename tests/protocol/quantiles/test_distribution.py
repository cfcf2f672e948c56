"""Ranks, quantiles and masses lie within their intervals with the stated probability."""

import random

import numpy as np
import pytest

from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanisms.registry import SUM_MECHANISMS, mechanism_of, parse_question
from protocol.numerics.array_types import Floats
from protocol.quantiles.cdf import EmptyTreeError, Estimator, leaf_cdf, tree_cdf
from protocol.quantiles.complete_tree import CompleteTree
from protocol.quantiles.distribution import (
    ConsistentErrors,
    Distribution,
    PrefixShares,
    PrunedErrors,
)
from protocol.quantiles.prefix_tree import PrefixTree
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes_of
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE, StudyState
from tests.protocol.chance import seeded
from tests.support.rank_errors import (
    VALUE_KINDS,
    leaf_counts,
    noisy_tree,
    rank_errors,
    sampled_trie,
)

BETA = 0.1
GRID = np.linspace(0, 1, 34)
kinds = pytest.mark.parametrize("kind", VALUE_KINDS)


def trie(values: Floats, p: float, theta: int, estimator: Estimator, seed: int) -> Distribution:
    """Return the distribution by a trie of 5 digits to the base 4."""
    rng, n = np.random.default_rng(seed), len(values)
    tree = sampled_trie(leaf_counts(values, 4**5), 4, 5, p, theta, rng)
    coins = (1 - p) / (p * n) / (4 if estimator == "ratio" else 1)
    errors = PrunedErrors(15 * theta / (p * n), coins, 0.0)
    prefixes = PrefixShares(tree, theta / (p * n), theta * (1 - p) / (p * n) ** 2)
    knots = tree_cdf(tree, 4, None, estimator)
    return Distribution(NumericInterval(low=0, high=1, length=5), knots, errors, prefixes, BETA)


def hierarchy(values: Floats, variance: float, seed: int) -> Distribution:
    """Return the distribution by a histogram of 5 digits to the base 4."""
    rng = np.random.default_rng(seed)
    leaves = noisy_tree(leaf_counts(values, 4**5), 4, 5, variance, rng).consistent().levels[-1]
    errors = ConsistentErrors(4, 5, variance / float(leaves.sum()) ** 2, 0.0)
    return Distribution(
        NumericInterval(low=0, high=1, length=5), leaf_cdf(leaves, 5), errors, beta=BETA
    )


def made(name: str, values: Floats, seed: int) -> Distribution:
    """Return a distribution in which the one error is felt, or the other."""
    if name == "histogram":
        return hierarchy(values, 400.0, seed)
    estimator: Estimator = "plain" if "plain" in name else "ratio"
    theta = 12 if "pruned" in name else 1
    return trie(values, 0.1, theta, estimator, seed)


@pytest.mark.parametrize("name", ["ratio, pruned", "ratio", "plain, pruned", "plain", "histogram"])
@kinds
def test_ranks_masses_and_quantiles_are_within_their_intervals(name: str, kind: object) -> None:
    """Check that 30 simulations at beta 0.1 miss at most 9 of a query: p below 1e-3 of more.

    The sub-Gaussian bounds are wider than normal ones, so that fewer are missed by far.
    """
    assert callable(kind)
    misses = np.zeros(len(GRID)), np.zeros(len(GRID) - 5), np.zeros(9), np.zeros(1)
    for seed in range(30):
        values = np.sort(kind(np.random.default_rng(1000 + seed), 20_000))
        measured = made(name, values, seed)
        truth = np.searchsorted(values, GRID, side="left") / len(values)
        rank = measured.rank(GRID)
        misses[0][(truth < rank.low - 1e-12) | (truth > rank.high + 1e-12)] += 1
        mass = measured.mass(GRID[:-5], GRID[5:])
        inside = truth[5:] - truth[:-5]
        misses[1][(inside < mass.low - 1e-12) | (inside > mass.high + 1e-12)] += 1
        parts = np.arange(1, 10) / 10
        quantile = measured.quantile(parts)
        exact = values[(parts * len(values)).astype(int)]
        misses[2][(exact < quantile.low) | (exact > quantile.high)] += 1
        mean = measured.mean()
        misses[3][0] += not mean.low <= values.mean() <= mean.high
        assert mean.high - mean.low < 0.5  # of numbers from 0 to 1
    assert max(float(missed.max()) for missed in misses) <= 9


@pytest.mark.parametrize("name", ["ratio, pruned", "plain, pruned", "histogram"])
@kinds
def test_quantiles_of_few_devices_agree_with_the_ranks_of_their_values(
    name: str, kind: object
) -> None:
    """The estimate may end before values that devices hold: noise or pruning hid them."""
    assert callable(kind)
    parts, misses = np.array([0.01, 0.05, 0.5, 0.95, 0.99]), np.zeros(5)
    for seed in range(30):
        values = np.sort(kind(np.random.default_rng(seed), 400))
        try:
            measured = made(name, values, seed)
        except EmptyTreeError:
            continue
        quantile, leaves = measured.quantile(parts), np.arange(4**5 + 1) / 4**5
        exact = values[np.ceil(parts * len(values)).astype(int) - 1]
        misses[(exact < quantile.low) | (exact > quantile.high)] += 1
        ranks = measured.rank(leaves)
        for part, low, high in zip(parts, quantile.low, quantile.high, strict=True):
            may_have = leaves[(ranks.low <= part) & (part <= ranks.high)]
            assert low - 1e-9 <= may_have.min(initial=1)
            assert may_have.max(initial=0) <= high + 1e-9
    assert misses.max() <= 9  # of 30 at beta 0.1: p below 1e-3 of more


@kinds
def test_a_million_devices_have_the_accuracy_that_is_aimed_at(kind: object) -> None:
    assert callable(kind)
    rng = np.random.default_rng(3)
    values = kind(rng, 10**6)
    leaves = leaf_counts(values, 4**10)
    tree = sampled_trie(leaves, 4, 10, 0.145593, 12, rng)
    ratio, plain = (tree_cdf(tree, 4, None, estimator) for estimator in ("ratio", "plain"))
    errors = rank_errors(values, leaves, ratio.rank)
    assert errors.max() <= 0.003
    assert errors.mean() <= 0.001
    assert rank_errors(values, leaves, plain.rank).max() <= 10 * 3 * 12 / 145_593 + 0.0043
    leaves = leaf_counts(values, 16**4)
    noisy = noisy_tree(leaves, 16, 4, 8.39**2, rng).consistent()  # epsilon 1, delta 1e-6
    assert rank_errors(values, leaves, leaf_cdf(noisy.levels[-1], 4).rank).max() <= 2e-4


def test_a_rank_and_its_quantile_undo_one_another() -> None:
    values = np.random.default_rng(1).beta(2, 5, 50_000)
    for name in ("ratio", "plain", "histogram"):
        measured = made(name, values, 1)
        parts = np.linspace(0.01, 0.9, 50)
        again = measured.rank(measured.quantile(parts).values).values
        assert again == pytest.approx(parts, abs=1e-9 if name != "plain" else 0.01)


def test_by_ratio_all_mass_is_handed_down() -> None:
    tree = nodes({(0,): 0.5, (1,): 0.3, (0, 0): 0.2, (0, 3): 0.2, (1, 2): 0.01})
    ratio = tree_cdf(tree, 4, None, "ratio")
    points = np.array([0, 1 / 16, 3 / 16, 1 / 4, 3 / 8, 7 / 16, 1 / 2, 1])
    assert ratio.rank(points) == pytest.approx([0, 0.3125, 0.3125, 0.625, 0.625, 1.0, 1.0, 1.0])
    assert ratio.quantile(np.array([0.0, 0.3125, 0.625, 1.0])) == pytest.approx(
        [0, 1 / 16, 1 / 4, 7 / 16]
    )


def test_plainly_what_was_pruned_has_no_mass_until_its_node_ends() -> None:
    tree = nodes({(0,): 0.5, (1,): 0.3, (0, 0): 0.2, (0, 3): 0.2})
    plain = tree_cdf(tree, 4, None, "plain")
    points = np.array([1 / 16, 3 / 16, 0.2499, 0.25, 0.3, 0.4999, 0.5, 1])
    assert plain.rank(points) == pytest.approx([0.2, 0.2, 0.4, 0.5, 0.5, 0.5, 0.8, 0.8], abs=1e-3)


def test_a_node_whose_parent_was_not_shown_has_no_mass() -> None:
    tree = nodes({(0,): 0.5, (0, 1): 0.5, (3, 1): 0.4})
    assert tree_cdf(tree, 4, None, "ratio").rank(np.array([0.5])) == pytest.approx([1])


def nodes(shares: dict[tuple[int, ...], float]) -> PrefixTree:
    rows = np.zeros((len(shares), max(map(len, shares))), np.uint8)
    for row, prefix in zip(rows, shares, strict=True):
        row[: len(prefix)] = prefix
    depths = np.array([len(prefix) for prefix in shares])
    return PrefixTree(rows, depths, np.array(list(shares.values())), np.zeros(len(shares)))


def study(mechanism: str, domain: object, items: list[str], **own: object) -> Distribution:
    asked = {"mechanism": mechanism, "threshold": 10, "domain": domain, "message_bytes": 18_364}
    asked |= {"contribution": 1, "epsilon": 1, "delta": 1e-3} | own
    terms = Terms(cohort_size=len(items), minimum=10)
    if "vector" in asked:
        asked["message_bytes"] = message_bytes_of(terms, asked.pop("vector"))  # type: ignore[arg-type]
    question = parse_question(asked)
    devices = [{item: 1} for item in items]
    rounds = getattr(question, "levels", 1)
    outcomes = run_study(
        SUM_MECHANISMS[mechanism],
        question,
        terms,
        [[devices]] * rounds,
        random.Random(2),
        planned=rounds,
    )
    *_, last = outcomes
    return mechanism_of(last.plan).distribution(
        last.plan, last.study_state, beta=1e-4
    )  # of a few queries none may miss


WORDS = ["apple"] * 300 + ["apply"] * 200 + ["bear"] * 400 + ["beer"] * 100


@pytest.mark.parametrize("own", [{"mode": "noise"}, {}, {"mode": "both", "stride": 2}])
@pytest.mark.parametrize(
    "domain", [Alphabet(characters="-aeblpryx", length=5, pad="-"), Utf8(max_bytes=5)]
)
def test_prefixes_of_strings_have_frequencies(
    domain: Alphabet | Utf8, own: dict[str, object]
) -> None:
    if domain.kind == "utf8" and "stride" in own:
        own = own | {"message_bytes": 811_664}
    measured = study("triehh", domain, WORDS, **own)
    frequencies = measured.frequency(["", "app", "appl", "apple", "be", "bear", "x", "pl", "ryx"])
    truth = np.array([1, 0.5, 0.5, 0.3, 0.5, 0.4, 0, 0, 0])
    assert frequencies.values == pytest.approx(truth, abs=0.15)  # four deviations of a sample
    assert (frequencies.low <= truth).all()
    assert (truth <= frequencies.high).all()
    assert float(measured.frequency("b").values) == frequencies.values[4] or "stride" not in own
    with pytest.raises(ValueError, match="begins with 'q"):
        measured.frequency("q\0")


def test_strings_have_no_ranks() -> None:
    measured = study("triehh", Alphabet(characters="-aeblpryx", length=5, pad="-"), WORDS)
    queries = (
        lambda: measured.rank(["apple"]),
        lambda: measured.quantile(0.5),
        lambda: measured.mass("apple", "bear"),
        lambda: measured.cdf(3),
    )
    for query in queries:
        with pytest.raises(ValueError, match="values of kind alphabet have no ranks"):
            query()


def test_a_histogram_of_strings_has_frequencies() -> None:
    domain = Alphabet(characters="abc", length=4)
    words = ["abca"] * 300 + ["bbbb"] * 700
    measured = study("hierarchical-histogram", domain, words, mode="noise")
    frequencies = measured.frequency(["a", "abca", "c", ""])
    assert frequencies.values == pytest.approx([0.3, 0.3, 0, 1], abs=0.03)


@pytest.mark.parametrize("mode", ["noise", "sample-threshold", "both"])
def test_numbers_are_asked_of_a_study(mode: str) -> None:
    interval = NumericInterval(low=-10, high=30, alpha=4, length=4)
    values = np.random.default_rng(4).normal(10, 4, 1500).clip(-10, 30)
    items = [interval.canonical(repr(value)) or "" for value in values.tolist()]
    for mechanism in ("triehh", "hierarchical-histogram"):
        measured = study(mechanism, interval, items, mode=mode)
        points, ranks = measured.cdf(41)
        truth = (values[:, None] < points).mean(axis=0)
        assert points[[0, 40]].tolist() == [-10, 30]
        assert (ranks.low <= truth).all()
        assert (truth <= ranks.high).all()
        assert float(measured.quantile(0.5).values) == pytest.approx(10, abs=1.5)
        with pytest.raises(ValueError, match="ask for a range"):
            measured.frequency("1")


def test_what_had_no_place_in_the_frontier_is_within_the_interval() -> None:
    """The words hold two of sixteen letters at a time: nobody was asked what follows the others."""
    letters = "abcdefghijklmnop"
    words = [letter + "ab" for letter in letters for _ in range(300)]
    strings = study("triehh", Alphabet(characters=letters, length=3), words, vector=60, epsilon=8)
    frequencies = strings.frequency([letter + "a" for letter in letters])
    assert (frequencies.low <= 1 / 16).all()
    assert (frequencies.high >= 1 / 16).all()
    interval = NumericInterval(low=0, high=1, alpha=16, length=3)
    items = [interval.name(repr(cell / 16 + 1e-4)) for cell in range(16) for _ in range(1_500)]
    numbers = study("triehh", interval, items, vector=60, epsilon=8)
    points = np.arange(16) / 16 + 0.002  # all values of the sixteenth are below
    ranks = numbers.rank(points)
    truth = (np.arange(16) + 1) / 16
    assert (ranks.low <= truth).all()
    assert (truth <= ranks.high).all()


def test_what_each_of_many_rounds_hides_is_within_the_interval() -> None:
    """Fifteen cells of 0.6 theta in each of eight rounds: an eighth of all that is never shown."""
    interval = NumericInterval(low=0, high=1, alpha=16, length=1)
    mechanism, devices, rounds = SUM_MECHANISMS["hierarchical-histogram"], 4000, 8
    asked = {
        "mechanism": mechanism.name,
        "threshold": 1,
        "message_bytes": 13_664,
        "domain": interval,
    }
    question = parse_question(asked | {"epsilon": 1, "delta": 1e-6, "mode": "sample-threshold"})
    terms = Terms(cohort_size=devices, minimum=devices // 2)
    plan = mechanism.first_plan(question, terms, "rare", rounds, random.Random(1))
    rare = int(0.6 * plan.release.threshold / plan.release.probability)
    values = np.append(np.repeat(np.arange(15), rare), np.full(devices - 15 * rare, 15))
    held = [{interval.name(repr((value + 0.5) / 16)): 1} for value in values.tolist()]
    state, chance = EMPTY_STATE, seeded(5)
    for _ in range(rounds):
        total = mechanism.encode_sum(plan, held, chance)
        state = mechanism.decode(plan, total, devices, state).state
    measured, truth = mechanism_of(plan).distribution(plan, state), 15 * rare / devices
    for answer in (measured.rank(15 / 16), measured.mass(0, 15 / 16)):
        assert truth > 0.1 > float(answer.values)
        assert float(answer.low) <= truth <= float(answer.high)


@pytest.mark.parametrize("q", [-0.01, 1.01, float("nan"), [0.5, float("inf")]])
def test_a_q_that_is_not_a_rank_is_refused(q: object) -> None:
    with pytest.raises(ValueError, match=r"^q must be from 0 to 1, not "):
        made("ratio", np.random.default_rng(1).random(5000), 1).quantile(q)  # type: ignore[arg-type]


def test_what_is_outside_the_interval_is_refused() -> None:
    measured = made("ratio", np.random.default_rng(1).random(5000), 1)
    with pytest.raises(ValueError, match=r"^x must be from 0 to 1, not nan"):
        measured.rank(float("nan"))
    with pytest.raises(ValueError, match=r"^high must be from 0 to 1, not 1\.5"):
        measured.mass(0.2, 1.5)
    with pytest.raises(ValueError, match="low must not be above high"):
        measured.mass(0.2, 0.1)
    with pytest.raises(ValueError, match="points must be from 2"):
        measured.cdf(1)
    with pytest.raises(ValueError, match="beta must be above 0"):
        Distribution(measured.domain, measured.cumulative, measured.errors, beta=1.0)


def test_an_empty_tree_has_no_ranks() -> None:
    with pytest.raises(EmptyTreeError, match="no prefix was shown"):
        tree_cdf(PrefixTree.from_state(StudyState()), 4, None, "ratio")
    with pytest.raises(EmptyTreeError, match="add up to nothing"):
        leaf_cdf(np.zeros(4), 1)
    mechanism = SUM_MECHANISMS["hierarchical-histogram"]
    asked = {"mechanism": mechanism.name, "threshold": 1, "message_bytes": 2764, "mode": "noise"}
    question = parse_question(
        asked | {"epsilon": 1, "delta": 1e-3, "domain": NumericInterval(low=0, high=1, length=2)}
    )
    terms = Terms(cohort_size=50, minimum=10)
    plan = mechanism.first_plan(question, terms, "empty", 1, random.Random(1))
    with pytest.raises(EmptyTreeError, match="no round has been counted"):
        mechanism_of(plan).distribution(plan, EMPTY_STATE)


def test_a_mechanism_without_prefixes_has_no_distribution() -> None:
    asked = {
        "mechanism": "adaptive-iblt",
        "threshold": 1,
        "contribution": 1,
        "message_bytes": 13_664,
    }
    question = parse_question(asked | {"domain": Utf8(max_bytes=3)})
    terms = Terms(cohort_size=50, minimum=10)
    plan = SUM_MECHANISMS["adaptive-iblt"].first_plan(question, terms, "none", 1, random.Random(1))
    with pytest.raises(ValueError, match="adaptive-iblt counts no prefixes"):
        mechanism_of(plan).distribution(plan, EMPTY_STATE)


def test_the_votes_of_a_device_weigh_no_more_than_their_number() -> None:
    """Coins in addition to noise add (1 - p) L / m to the variance of a rank at most."""
    for base, depth in [(2, 5), (3, 3), (4, 3), (16, 2)]:
        leaves = base**depth
        units = np.eye(sum(base**level for level in range(1, depth + 1)))
        solved = np.array(
            [CompleteTree.from_counts(base, y).consistent().levels[-1] for y in units]
        )
        for rank in range(leaves + 1):
            weights = solved[:, :rank].sum(axis=1) - rank / leaves * solved.sum(axis=1)
            squares = CompleteTree.from_counts(base, weights**2).levels
            paths = sum(np.repeat(level, leaves // len(level)) for level in squares)
            assert np.max(paths) <= depth
