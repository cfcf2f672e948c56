"""How to release counts for a central epsilon and delta: coins, noise or both, side by side.

Each design is the best of its kind by the exact loss: of coins the least theta / m, the share of
all users from which a prefix is shown about half the time; of noise the least variance in each
cohort's sum, and the threshold that a cell of noise alone seldom reaches. Beside the exact epsilon
stand the closed forms that an auditor can check by hand.

Of those that could take part, most vote in no round if coins are rare. `InvitedDesign` lets each
join by a coin of its own, of odds s / n with the s = m + c sqrt(m), c = 10, that section 2.1 of the
note has the server pick; who joins is then Bin(n, s / n), and who votes an exact sample of odds m /
n.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from blindtally.console.output import exit_with_error, write_json
from blindtally.console.tables import format_epsilon, print_parts, result_table
from blindtally.simulate.result import seats_for
from protocol.domains.strings import Alphabet
from protocol.mechanisms.central.release_design import (
    cell_bits,
    design_release,
    min_honest_share,
    release_loss,
)
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.privacy.closed_forms import cormode21_epsilon, kl_epsilon
from protocol.privacy.events import PARTIES, LedgerEntry
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import Release, ReleaseMode
from protocol.study import Terms

RELEASE_MODES: tuple[ReleaseMode, ...] = ("sample-threshold", "noise", "both")
_MAX_USERS = 10**9
_MAX_COHORT_SIZE = 100_000
_INVITATION_MARGIN_DEVIATIONS = 10
_VECTOR_WORDS = 2**16
_EXAMPLE_PREFIXES = 100  # of a level whose size is told
_EXAMPLE_DOMAIN = Alphabet(characters="\0abcdefghijklmnopqrstuvwxyz", length=10, pad="\0")


@dataclass(frozen=True, slots=True)
class InvitedDesign:
    """A design whose users join with odds of `odds`, by their own coins, instead of all.

    `joined` do on average, and `seats` hold them but for odds of about 1e-20; each sends `nbytes`
    for 100 prefixes, where that of all who stay away, `saved`, is not sent. `sigma` is the noise
    that keeps epsilon against the server, which sees who joins, as devices do by the roster:
    epsilons to them are None where there is no bound.
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

    `m` users vote on average, `sigma` is the deviation of noise in all cohorts together, and
    `share` of all users shows a prefix about half the time. `error` is the relative standard error
    of a prefix that one user in a hundred has; `nbytes` are those of a vector of 100 prefixes of 27
    symbols. Epsilons are exact but for the closed forms, which are None where they say nothing.
    `invitation` is None where it would spare nobody.
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


def best_designs(
    users: int, epsilon: float, delta: float, levels: int, items: int = 1
) -> list[ReleaseDesign]:
    """Return the best design of each mode.

    Raises:
        ValueError: if a parameter is out of its range, or nothing meets the budget; says which.
    """
    if not 10 <= users <= _MAX_USERS:
        raise ValueError(f"--users must be within 10 and {_MAX_USERS:,}, not {users}")
    if not 1 <= levels <= 256:
        raise ValueError(f"--levels must be within 1 and 256, not {levels}")
    return [_best_design_of(mode, users, epsilon, delta, levels, items) for mode in RELEASE_MODES]


def terms_for_users(users: int) -> Terms:
    """Return terms for a sum over `users`, in as few cohorts as there can be."""
    cohorts = -(-users // _MAX_COHORT_SIZE)
    size = -(-users // cohorts)
    least = max(3, size // 2)
    return Terms(cohort_size=size, minimum=least, cohorts=cohorts, mode="semi-honest")


def _best_design_of(
    mode: ReleaseMode, users: int, epsilon: float, delta: float, levels: int, items: int
) -> ReleaseDesign:
    question = TrieHhQuestion.model_validate(
        {
            "threshold": 1,
            "contribution": items,
            "domain": _EXAMPLE_DOMAIN,
            "words": _VECTOR_WORDS,
            "epsilon": epsilon,
            "delta": delta,
            "mode": mode,
        }
    )
    terms = terms_for_users(users)
    made = design_release(question, terms, levels, levels)
    nbytes = _vector_bytes(made, terms)
    noise = made.max_variance(terms.cohorts, terms.dropout, min_honest_share(terms))
    ledger = Ledger(entries=(LedgerEntry(name="all", event=release_loss(question, made, levels)),))
    least = made.probability * users / 100
    sights = {party: ledger.epsilon(delta, party) for party in PARTIES}
    replaced = ledger.epsilon(delta, "public", "replace-one")
    assert sights["public"] is not None  # each of the three is bounded for the public
    assert replaced is not None
    kl, note = _closed_form_epsilons(mode, made.probability, made.threshold, delta, levels * items)
    return ReleaseDesign(
        mode=mode,
        theta=made.threshold,
        m=round(made.probability * users),
        probability=made.probability,
        sigma=math.sqrt(noise),
        shown_share=made.threshold / (made.probability * users),
        relative_error=math.sqrt(least * (1 - made.probability) + noise) / least,
        vector_bytes=nbytes,
        epsilon=sights["public"],
        epsilon_replace_one=replaced,
        epsilon_server=sights["server"],
        epsilon_kl=kl,
        epsilon_note=note,
        invitation=_invited_design(question, made.probability, users, levels, nbytes),
    )


def _invited_design(
    question: TrieHhQuestion, probability: float, users: int, levels: int, nbytes: int
) -> InvitedDesign | None:
    """Return how to answer `question` by users of whom most stay away; None if none may."""
    m = probability * users
    odds = math.ceil(m + _INVITATION_MARGIN_DEVIATIONS * math.sqrt(m)) / users
    if odds >= 1 or question.contribution > 1:
        return None
    asked = TrieHhQuestion.model_validate(question.model_dump() | {"join_probability": odds})
    seats = seats_for(users, odds)
    terms = terms_for_users(seats)
    made = design_release(asked, terms, levels, levels)
    loss = release_loss(asked, made, levels)
    ledger = Ledger(entries=(LedgerEntry(name="all", event=loss),))
    noise = made.max_variance(terms.cohorts, terms.dropout, min_honest_share(terms))
    joined = round(odds * users)
    each = _vector_bytes(made, terms)
    return InvitedDesign(
        probability=odds,
        expected_participants=joined,
        seats=seats,
        vector_bytes=each,
        saved_bytes=users * nbytes - joined * each,
        sigma=math.sqrt(noise),
        epsilon_server=ledger.epsilon(question.delta, "server"),
        epsilon_devices=ledger.epsilon(question.delta, "devices"),
    )


def _vector_bytes(made: Release, terms: Terms) -> int:
    return -(-_EXAMPLE_PREFIXES * _EXAMPLE_DOMAIN.base * cell_bits(made, terms) // 8)


def _closed_form_epsilons(
    mode: ReleaseMode, probability: float, theta: int, delta: float, releases: int
) -> tuple[float | None, float | None]:
    if mode != "sample-threshold":
        return None, None
    forms = (form(probability, theta, delta, releases) for form in (kl_epsilon, cormode21_epsilon))
    kl, note = (value if math.isfinite(value) else None for value in forms)
    return kl, note


def compare_releases(
    users: int, epsilon: float, delta: float, levels: int, items: int, json_path: str | None
) -> None:
    """Print the designs, and write them as JSON."""
    try:
        found = best_designs(users, epsilon, delta, levels, items)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        _show(found, users, delta, levels)
    write_json(json_path, as_json(found, users, delta, levels))


def as_json(found: list[ReleaseDesign], users: int, delta: float, levels: int) -> dict[str, Any]:
    """Return what scripts read: of sample-and-threshold first, which has theta and m."""
    first, invitation = found[0], found[0].invitation
    return {
        "mechanism": "triehh",
        "users": users,
        "levels": levels,
        "epsilon": first.epsilon,
        "delta": delta,
        "theta": first.theta,
        "m": first.m,
        "theta_over_m": first.theta / first.m if first.m else None,
        "invited": 1.0 if invitation is None else invitation.probability,
        "expected_participants": (
            users if invitation is None else invitation.expected_participants
        ),
        "seats": users if invitation is None else invitation.seats,
        "saved_bytes": 0 if invitation is None else invitation.saved_bytes,
        "designs": [asdict(one) for one in found],
        "recommended": recommended(found).mode,
    }


def recommended(found: list[ReleaseDesign]) -> ReleaseDesign:
    """Return the design that shows the rarest prefixes."""
    return min(found, key=lambda one: one.shown_share)


def _show(found: list[ReleaseDesign], users: int, delta: float, levels: int) -> None:
    columns: list[tuple[str, Callable[[ReleaseDesign], str]]] = [
        ("theta", lambda one: f"{one.theta:,}"),
        ("users that vote (m)", lambda one: f"{one.m:,}"),
        ("noise, std. deviation", lambda one: f"{one.sigma:.4g}"),
        ("shown from a share of", lambda one: f"{one.shown_share:.3g}"),
        ("error of a 1% prefix", lambda one: f"{one.relative_error:.2%}"),
        ("bytes, 100 prefixes", lambda one: f"{one.vector_bytes:,}"),
        ("epsilon, add-remove", lambda one: f"{one.epsilon:.4g}"),
        ("epsilon, replace-one", lambda one: f"{one.epsilon_replace_one:.4g}"),
        ("epsilon to the server", lambda one: format_epsilon(one.epsilon_server)),
        ("epsilon by KL form", lambda one: format_epsilon(one.epsilon_kl, "-")),
        ("epsilon by the note", lambda one: format_epsilon(one.epsilon_note, "-")),
    ]
    rows = [(name, *map(cell, found)) for name, cell in columns]
    title = f"{users:,} users, {levels} levels, delta {delta:g} in all"
    print_parts(
        result_table([""], [one.mode for one in found], rows, title), *_remarks(found, users)
    )


def _remarks(found: list[ReleaseDesign], users: int) -> Iterator[str]:
    best, cohorts = recommended(found), terms_for_users(users).cohorts
    yield f"{best.mode} shows the rarest prefixes."
    if best.epsilon_server is None:
        yield (
            "Without noise the server sees the votes of single devices: only what it publishes "
            "is private."
        )
    for one in found:
        if one.invitation is not None:
            yield from _describe_invitation(one, one.invitation, users)
    if cohorts > 1:
        yield (
            f"Each of {cohorts:,} cohorts has all of the noise for itself, since the server reads "
            "each sum."
        )


def _describe_invitation(of: ReleaseDesign, by: InvitedDesign, users: int) -> Iterator[str]:
    to_devices = format_epsilon(by.epsilon_devices, "without bound")
    cost = (
        f"noise for the server, which sees who joins: deviation {by.sigma:.4g}"
        if of.sigma
        else f"epsilon to devices on the rosters, which see who joins: {to_devices}"
    )
    saved = by.saved_bytes / (users * of.vector_bytes)
    yield (
        f"{of.mode} with invited {by.probability:.4g}: each user joins a level by its own coin, "
        f"{by.expected_participants:,} of {users:,} on average, and {of.m:,} vote as before. Plan "
        f"seats for {by.seats:,}. This saves {saved:.0%} of all bytes, {by.saved_bytes / 1e9:.3g} "
        f"GB for a level of {_EXAMPLE_PREFIXES} prefixes, and costs {cost}."
    )
