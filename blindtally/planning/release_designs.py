"""Designs of a release of counts for a central epsilon and delta: coins, noise, or both.

Each design is the best of its kind by the exact loss. Coins have the smallest theta / m, the share
of all users from which a prefix is shown about half the time. Noise has the smallest variance in
the sum of each cohort, and a threshold that a cell of noise alone rarely reaches.

If coins are rare, most users vote in no round. In an `InvitedDesign` each user joins by its own
coin of probability s / n, with s = m + c sqrt(m) and c = 10 (section 2.1 of the note). Voters are
then an exact sample of probability m / n.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.tables import format_epsilon, print_parts, result_table
from blindtally.simulate.rounds import seats_for, terms_for
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
from protocol.privacy.release import Release, ReleaseMode
from protocol.privacy.sample_threshold import cormode21_epsilon, kl_epsilon
from secagg.ring import Lane

RELEASE_MODES: tuple[ReleaseMode, ...] = ("sample-threshold", "noise", "both")
_MAX_USERS = 10**9
_MAX_COHORT_SIZE = 100_000
_INVITATION_MARGIN_DEVIATIONS = 10
_VECTOR_WORDS = 2**16
_EXAMPLE_PREFIXES = 100  # of a level whose size is shown
_EXAMPLE_DOMAIN = Alphabet(characters="\0abcdefghijklmnopqrstuvwxyz", length=10, pad="\0")


@dataclass(frozen=True, slots=True)
class InvitedDesign:
    """A design in which each user joins with `probability`, by its own coin.

    The `seats` suffice for all that join except with probability 1e-20. Each sends `vector_bytes`
    for 100 prefixes; `saved_bytes` are those of all users that do not join. The noise of deviation
    `sigma` keeps epsilon against the server, which sees who joins, as devices do on the roster. An
    epsilon without bound is None.
    """

    probability: float
    expected_participants: int
    seats: int
    vector_bytes: int
    saved_bytes: int
    sigma: float
    epsilon_server: float | None
    epsilon_devices: float | None


@dataclass(frozen=True, slots=True)
class ReleaseDesign:
    """One way to release counts.

    `m` users vote on average, `sigma` is the deviation of the noise in all cohorts together, and a
    prefix of `shown_share` of all users is shown about half the time. `relative_error` is the
    standard error of a prefix that one user in a hundred has; `vector_bytes` are those of 100
    prefixes of 27 symbols. Epsilons are exact except for the closed forms, which are None without a
    bound. `invitation` is None if it would save nothing.
    """

    mode: ReleaseMode
    theta: int
    m: int
    probability: float
    sigma: float
    shown_share: float
    relative_error: float
    vector_bytes: int
    epsilon: float
    epsilon_replace_one: float
    epsilon_server: float | None
    epsilon_kl: float | None
    epsilon_note: float | None
    invitation: InvitedDesign | None


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """The release that answers a question, with its noise variance, bytes and privacy loss."""

    release: Release
    variance: float
    vector_bytes: int
    ledger: Ledger


def _evaluate(question: TrieHhQuestion, devices: int, levels: int) -> _Evaluation:
    terms = terms_for(devices, _MAX_COHORT_SIZE, mode="semi-honest")
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
    fields |= {"words": _VECTOR_WORDS, "epsilon": epsilon, "delta": delta}
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


def compare_releases(
    users: int, epsilon: float, delta: float, levels: int, items: int, json_path: str | None
) -> None:
    try:
        designs = best_designs(users, epsilon, delta, levels, items)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        _show(designs, users, delta, levels)
    first, invitation = designs[0], designs[0].invitation  # sample-threshold has theta and m
    document: dict[str, Any] = {
        "mechanism": "triehh",
        "users": users,
        "levels": levels,
        "epsilon": first.epsilon,
        "delta": delta,
        "theta": first.theta,
        "m": first.m,
        "theta_over_m": first.theta / first.m if first.m else None,
        "invited": invitation.probability if invitation else 1.0,
        "expected_participants": invitation.expected_participants if invitation else users,
        "seats": invitation.seats if invitation else users,
        "saved_bytes": invitation.saved_bytes if invitation else 0,
        "designs": [asdict(design) for design in designs],
        "recommended": _recommended(designs).mode,
    }
    write_json(json_path, document)


def _recommended(designs: list[ReleaseDesign]) -> ReleaseDesign:
    return min(designs, key=lambda design: design.shown_share)


def _show(designs: list[ReleaseDesign], users: int, delta: float, levels: int) -> None:
    columns: list[tuple[str, Callable[[ReleaseDesign], str]]] = [
        ("theta", lambda design: f"{design.theta:,}"),
        ("users that vote (m)", lambda design: f"{design.m:,}"),
        ("noise, std. deviation", lambda design: f"{design.sigma:.4g}"),
        ("shown from a share of", lambda design: f"{design.shown_share:.3g}"),
        ("error of a 1% prefix", lambda design: f"{design.relative_error:.2%}"),
        ("bytes, 100 prefixes", lambda design: f"{design.vector_bytes:,}"),
        ("epsilon, add-remove", lambda design: f"{design.epsilon:.4g}"),
        ("epsilon, replace-one", lambda design: f"{design.epsilon_replace_one:.4g}"),
        ("epsilon to the server", lambda design: format_epsilon(design.epsilon_server)),
        ("epsilon by KL form", lambda design: format_epsilon(design.epsilon_kl, "-")),
        ("epsilon by the note", lambda design: format_epsilon(design.epsilon_note, "-")),
    ]
    rows = [(name, *map(cell, designs)) for name, cell in columns]
    title = f"{users:,} users, {levels} levels, delta {delta:g} in all"
    table = result_table([""], [design.mode for design in designs], rows, title)
    print_parts(table, *_remarks(designs, users))


def _remarks(designs: list[ReleaseDesign], users: int) -> Iterator[str]:
    best, cohorts = _recommended(designs), -(-users // _MAX_COHORT_SIZE)
    yield f"{best.mode} shows the rarest prefixes."
    if best.epsilon_server is None:
        yield (
            "Without noise the server sees the votes of single devices: only what it publishes "
            "is private."
        )
    for design in designs:
        if design.invitation is not None:
            yield _describe_invitation(design, design.invitation, users)
    if cohorts > 1:
        yield (
            f"Each of {cohorts:,} cohorts has all of the noise for itself, since the server reads "
            "each sum."
        )


def _describe_invitation(design: ReleaseDesign, invited: InvitedDesign, users: int) -> str:
    bound = format_epsilon(invited.epsilon_devices, "without bound")
    cost = f"epsilon to devices on the rosters, which see who joins: {bound}"
    if design.sigma:
        cost = f"noise for the server, which sees who joins: deviation {invited.sigma:.4g}"
    saved = invited.saved_bytes / (users * design.vector_bytes)
    return (
        f"{design.mode} with invited {invited.probability:.4g}: each user joins a level by its own "
        f"coin, {invited.expected_participants:,} of {users:,} on average, and {design.m:,} vote "
        f"as before. Plan seats for {invited.seats:,}. This saves {saved:.0%} of all bytes, "
        f"{invited.saved_bytes / 1e9:.3g} GB for a level of {_EXAMPLE_PREFIXES} prefixes, and "
        f"costs {cost}."
    )
