"""Search for a release that keeps the epsilon and delta of a question.

The coins, theta and noise are computed from the exact privacy loss for the first plan, and stay for
the study (`protocol/privacy/parameters_for_budget.py`). So its cost is known before its first
round.

The server reads the sum of each cohort, so each cohort has all of the noise by itself. Devices
without an item add their noise too.
"""

from protocol.mechanisms.central.release_question import ReleaseQuestion
from protocol.privacy.events import DpEvent, SampleThresholdEvent, SkellamNoiseEvent
from protocol.privacy.loss_distributions import compose, epsilon_of
from protocol.privacy.noise_shares import NoiseShares
from protocol.privacy.parameters_for_budget import best_design, min_variance
from protocol.privacy.release import Release
from protocol.privacy.skellam import tail_quantile
from protocol.question_and_plan import Terms
from protocol.round_sizes import max_elements

_DESIGN_DEVICES = 10**6  # devices for which p is computed; the best p does not depend on them
_DEFAULT_VOTE_PROBABILITY = 0.25  # of mode both, if the question does not give one
_MAX_RELEASES = 2**12  # rounds, or items of a device, that the ledger counts
_MAX_ACCOUNTED_VOTES = 2**14  # of a device in all of them: some 20 seconds of accounting
_EXPECTED_FALSE_POSITIVES = 0.3  # mean number of cells of a study that only noise shows


def release_loss(question: ReleaseQuestion, release: Release, releases: int) -> DpEvent:
    """Return the privacy loss of `releases` of a device's votes, for the ledger."""
    items = question.contribution
    if release.mode == "sample-threshold":
        return SampleThresholdEvent(
            probability=release.probability,
            threshold=release.threshold,
            releases=releases,
            items=items,
            colluders=question.colluders,
            table_failure_delta=question.table_failure_delta,
            join_probability=question.join_probability,
        )
    return SkellamNoiseEvent(
        variance=release.variance,
        probability=release.probability,
        join_probability=question.join_probability,
        releases=releases,
        items=items,
    )


def design_release(question: ReleaseQuestion, terms: Terms, releases: int, vectors: int) -> Release:
    """Return the release that keeps the question's epsilon and delta over `releases` of a device.

    `vectors` is the largest number of rounds that are decoded, each with a vector as large as the
    question allows, in which noise may look like counts. Noise protects from the server, so only
    the part of a coin that the server cannot see counts for it. Raises ValueError if no release, or
    not the given one, keeps the budget.
    """
    items = question.contribution
    if max(releases, items) > _MAX_RELEASES or releases * items > _MAX_ACCOUNTED_VOTES:
        raise ValueError(
            f"{releases:,} releases of {items:,} items of a device are too many for the ledger: "
            f"at most {_MAX_RELEASES:,} of each and {_MAX_ACCOUNTED_VOTES:,} of both together"
        )
    if question.mode == "sample-threshold":
        if question.theta is None or question.probability is None:
            release = _best_sampled_release(question, releases)
        else:
            release = Release(
                probability=question.probability, threshold=question.theta, variance=0.0
            )
            _check_cost(question, release, releases)
        check_join_probability(question.join_probability, release)
        return release
    sampled = 1.0 if question.mode == "noise" else question.probability or _DEFAULT_VOTE_PROBABILITY
    check_join_probability(
        question.join_probability, Release(probability=sampled, threshold=1, variance=1.0)
    )
    variance = min_variance(
        question.epsilon,
        question.delta,
        releases * question.contribution,
        sampled / question.join_probability,
        question.relation,
    )
    release = Release(probability=sampled, threshold=1, variance=variance)
    max_variance = max_noise_variance(release, terms, terms.cohorts)
    q = cell_modulus(release, terms)
    cells = max(1, vectors * max_elements(terms, question.message_bytes, q))
    threshold = tail_quantile(max_variance, _EXPECTED_FALSE_POSITIVES / cells)
    return release.model_copy(update={"threshold": threshold})


def check_join_probability(join_probability: float, release: Release) -> None:
    """Raise ValueError if all devices that join would vote, so that joining reveals a vote."""
    p = release.probability
    if join_probability < 1 and not p / join_probability < 1:
        raise ValueError(
            f"join_probability {join_probability:g} must be above the probability of a vote, "
            f"{p:.6g}: only devices that join can vote; "
            f"use {min(1.0, 1.1 * p):.3g}, or 1 to let all join"
        )


def min_honest_share(terms: Terms) -> float:
    """Return the smallest fraction of honest devices among those in a sum.

    Rates are fractions of the whole cohort, and all dropouts may be honest: of 1 - d survivors,
    1 - d - c are honest. In a one-shot sum nobody drops out.
    """
    if terms.is_one_shot:
        return 1 - terms.corrupt
    return 1 - terms.corrupt / (1 - terms.dropout)


def noise_shares(release: Release, terms: Terms, contacted: int) -> NoiseShares | None:
    """Return the shares of a cohort of `contacted` devices; None if there is no noise.

    A one-shot sum may have `minimum` devices only, of any number that send a message: the honest
    ones of the smallest sum have all of the noise.
    """
    if terms.is_one_shot:
        return release.noise_shares(terms.minimum, 0.0, min_honest_share(terms))
    return release.noise_shares(contacted, terms.dropout, min_honest_share(terms))


def max_noise_variance(release: Release, terms: Terms, cohorts: int) -> float:
    """Return the largest variance of the noise in a cell of the sum of `cohorts`."""
    return release.max_variance(cohorts, _missing_share(terms), min_honest_share(terms))


def noise_variance_of(release: Release, terms: Terms, participants: int) -> float:
    """Return the largest variance of the noise in a cell of the sum of `participants`."""
    if terms.is_one_shot:
        shares = noise_shares(release, terms, participants)
        return 0.0 if shares is None else float(shares.share * participants)
    cohorts = max(1, participants // terms.assumptions.quorum(terms.minimum))
    return max_noise_variance(release, terms, min(terms.cohorts, cohorts))


def max_noise(release: Release, terms: Terms) -> int:
    """Return the bound that all noise of a cell exceeds with probability 2^-64 at most."""
    return release.max_noise(terms.cohorts, _missing_share(terms), min_honest_share(terms))


def _missing_share(terms: Terms) -> float:
    """Return the largest fraction of a cohort's devices that are not in its sum."""
    return 1 - terms.minimum / terms.cohort_size if terms.is_one_shot else terms.dropout


def cell_modulus(release: Release, terms: Terms) -> int:
    """Return the modulus of a cell in which each device votes once at most."""
    noise = max_noise(release, terms)
    if noise:
        return terms.moduli.above(2 * (terms.max_devices + noise) + 1)
    return terms.moduli.above(terms.max_devices)


def _best_sampled_release(question: ReleaseQuestion, releases: int) -> Release:
    """Return the release without noise that shows the rarest cells."""
    design = best_design(
        _DESIGN_DEVICES,
        question.epsilon,
        question.delta - question.table_failure_delta,
        releases,
        question.contribution,
        question.relation,
    )
    theta = design.theta + question.colluders
    return Release(probability=design.m / _DESIGN_DEVICES, threshold=theta, variance=0.0)


def _check_cost(question: ReleaseQuestion, release: Release, releases: int) -> None:
    loss = release_loss(question, release, releases).loss_to("public", question.relation)
    cost = float("inf") if loss is None else epsilon_of(compose([(loss, 1)]), question.delta)
    if cost > question.epsilon:
        best = _best_sampled_release(question, releases)
        raise ValueError(
            f"theta {release.threshold} with coins of {release.probability:g} costs epsilon "
            f"{cost:.4g} at delta {question.delta:g} over {releases} releases, above "
            f"{question.epsilon:g}: theta {best.threshold} with coins of "
            f"{best.probability:g} keeps it"
        )
