"""Devices that join a round by coins of their own: the law of who votes, and what is refused."""

import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.stats import binom, chi2

from protocol.chance import Chance, seeded
from protocol.domain import Alphabet
from protocol.interval import Interval
from protocol.mechanism import Terms
from protocol.mechanisms import parse_plan, parse_question
from protocol.mechanisms.hierarchical_histogram import HierarchicalHistogramQuestion
from protocol.mechanisms.queries import distribution
from protocol.mechanisms.releasing import seats_for
from protocol.mechanisms.triehh import TrieHh, TrieHhPlan, TrieHhQuestion
from protocol.privacy.entries import Entry, Noise, SampleThreshold
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import Release
from protocol.simulation import run_study
from protocol.tally import NOTHING

TRIE = TrieHh()
TERMS = Terms(cohort_size=400, minimum=40)
LETTERS = Alphabet(characters="abcd", length=3)
P, V = 0.3, 0.45


def asked(**own: Any) -> TrieHhQuestion:
    common = {"threshold": 1, "contribution": 1, "domain": LETTERS, "words": 30_000}
    common |= {"epsilon": 8, "delta": 0.1, "theta": 4, "probability": P, "invited": V}
    return TrieHhQuestion.model_validate(common | own)


def first(**own: Any) -> TrieHhPlan:
    return TRIE.first_plan(asked(**own), TERMS, "study", 3, random.Random(1))


# The law.

DEVICES, RUNS = 3, 15_000


def by_coins(plan: TrieHhPlan, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return who votes of some devices, each by its own coins."""
    chance = seeded(rng)
    voted = [plan.joins(chance) and bool(plan.coins(chance, 1)[0]) for _ in range(DEVICES)]
    return np.array(voted)


def by_the_server(_: TrieHhPlan, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return who votes of some devices, if a fixed number of them is picked, as in the note."""
    picked = np.zeros(DEVICES, np.bool_)
    picked[rng.permutation(DEVICES)[:2]] = True
    return picked & (rng.random(DEVICES) < P * DEVICES / 2)


def fits(sample: Callable[[TrieHhPlan, np.random.Generator], NDArray[np.bool_]]) -> float:
    """Return the p-value of who votes together if each does by itself, with odds of P."""
    rng, plan = np.random.default_rng(1), first()
    seen = np.zeros(2**DEVICES)
    for _ in range(RUNS):
        seen[int(sample(plan, rng) @ 2 ** np.arange(DEVICES))] += 1
    heads = np.array([outcome.bit_count() for outcome in range(2**DEVICES)])
    expected = RUNS * P**heads * (1 - P) ** (DEVICES - heads)
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1))


def test_who_votes_is_an_independent_sample() -> None:
    """Fails with odds of 1e-3 under another seed."""
    assert fits(by_coins) > 1e-3


def test_a_sample_of_a_fixed_size_is_not() -> None:
    assert fits(by_the_server) < 1e-12


def only(word: int) -> Chance:
    return lambda count: np.full(count, word, np.uint64)


@pytest.mark.parametrize(
    ("p", "v"), [(0.146075, 0.2), (1 / 3, 0.7), (0.1, math.nextafter(0.3, 1)), (1e-6, 2e-6)]
)
def test_both_coins_together_are_never_likelier_than_p(p: float, v: float) -> None:
    plan = first(theta=200, probability=p, invited=v, epsilon=40)
    joining = math.floor(Fraction(v) * 2**64)
    assert plan.joins(only(joining - 1))
    assert not plan.joins(only(joining))
    voting = math.floor(Fraction(p) / Fraction(v) * 2**64)
    assert plan.coins(only(voting - 1), 2).all()
    assert not plan.coins(only(voting), 2).any()
    assert 0 <= Fraction(p) - Fraction(joining * voting, 2**128) < Fraction(1, 2**62)


def test_a_device_of_any_other_plan_joins_and_draws_no_chance_for_it() -> None:
    def none(count: int) -> NDArray[np.uint64]:
        raise AssertionError(count)

    assert first(invited=1).joins(none)


def test_estimates_are_of_those_who_stayed_away_as_well() -> None:
    """Of 12 estimates, none is off by 5 of its deviations."""
    held = [{"abc": 1}] * 200 + [{"dab": 1}] * 120 + [{"ccc": 1}] * 80
    off = []
    for seed in range(4):
        rounds, parted = [[held]] * 3, [[held[:150], held[150:]]] * 3
        *_, last = run_study(TRIE, asked(), TERMS, rounds, random.Random(seed), planned=3)
        *_, other = run_study(TRIE, asked(), TERMS, parted, random.Random(seed), planned=3)
        assert (last.devices, last.truth) == (other.devices, other.truth)  # whatever the blocks
        assert last.truth == {"abc": 200, "dab": 120, "ccc": 80}
        assert abs(last.devices - 400 * V) < 5 * (400 * V * (1 - V)) ** 0.5
        found = {one.item: one for one in TRIE.conclude(asked(), last.tally)}
        off += [
            (found[item].count - count) / found[item].variance ** 0.5
            for item, count in last.truth.items()
        ]
    assert np.abs(off).max() < 5
    assert abs(np.mean(off)) < 5 / len(off) ** 0.5


@pytest.mark.parametrize(("devices", "invited"), [(1000, 0.2), (10**6, 0.15), (50, 0.9)])
def test_there_are_seats_for_all_that_join(devices: int, invited: float) -> None:
    seats = seats_for(devices, invited)
    joined = np.random.default_rng(1).binomial(devices, invited, 10**6)
    assert joined.max() <= seats <= devices
    assert seats_for(devices, 1.0) == devices


@pytest.mark.parametrize("devices", [20, 100, 1000, 10**6, 10**8])
def test_seats_are_too_few_with_odds_below_what_is_told(devices: int) -> None:
    odds = np.geomspace(1e-7, 0.999, 60)
    seats = np.array([seats_for(devices, float(v)) for v in odds])
    assert binom.sf(seats, devices, odds).max() < 1e-20


# What it costs.


def test_noise_is_enough_for_the_server_that_sees_who_joins() -> None:
    plan = first(mode="both", theta=None, delta=1e-6, epsilon=1)
    loss = TRIE.loss(plan, 3)
    assert loss == Noise(variance=plan.release.variance, sampled=P, invited=V, releases=3)
    ledger = Ledger(entries=(Entry(name="words", mechanism=loss),))
    for party in ("server", "devices", "analyst"):
        assert ledger.epsilon(1e-6, party) == pytest.approx(1, abs=1e-3)
    public = ledger.epsilon(1e-6, "public")
    assert public is not None
    assert public < 0.6


def test_a_sample_is_as_private_as_if_all_had_joined_but_for_the_roster() -> None:
    plan = first(theta=12, delta=1e-4)
    loss = TRIE.loss(plan, 3)
    assert loss == SampleThreshold(probability=P, threshold=12, releases=3, invited=V)
    some, every = (
        Ledger(entries=(Entry(name="words", mechanism=one),))
        for one in (loss, SampleThreshold(probability=P, threshold=12, releases=3))
    )
    for party in ("analyst", "public"):
        assert some.epsilon(1e-4, party) == every.epsilon(1e-4, party)
    assert some.epsilon(1e-4, "server") is None
    assert some.epsilon(0.05, "devices") > every.epsilon(0.05, "devices")
    views = loss.views()
    assert "who joins a round" in views["devices"].sees
    for party in ("analyst", "public"):
        assert "neither who joins a round nor how many do" in views[party].assumption


def test_an_entry_that_was_kept_before_devices_were_invited_is_read() -> None:
    kept = {"kind": "noise", "variance": 5.0, "sampled": 0.25, "releases": 3, "items": 1}
    assert Noise.model_validate(kept | {"hidden": True}).invited == 1
    assert Noise.model_validate(kept | {"hidden": False}).invited == 0.25
    for wrong in ({"hidden": 1}, {"hidden": True, "invited": 0.5}, {}):
        with pytest.raises(ValidationError):
            Noise.model_validate(kept | wrong)


def test_nobody_may_learn_among_how_many_was_counted() -> None:
    assert asked().hides_sizes
    assert not asked(invited=1).hides_sizes
    assert not asked(mode="both", theta=None).hides_sizes
    with pytest.raises(ValueError, match="which nobody may learn"):
        distribution(first(), NOTHING)


# What is said, and what is refused.


def test_an_invitation_of_all_is_not_said() -> None:
    everybody = asked(invited=1)
    assert "invited" not in everybody.model_dump(mode="json")
    assert parse_question(everybody.model_dump(mode="json")) == everybody
    plan = first()
    assert plan.model_dump(mode="json")["question"]["invited"] == V
    assert parse_plan(plan.model_dump(mode="json")).digest() == plan.digest()


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ({"invited": P}, "must be above the probability"),
        ({"invited": 0.1}, "must be above the probability"),
        ({"invited": 1.5}, "less than or equal to 1"),
        ({"invited": 0}, "greater than 0"),
        ({"invited": -0.5}, "greater than 0"),
        ({"invited": math.nan}, "finite number"),
        ({"mode": "noise", "theta": None, "probability": None}, "or ask for mode both"),
        ({"contribution": 2}, "one vote a round"),
        ({"repeat": False}, "repeat"),
        ({"tables": True}, "tables or for invited"),
    ],
)
def test_what_invitations_cannot_do_is_refused(own: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        asked(**own)


def test_levels_of_one_round_do_not_share_an_invitation() -> None:
    own = {"threshold": 1, "words": 3000, "epsilon": 1, "delta": 1e-6, "repeat": True}
    own |= {"mode": "both", "invited": 0.5}
    domain = Interval(low=0, high=1, alpha=4, length=3)
    with pytest.raises(ValidationError, match="one vote a round"):
        HierarchicalHistogramQuestion.model_validate(own | {"domain": domain})
    flat = domain.model_copy(update={"length": 1})
    HierarchicalHistogramQuestion.model_validate(own | {"domain": flat})


@pytest.mark.parametrize("own", [{"mode": "both"}, {}])
def test_odds_of_a_vote_that_are_found_must_be_below_those_of_joining(own: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be above the odds of a vote, 0\.\d+: .* would do"):
        first(**{"theta": None, "probability": None, "invited": 0.1} | own)


def test_a_plan_whose_coins_are_likelier_than_its_invitations_is_none() -> None:
    release = Release(probability=0.5, threshold=4, variance=0.0)
    with pytest.raises(ValidationError, match="above the odds of a vote"):
        TrieHhPlan.model_validate(dict(first()) | {"release": release})
