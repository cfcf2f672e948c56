"""Comparison of the ways in which a mechanism can release counts: coins, noise, or both."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.tables import format_epsilon, print_parts, result_table
from protocol.mechanisms.registry import MECHANISMS
from protocol.privacy.release import InvitedDesign, ReleaseDesign
from protocol.round_sizes import MAX_COHORT_SIZE

_EXAMPLE_PREFIXES = 100  # of a level whose size is shown


def compare_releases(
    mechanism: str,
    users: int,
    epsilon: float,
    delta: float,
    levels: int,
    items: int,
    json_path: str | None,
) -> None:
    try:
        designs = MECHANISMS[mechanism].release_designs(users, epsilon, delta, levels, items)
    except ValueError as error:
        raise exit_with_error(error) from None
    if (share := _recommended(designs).shown_share) >= 1:
        raise exit_with_error(
            f"{users:,} devices at epsilon {epsilon:g} show not even a prefix that all of them "
            f"hold: ask about {math.ceil(users * share):,} devices, or allow a larger epsilon"
        )
    if json_path != "-":
        _show(designs, users, delta, levels)
    first, invitation = designs[0], designs[0].invitation  # sample-threshold has theta and m
    document: dict[str, Any] = {
        "mechanism": mechanism,
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
    best, cohorts = _recommended(designs), -(-users // MAX_COHORT_SIZE)
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
