"""Neighbouring runs, simulated: they differ by no more than is claimed, and mistakes show.

A run is ten levels of coins and suppression, with and without one device. The lower bounds are
those of Clopper and Pearson [ClopperPearson34] on the probability of an event chosen
beforehand: so an honest claim fails with probability 1e-4 under another seed.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import betaincinv
from scipy.stats import binom

from protocol.numerics.array_types import Floats
from protocol.privacy.events import (
    DpEvent,
    LocalReportsEvent,
    SampleThresholdEvent,
    SkellamNoiseEvent,
    loss_to,
)
from protocol.privacy.loss_distributions import LOSS_INTERVAL, compose, delta_of
from protocol.privacy.noise_shares import NoiseShares
from protocol.privacy.sample_threshold import privacy_loss
from protocol.privacy.skellam import privacy_loss as noise_loss
from protocol.randomness import seeded_words

P, THETA, LEVELS = 0.145593, 12, 10
RUNS = 1_000_000
TAIL = 5e-5


def shown(event: NDArray[np.bool_], other: NDArray[np.bool_], epsilon: float) -> float:
    """Return the delta that the event shows at least, by runs of either neighbour."""
    hits, misses = int(event.sum()), int(other.sum())
    least = betaincinv(hits, len(event) - hits + 1, TAIL) if hits else 0.0
    most = betaincinv(misses + 1, len(other) - misses, 1 - TAIL)
    return float(least - math.exp(epsilon) * most)


def claimed(epsilon: float) -> float:
    return delta_of(compose([(privacy_loss(P, THETA), LEVELS)]), epsilon)


def test_an_audit_finds_an_accountant_of_one_direction() -> None:
    """The ratio of without to with alone gives 0 at every epsilon above -ln(1 - 0.3) = 0.357."""
    rng = np.random.default_rng(4)
    mine, theirs = (rng.binomial(7 + joined, 0.3, RUNS) >= 5 for joined in (1, 0))
    delta_bound = shown(mine, theirs, 0.36)
    loss = privacy_loss(0.3, 5)
    assert float(loss._pmf_add.get_delta_for_epsilon(0.36)) < 1e-12
    assert 0.01 < delta_bound <= delta_of(loss, 0.36)


def noisy(rng: np.random.Generator, survivors: int, *, joined: bool) -> NDArray[np.int64]:
    """Return counts with shares of `survivors` of 100 devices, made for a tenth of dropouts."""
    shares = NoiseShares(variance=4.0, contacted=100, dropout=0.1)
    total = np.full(20_000, int(joined), np.int64)
    for _ in range(survivors):
        total += shares.draw(seeded_words(rng), len(total))
    return total


@pytest.mark.parametrize("survivors", [90, 100])
def test_an_audit_of_drawn_shares_finds_no_more_than_claimed(survivors: int) -> None:
    rng = np.random.default_rng(survivors)
    mine, theirs = (noisy(rng, survivors, joined=joined) for joined in (True, False))
    delta_bound = shown(mine >= 2, theirs >= 2, 0.1)
    assert 0.05 < delta_bound <= delta_of(noise_loss(4.0), 0.1)


def test_an_audit_finds_dropouts_that_were_not_provided_for() -> None:
    rng = np.random.default_rng(1)
    mine, theirs = (noisy(rng, 30, joined=joined) for joined in (True, False))
    assert shown(mine >= 1, theirs >= 1, 0.1) > delta_of(noise_loss(4.0), 0.1)


# Devices that join with probability `JOINING` vote by another coin: P is that of both.

JOINING, OTHER_DEVICES = 0.15, 99
VOTING = P / JOINING


def path(rng: np.random.Generator, *, joined: bool, reused: bool) -> NDArray[np.bool_]:
    """Return the runs where five levels of a prefix had at most one more than its extension's.

    99 devices hold the extension, and one more may hold another extension of the prefix. If coins
    are `reused`, those that join do so in all levels.
    """
    many = 100_000
    others, own = (
        rng.binomial(trials, JOINING, (1 if reused else LEVELS, many))
        for trials in (OTHER_DEVICES, 1)
    )
    votes = rng.binomial(np.broadcast_to(others, (LEVELS, many)), VOTING)
    votes[:5] += rng.binomial(np.broadcast_to(own, (LEVELS, many)), VOTING)[:5] * joined
    votes[votes < THETA] = 0
    prefix, extension = votes[:5].max(axis=0), votes[5:].max(axis=0)
    return (extension > 0) & (prefix - extension == 1)


def test_an_audit_finds_an_invitation_that_was_reused() -> None:
    rng = np.random.default_rng(5)
    fresh = [path(rng, joined=joined, reused=False) for joined in (True, False)]
    assert shown(*fresh, 1.0) <= claimed(1.0)
    reused = [path(rng, joined=joined, reused=True) for joined in (True, False)]
    assert shown(*reused, 1.0) > 0.05 > 1000 * claimed(1.0)


def sized(*, joined: bool) -> Floats:
    """Return the joint probabilities of how many join and the count that is shown.

    All devices hold one thing, except for one of them that holds it only if it `joined` them.
    """
    size, votes = np.arange(OTHER_DEVICES + 2)[:, None], np.arange(OTHER_DEVICES + 2)
    probabilities = np.zeros((OTHER_DEVICES + 2, OTHER_DEVICES + 2))
    for mine, likely in ((1, JOINING), (0, 1 - JOINING)):
        here = likely * binom.pmf(size - mine, OTHER_DEVICES, JOINING)
        voters = size if joined else size - mine
        probabilities += here * binom.pmf(votes, np.maximum(voters, 0), VOTING)
    probabilities[:, 0], probabilities[:, 1:THETA] = probabilities[:, :THETA].sum(axis=1), 0
    return probabilities


@pytest.mark.parametrize("size_known", [False, True])
def test_an_audit_finds_that_the_number_of_joined_devices_was_published(size_known: bool) -> None:
    """The service never publishes it: of few devices, nearly all that join vote."""
    mine, theirs = sized(joined=True), sized(joined=False)
    if not size_known:
        mine, theirs = (
            probabilities.sum(axis=0, keepdims=True) for probabilities in (mine, theirs)
        )
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = (np.log(mine) - np.log(theirs)).ravel()
    rng = np.random.default_rng(6)
    runs = []
    for probabilities in (mine.ravel(), theirs.ravel()):
        drawn = rng.choice(
            len(probabilities), (LEVELS, 200_000), p=probabilities / probabilities.sum()
        )
        runs.append(losses[drawn].sum(axis=0) > 0.4)
    assert (shown(runs[0], runs[1], 0.4) > 10 * claimed(0.4)) is size_known
    assert size_known or shown(runs[0], runs[1], 0.4) <= claimed(0.4)


# Choice of the next study.


def chosen_deltas(
    first: DpEvent, choices: Sequence[DpEvent], epsilon: float
) -> tuple[list[float], float]:
    """Return the deltas of `first` with each of `choices`, and with the worst one given `first`.

    By the definition: the mean over the losses of `first` of what is left of epsilon then.
    """
    losses = [loss_to(event, "public", "add-remove") for event in (first, *choices)]
    assert None not in losses
    alone, best = [], 0.0
    for side in ("_pmf_remove", "_pmf_add"):
        seen, *others = (getattr(loss, side).to_dense_pmf() for loss in losses)
        probabilities, least = seen._probs[::-1], seen._infinity_mass
        left = epsilon - (seen._lower_loss + np.arange(seen.size))[::-1] * LOSS_INTERVAL
        remaining_deltas = np.array(
            [other.get_delta_for_epsilon(left.tolist()) for other in others]
        )
        alone.append(least + remaining_deltas @ probabilities)
        best = max(best, float(least + remaining_deltas.max(axis=0) @ probabilities))
    return np.max(alone, axis=0).tolist(), best


def test_choosing_a_study_by_earlier_results_reveals_more_than_each() -> None:
    """Each choice keeps the budget, and the choice itself does not: a limit of the ledger."""
    levels = SampleThresholdEvent(probability=P, threshold=THETA, releases=5)
    choices = (
        levels,
        SkellamNoiseEvent(variance=188.91, releases=5),
        LocalReportsEvent(epsilon=0.2311),
        SampleThresholdEvent(probability=0.2183, threshold=20, releases=5),
    )
    alone, best = chosen_deltas(levels, choices, 0.99574)
    assert alone == pytest.approx([1e-6] * 4, rel=0.01)
    assert best == pytest.approx(1.85e-6, rel=0.01)
