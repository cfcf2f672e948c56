"""Designs of a trie's release for a central epsilon and delta: coins, noise, or both.

Each design is the best of its kind by the exact loss. Coins have the smallest theta / m, the share
of all users from which a prefix is shown about half the time. Noise has the smallest variance in
the sum of each cohort, and a threshold that a cell of noise alone rarely reaches.

If coins are rare, most users vote in no round. In an `InvitedDesign` each user joins by its own
coin of probability s / n, with s = m + c sqrt(m) and c = 10 (section 2.1 of the note). Voters are
then an exact sample of probability m / n.
"""

import math
from dataclasses import dataclass

from protocol.domains.strings import Alphabet
from protocol.mechanisms.central.release_design import (
    cell_modulus,
    design_release,
    max_noise_variance,
    release_loss,
)
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.privacy.events import PARTIES, LedgerEntry
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import InvitedDesign, Release, ReleaseDesign, ReleaseMode
from protocol.privacy.sample_threshold import cormode21_epsilon, kl_epsilon
from protocol.round_sizes import seats_for, terms_for
from secagg.ring import Lane

RELEASE_MODES: tuple[ReleaseMode, ...] = ("sample-threshold", "noise", "both")
_MAX_USERS = 10**9
_INVITATION_MARGIN_DEVIATIONS = 10
_MESSAGE_BYTES = 2**17
_EXAMPLE_PREFIXES = 100  # of a level whose size is shown
_EXAMPLE_DOMAIN = Alphabet(characters="\0abcdefghijklmnopqrstuvwxyz", length=10, pad="\0")


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The release that answers a question, with its noise variance, bytes and privacy loss."""

    release: Release
    variance: float
    vector_bytes: int
    ledger: Ledger


def _evaluate(question: TrieHhQuestion, devices: int, levels: int) -> _Evaluation:
    terms = terms_for(devices)
    release = design_release(question, terms, levels, levels)
    variance = max_noise_variance(release, terms, terms.cohorts)
    lane = Lane(cell_modulus(release, terms), _EXAMPLE_PREFIXES * _EXAMPLE_DOMAIN.base)
    entry = LedgerEntry(name="all", event=release_loss(question, release, levels))
    return _Evaluation(release, variance, lane.nbytes, Ledger(entries=(entry,)))


def best_designs(
    users: int, epsilon: float, delta: float, levels: int, items: int = 1
) -> list[ReleaseDesign]:
    """Return the best design of each mode.

    Raises:
        ValueError: if a parameter is out of its range, or no design keeps the budget.
    """
    if not 10 <= users <= _MAX_USERS:
        raise ValueError(f"--devices must be from 10 to {_MAX_USERS:,}, not {users}")
    if not 1 <= levels <= 256:
        raise ValueError(f"--levels must be from 1 to 256, not {levels}")
    return [_best_design_of(mode, users, epsilon, delta, levels, items) for mode in RELEASE_MODES]


def _best_design_of(
    mode: ReleaseMode, users: int, epsilon: float, delta: float, levels: int, items: int
) -> ReleaseDesign:
    fields = {"threshold": 1, "contribution": items, "domain": _EXAMPLE_DOMAIN, "mode": mode}
    fields |= {"message_bytes": _MESSAGE_BYTES, "epsilon": epsilon, "delta": delta}
    question = TrieHhQuestion.model_validate(fields)
    evaluation = _evaluate(question, users, levels)
    release, variance = evaluation.release, evaluation.variance
    epsilons = {party: evaluation.ledger.epsilon(delta, party) for party in PARTIES}
    replace_one = evaluation.ledger.epsilon(delta, "public", "replace-one")
    assert epsilons["public"] is not None  # each mode has a bound for the public
    assert replace_one is not None
    closed_forms: list[float | None] = [None, None]
    if mode == "sample-threshold":
        arguments = release.probability, release.threshold, delta, levels * items
        bounds = (form(*arguments) for form in (kl_epsilon, cormode21_epsilon))
        closed_forms = [bound if math.isfinite(bound) else None for bound in bounds]
    voters = release.probability * users
    votes = voters / 100  # for the prefix of one user in a hundred
    return ReleaseDesign(
        mode=mode,
        theta=release.threshold,
        m=round(voters),
        probability=release.probability,
        sigma=math.sqrt(variance),
        shown_share=release.threshold / voters,
        relative_error=math.sqrt(votes * (1 - release.probability) + variance) / votes,
        vector_bytes=evaluation.vector_bytes,
        epsilon=epsilons["public"],
        epsilon_replace_one=replace_one,
        epsilon_server=epsilons["server"],
        epsilon_kl=closed_forms[0],
        epsilon_note=closed_forms[1],
        invitation=_invited_design(question, voters, users, levels, evaluation.vector_bytes),
    )


def _invited_design(
    question: TrieHhQuestion, m: float, users: int, levels: int, vector_bytes: int
) -> InvitedDesign | None:
    """Return the design in which most users do not join; None if all have to."""
    probability = math.ceil(m + _INVITATION_MARGIN_DEVIATIONS * math.sqrt(m)) / users
    if probability >= 1 or question.contribution > 1:
        return None
    fields = question.model_dump() | {"join_probability": probability}
    seats, participants = seats_for(users, probability), round(probability * users)
    evaluation = _evaluate(TrieHhQuestion.model_validate(fields), seats, levels)
    return InvitedDesign(
        probability=probability,
        expected_participants=participants,
        seats=seats,
        vector_bytes=evaluation.vector_bytes,
        saved_bytes=users * vector_bytes - participants * evaluation.vector_bytes,
        sigma=math.sqrt(evaluation.variance),
        epsilon_server=evaluation.ledger.epsilon(question.delta, "server"),
        epsilon_devices=evaluation.ledger.epsilon(question.delta, "devices"),
    )
