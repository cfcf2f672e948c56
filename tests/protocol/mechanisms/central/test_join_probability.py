"""Devices that join a round by their own coins: the law of votes, and refusals."""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Alphabet
from protocol.mechanisms.central.hierarchical_histogram import HierarchicalHistogramQuestion
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.triehh import TrieHh
from protocol.mechanisms.registry import mechanism_of
from protocol.privacy.events import LedgerEntry, SampleThresholdEvent, SkellamNoiseEvent
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import Release
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words
from protocol.simulation.study import run_study
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import fit, no_words, only

TRIE = TrieHh()
TERMS = Terms(cohort_size=400, minimum=40)
LETTERS = Alphabet(characters="abcd", length=3)
P, V = 0.3, 0.45


def asked(**own: Any) -> TrieHhQuestion:
    common = {"threshold": 1, "contribution": 1, "domain": LETTERS, "message_bytes": 68_544}
    common |= {"epsilon": 8, "delta": 0.1, "theta": 4, "probability": P, "join_probability": V}
    return TrieHhQuestion.model_validate(common | own)


def first(**own: Any) -> TrieHhPlan:
    return TRIE.first_plan(asked(**own), TERMS, "study", 3, random.Random(1))


# The law.

DEVICES, RUNS = 3, 15_000


def by_coins(plan: TrieHhPlan, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return for each device whether it votes, by its own coins."""
    chance = seeded_words(rng)
    voted = [
        plan.flip_join_coin(chance) and bool(plan.vote_coins(chance, 1)[0]) for _ in range(DEVICES)
    ]
    return np.array(voted)


def by_the_server(_: TrieHhPlan, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return for each device whether it votes, if a fixed number is selected [Cormode21]."""
    selected = np.zeros(DEVICES, np.bool_)
    selected[rng.permutation(DEVICES)[:2]] = True
    return selected & (rng.random(DEVICES) < P * DEVICES / 2)


def fits(sample: Callable[[TrieHhPlan, np.random.Generator], NDArray[np.bool_]]) -> float:
    """Return the p-value of joint votes if each device votes independently with probability P."""
    rng, plan, outcomes = np.random.default_rng(1), first(), np.arange(2**DEVICES)
    drawn = np.array([sample(plan, rng) @ 2 ** np.arange(DEVICES) for _ in range(RUNS)])
    heads = np.bitwise_count(outcomes)
    return fit(drawn, outcomes, P**heads * (1 - P) ** (DEVICES - heads))


def test_who_votes_is_an_independent_sample() -> None:
    """Fails with probability 1e-3 under another seed."""
    assert fits(by_coins) > 1e-3


def test_a_sample_of_a_fixed_size_is_not() -> None:
    assert fits(by_the_server) < 1e-12


@pytest.mark.parametrize(
    ("p", "v"), [(0.146075, 0.2), (1 / 3, 0.7), (0.1, math.nextafter(0.3, 1)), (1e-6, 2e-6)]
)
def test_both_coins_together_never_exceed_p(p: float, v: float) -> None:
    plan = first(theta=200, probability=p, join_probability=v, epsilon=40)
    joining = math.floor(Fraction(v) * 2**64)
    assert plan.flip_join_coin(only(joining - 1))
    assert not plan.flip_join_coin(only(joining))
    voting = math.floor(Fraction(p) / Fraction(v) * 2**64)
    assert plan.vote_coins(only(voting - 1), 2).all()
    assert not plan.vote_coins(only(voting), 2).any()
    assert 0 <= Fraction(p) - Fraction(joining * voting, 2**128) < Fraction(1, 2**62)


def test_a_device_of_any_other_plan_joins_and_draws_no_chance_for_it() -> None:
    assert first(join_probability=1).flip_join_coin(no_words)


def test_estimates_are_of_those_who_stayed_away_as_well() -> None:
    """None of 12 estimates is off by 5 of its standard deviations."""
    held = [{"abc": 1}] * 200 + [{"dab": 1}] * 120 + [{"ccc": 1}] * 80
    off = []
    for seed in range(4):
        rounds, parted = [[held]] * 3, [[held[:150], held[150:]]] * 3
        *_, last = run_study(TRIE, asked(), TERMS, rounds, random.Random(seed), planned=3)
        *_, other = run_study(TRIE, asked(), TERMS, parted, random.Random(seed), planned=3)
        assert (last.devices, last.truth) == (other.devices, other.truth)  # for any batches
        assert last.truth == {"abc": 200, "dab": 120, "ccc": 80}
        assert abs(last.devices - 400 * V) < 5 * (400 * V * (1 - V)) ** 0.5
        by_item = {each.item: each for each in TRIE.final_estimates(asked(), last.study_state)}
        off += [
            (by_item[item].count - count) / by_item[item].variance ** 0.5
            for item, count in last.truth.items()
        ]
    assert np.abs(off).max() < 5
    assert abs(np.mean(off)) < 5 / len(off) ** 0.5


# What it costs.


def test_noise_is_enough_for_the_server_that_sees_who_joins() -> None:
    plan = first(mode="both", theta=None, delta=1e-6, epsilon=1)
    loss = TRIE.dp_event(plan, 3)
    assert loss == SkellamNoiseEvent(
        variance=plan.release.variance, probability=P, join_probability=V, releases=3
    )
    ledger = Ledger(entries=(LedgerEntry(name="words", event=loss),))
    for party in ("server", "devices", "analyst"):
        assert ledger.epsilon(1e-6, party) == pytest.approx(1, abs=1e-3)
    public = ledger.epsilon(1e-6, "public")
    assert public is not None
    assert public < 0.6


def test_a_sample_is_as_private_as_if_all_had_joined_except_for_the_roster() -> None:
    plan = first(theta=12, delta=1e-4)
    loss = TRIE.dp_event(plan, 3)
    assert loss == SampleThresholdEvent(probability=P, threshold=12, releases=3, join_probability=V)
    some, every = (
        Ledger(entries=(LedgerEntry(name="words", event=each),))
        for each in (loss, SampleThresholdEvent(probability=P, threshold=12, releases=3))
    )
    for party in ("analyst", "public"):
        assert some.epsilon(1e-4, party) == every.epsilon(1e-4, party)
    assert some.epsilon(1e-4, "server") is None
    assert some.epsilon(0.05, "devices") > every.epsilon(0.05, "devices")
    views = loss.views()
    assert "who joins a round" in views["devices"].sees
    for party in ("analyst", "public"):
        assert "neither who joins a round nor how many do" in views[party].assumption


def test_nobody_may_learn_among_how_many_was_counted() -> None:
    assert asked().hides_device_counts
    assert not asked(join_probability=1).hides_device_counts
    assert not asked(mode="both", theta=None).hides_device_counts
    with pytest.raises(ValueError, match="which nobody may learn"):
        mechanism_of(first()).distribution(first(), EMPTY_STATE)


# Documents and refusals.


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"join_probability": P}, "must be above the probability"),
        ({"join_probability": 0.1}, "must be above the probability"),
        ({"join_probability": math.nan}, "finite number"),
        ({"mode": "noise", "theta": None, "probability": None}, "or use mode both"),
        ({"contribution": 2}, "one vote per round"),
        ({"every_round": False}, "needs every_round"),
        ({"vote_tables": True}, "vote_tables cannot be combined"),
    ],
)
def test_what_invitations_cannot_do_is_refused(own: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        asked(**own)


def test_levels_of_one_round_do_not_share_an_invitation() -> None:
    own = {
        "threshold": 1,
        "message_bytes": 14_544,
        "epsilon": 1,
        "delta": 1e-6,
        "every_round": True,
    }
    own |= {"mode": "both", "join_probability": 0.5}
    domain = NumericInterval(low=0, high=1, alpha=4, length=3)
    with pytest.raises(ValidationError, match="one vote per round"):
        HierarchicalHistogramQuestion.model_validate(own | {"domain": domain})
    flat = domain.model_copy(update={"length": 1})
    HierarchicalHistogramQuestion.model_validate(own | {"domain": flat})


@pytest.mark.parametrize("own", [{"mode": "both"}, {}])
def test_a_computed_vote_probability_is_below_the_join_probability(own: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"must be above the probability of a vote, 0\.\d+: .* use"
    ):
        first(**{"theta": None, "probability": None, "join_probability": 0.1} | own)


def test_a_plan_with_more_votes_than_joins_is_refused() -> None:
    release = Release(probability=0.5, threshold=4, variance=0.0)
    with pytest.raises(ValidationError, match="above the probability of a vote"):
        TrieHhPlan.model_validate(dict(first()) | {"release": release})
