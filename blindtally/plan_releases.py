"""How to release counts for a central epsilon and delta: coins, noise or both, side by side.

Each design is the best of its kind by the exact loss: of coins the least theta / m, the share of
all users from which a prefix is shown about half the time; of noise the least variance in each
cohort's sum, and the threshold that a cell of noise alone seldom reaches. Beside the exact epsilon
stand the closed forms that an auditor can check by hand.

Of those that could take part, most vote in no round if coins are rare. `Invitation` lets each join
by a coin of its own, of odds s / n with the s = m + c sqrt(m), c = 10, that section 2.1 of the note
has the server pick; who joins is then Bin(n, s / n), and who votes an exact sample of odds m / n.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from blindtally.output import failed, write_json
from blindtally.tables import show, table
from protocol.domain import Alphabet
from protocol.mechanism import Terms
from protocol.mechanisms.releasing import (
    cell_bits,
    design,
    least_honest,
    loss_of,
    seats_for,
)
from protocol.mechanisms.triehh import TrieHhQuestion
from protocol.privacy.closed_forms import kl_epsilon, note_epsilon
from protocol.privacy.entries import PARTIES, Entry
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import Mode, Release

MODES: tuple[Mode, ...] = ("sample-threshold", "noise", "both")
_MOST_USERS = 10**9
_COHORT = 100_000
_DEVIATIONS = 10
_WORDS = 2**16
_PREFIXES = 100  # of a level whose size is told
_LETTERS = Alphabet(characters="\0abcdefghijklmnopqrstuvwxyz", length=10, pad="\0")


@dataclass(frozen=True, slots=True)
class Invitation:
    """A design whose users join with odds of `odds`, by their own coins, instead of all.

    `joined` do on average, and `seats` hold them but for odds of about 1e-20; each sends `nbytes`
    for 100 prefixes, where that of all who stay away, `saved`, is not sent. `sigma` is the noise
    that keeps epsilon against the server, which sees who joins, as devices do by the roster:
    epsilons to them are None where there is no bound.
    """

    odds: float
    joined: int
    seats: int
    nbytes: int
    saved: int
    sigma: float
    epsilon_server: float | None
    epsilon_devices: float | None


@dataclass(frozen=True, slots=True)
class Design:
    """One way to release counts.

    `m` users vote on average, `sigma` is the deviation of noise in all cohorts together, and
    `share` of all users shows a prefix about half the time. `error` is the relative standard error
    of a prefix that one user in a hundred has; `nbytes` are those of a vector of 100 prefixes of 27
    symbols. Epsilons are exact but for the closed forms, which are None where they say nothing.
    `invitation` is None where it would spare nobody.
    """

    mode: Mode
    theta: int
    m: int
    probability: float
    sigma: float
    share: float
    error: float
    nbytes: int
    epsilon: float
    epsilon_replace_one: float
    epsilon_server: float | None
    epsilon_kl: float | None
    epsilon_note: float | None
    invitation: Invitation | None


def designs(users: int, epsilon: float, delta: float, levels: int, items: int = 1) -> list[Design]:
    """Return the best design of each mode.

    Raises:
        ValueError: if a parameter is out of its range, or nothing meets the budget; says which.
    """
    if not 10 <= users <= _MOST_USERS:
        raise ValueError(f"--users must be within 10 and {_MOST_USERS:,}, not {users}")
    if not 1 <= levels <= 256:
        raise ValueError(f"--levels must be within 1 and 256, not {levels}")
    return [_design(mode, users, epsilon, delta, levels, items) for mode in MODES]


def terms_of(users: int) -> Terms:
    """Return terms for a sum over `users`, in as few cohorts as there can be."""
    cohorts = -(-users // _COHORT)
    size = -(-users // cohorts)
    least = max(3, size // 2)
    return Terms(cohort_size=size, minimum=least, cohorts=cohorts, mode="semi-honest")


def _design(
    mode: Mode, users: int, epsilon: float, delta: float, levels: int, items: int
) -> Design:
    question = TrieHhQuestion.model_validate(
        {
            "threshold": 1,
            "contribution": items,
            "domain": _LETTERS,
            "words": _WORDS,
            "epsilon": epsilon,
            "delta": delta,
            "mode": mode,
        }
    )
    terms = terms_of(users)
    made = design(question, terms, levels, levels)
    nbytes = _nbytes(made, terms)
    noise = made.most_variance(terms.cohorts, terms.dropout, least_honest(terms))
    ledger = Ledger(entries=(Entry(name="all", mechanism=loss_of(question, made, levels)),))
    least = made.probability * users / 100
    sights = {party: ledger.epsilon(delta, party) for party in PARTIES}
    replaced = ledger.epsilon(delta, "public", "replace-one")
    assert sights["public"] is not None  # each of the three is bounded for the public
    assert replaced is not None
    kl, note = _closed(mode, made.probability, made.threshold, delta, levels * items)
    return Design(
        mode=mode,
        theta=made.threshold,
        m=round(made.probability * users),
        probability=made.probability,
        sigma=math.sqrt(noise),
        share=made.threshold / (made.probability * users),
        error=math.sqrt(least * (1 - made.probability) + noise) / least,
        nbytes=nbytes,
        epsilon=sights["public"],
        epsilon_replace_one=replaced,
        epsilon_server=sights["server"],
        epsilon_kl=kl,
        epsilon_note=note,
        invitation=_invitation(question, made.probability, users, levels, nbytes),
    )


def _invitation(
    question: TrieHhQuestion, probability: float, users: int, levels: int, nbytes: int
) -> Invitation | None:
    """Return how to answer `question` by users of whom most stay away; None if none may."""
    m = probability * users
    odds = math.ceil(m + _DEVIATIONS * math.sqrt(m)) / users
    if odds >= 1 or question.contribution > 1:
        return None
    asked = TrieHhQuestion.model_validate(question.model_dump() | {"invited": odds})
    seats = seats_for(users, odds)
    terms = terms_of(seats)
    made = design(asked, terms, levels, levels)
    loss = loss_of(asked, made, levels)
    ledger = Ledger(entries=(Entry(name="all", mechanism=loss),))
    noise = made.most_variance(terms.cohorts, terms.dropout, least_honest(terms))
    joined = round(odds * users)
    each = _nbytes(made, terms)
    return Invitation(
        odds=odds,
        joined=joined,
        seats=seats,
        nbytes=each,
        saved=users * nbytes - joined * each,
        sigma=math.sqrt(noise),
        epsilon_server=ledger.epsilon(question.delta, "server"),
        epsilon_devices=ledger.epsilon(question.delta, "devices"),
    )


def _nbytes(made: Release, terms: Terms) -> int:
    return -(-_PREFIXES * _LETTERS.base * cell_bits(made, terms) // 8)


def _closed(
    mode: Mode, probability: float, theta: int, delta: float, releases: int
) -> tuple[float | None, float | None]:
    if mode != "sample-threshold":
        return None, None
    forms = (form(probability, theta, delta, releases) for form in (kl_epsilon, note_epsilon))
    kl, note = (value if math.isfinite(value) else None for value in forms)
    return kl, note


def advise(
    users: int, epsilon: float, delta: float, levels: int, items: int, json_path: str | None
) -> None:
    """Print the designs, and write them as JSON."""
    try:
        found = designs(users, epsilon, delta, levels, items)
    except ValueError as error:
        raise failed(error) from None
    if json_path != "-":
        _show(found, users, delta, levels)
    write_json(json_path, as_json(found, users, delta, levels))


def as_json(found: list[Design], users: int, delta: float, levels: int) -> dict[str, Any]:
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
        "invited": 1.0 if invitation is None else invitation.odds,
        "joined": users if invitation is None else invitation.joined,
        "seats": users if invitation is None else invitation.seats,
        "saved_bytes": 0 if invitation is None else invitation.saved,
        "designs": [asdict(one) for one in found],
        "recommended": recommended(found).mode,
    }


def recommended(found: list[Design]) -> Design:
    """Return the design that shows the rarest prefixes."""
    return min(found, key=lambda one: one.share)


def _show(found: list[Design], users: int, delta: float, levels: int) -> None:
    columns: list[tuple[str, Callable[[Design], str]]] = [
        ("theta", lambda one: f"{one.theta:,}"),
        ("users that vote (m)", lambda one: f"{one.m:,}"),
        ("noise, std. deviation", lambda one: f"{one.sigma:.4g}"),
        ("shown from a share of", lambda one: f"{one.share:.3g}"),
        ("error of a 1% prefix", lambda one: f"{one.error:.2%}"),
        ("bytes, 100 prefixes", lambda one: f"{one.nbytes:,}"),
        ("epsilon, add-remove", lambda one: f"{one.epsilon:.4g}"),
        ("epsilon, replace-one", lambda one: f"{one.epsilon_replace_one:.4g}"),
        ("epsilon to the server", lambda one: _cell(one.epsilon_server, "no bound")),
        ("epsilon by KL form", lambda one: _cell(one.epsilon_kl, "-")),
        ("epsilon by the note", lambda one: _cell(one.epsilon_note, "-")),
    ]
    rows = [(name, *map(cell, found)) for name, cell in columns]
    title = f"{users:,} users, {levels} levels, delta {delta:g} in all"
    show(table([""], [one.mode for one in found], rows, title), *_remarks(found, users))


def _remarks(found: list[Design], users: int) -> Iterator[str]:
    best, cohorts = recommended(found), terms_of(users).cohorts
    yield f"{best.mode} shows the rarest prefixes."
    if best.epsilon_server is None:
        yield (
            "Without noise the server sees the votes of single devices: only what it publishes "
            "is private."
        )
    for one in found:
        if one.invitation is not None:
            yield from _told_of(one, one.invitation, users)
    if cohorts > 1:
        yield (
            f"Each of {cohorts:,} cohorts has all of the noise for itself, since the server reads "
            "each sum."
        )


def _told_of(of: Design, by: Invitation, users: int) -> Iterator[str]:
    to_devices = _cell(by.epsilon_devices, "without bound")
    cost = (
        f"noise for the server, which sees who joins: deviation {by.sigma:.4g}"
        if of.sigma
        else f"epsilon to devices on the rosters, which see who joins: {to_devices}"
    )
    yield (
        f"{of.mode} with invited {by.odds:.4g}: each user joins a level by its own coin, "
        f"{by.joined:,} of {users:,}, and {of.m:,} vote as before. Have seats for {by.seats:,}. It "
        f"spares {by.saved / (users * of.nbytes):.0%} of all bytes, {by.saved / 1e9:.3g} GB for a "
        f"level of {_PREFIXES} prefixes, and takes {cost}."
    )


def _cell(value: float | None, none: str) -> str:
    return none if value is None else f"{value:.4g}"
