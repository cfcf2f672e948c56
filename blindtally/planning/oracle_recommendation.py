"""Recommendation of locally private reports: the mechanism with the smallest predicted error.

A dictionary of d values has one value more, for devices without an item. Strings without a
dictionary need prefix extension, of which only the smallest detected share is predicted. Detection
has a probability of 95%.
"""

import math
from typing import Any, get_args

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.tables import print_parts
from protocol.api.messages_outside_sums import packed_report_bytes
from protocol.mechanisms.registry import REPORT_MECHANISMS
from protocol.report_advice import GUESS_ERRORS, Goal, ReportWish, best_candidate, users_needed

MAX_USERS = 10**9
_MAX_STRING_BYTES = 512
_ERROR_DESCRIPTIONS: dict[str, str] = {
    "worst-mse": "the greatest variance of an item's share",
    "l1": "the sum of absolute errors of all shares",
    "l2": "the sum of squared errors of all shares",
    "heavy": "the smallest share that is detected",
}


def recommend_reports(
    users: int,
    domain: str,
    max_bytes: int,
    epsilon: float,
    goal: str,
    most: float,
    json_path: str | None,
) -> None:
    """Print the recommendation and write it as JSON; exit with code 1 if no mechanism works."""
    try:
        advice = choose_reports(users, domain, max_bytes, epsilon, goal, most)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-" and advice["works"]:
        _show(advice)
    write_json(json_path, advice)
    if not advice["works"]:
        needed = "more than 10^15"
        if advice["users_needed"] is not None:
            needed = f"{advice['users_needed']:,}"
        purpose = "to be better than a guess"
        if goal == "heavy":
            purpose = "to detect items that less than half of all users hold"
        raise exit_with_error(f"nothing works: it takes {needed} users {purpose}", code=1)


def choose_reports(
    users: int, domain: str, max_bytes: int, epsilon: float, goal: str, most: float = 1.0
) -> dict[str, Any]:
    """Return the best question for `users` devices, over strings or the given number of values.

    The result is the JSON document of the command.

    Raises:
        ValueError: if an argument is out of its range.
    """
    wish = _wish(users, domain, max_bytes, epsilon, goal, most)
    candidates = [each for some in REPORT_MECHANISMS.values() for each in some.candidates(wish)]
    best = best_candidate(candidates, wish)
    error, guess = best.error(users), GUESS_ERRORS[wish.goal]
    signed, enrolled = (packed_report_bytes(best.nbytes, has_registrar=r) for r in (False, True))
    mechanism = best.question["mechanism"]
    return {
        "mechanism": mechanism,
        "works": error < guess,
        "goal": goal,
        "error": error if math.isfinite(error) else None,
        "guess": guess,
        "bytes": best.nbytes,
        "bytes_signed": signed,
        "bytes_enrolled": enrolled,
        "seconds": best.seconds(users),
        "users_needed": users_needed(best, wish),
        "question": dict(best.question),
        # Strings are counted by an oracle of another name.
        "parameters": {k: v for k, v in best.parameters.items() if v != mechanism},
    }


def _wish(
    users: int, domain: str, max_bytes: int, epsilon: float, goal: str, most: float
) -> ReportWish:
    if not 1 <= users <= MAX_USERS:
        raise ValueError(f"--devices must be from 1 to {MAX_USERS:,}, not {users}")
    if goal not in get_args(Goal):
        raise ValueError(f"--goal must be one of {', '.join(get_args(Goal))}, not {goal!r}")
    if most != 1 and goal != "worst-mse":
        raise ValueError(f"--most goes with --goal worst-mse, not with {goal}")
    if not 0 < most <= 1:
        raise ValueError(f"--most must be above 0 and at most 1, not {most:g}")
    chosen: Any = goal
    if domain != "strings":
        if not domain.isdecimal():
            raise ValueError(f"--domain must be a number of values, or strings, not {domain!r}")
        return ReportWish(users, chosen, epsilon, int(domain), max_frequency=most)
    if goal != "heavy":
        raise ValueError(f"--goal must be heavy for strings without a dictionary, not {goal}")
    if max_bytes > _MAX_STRING_BYTES:
        raise ValueError(f"--max-bytes must be from 1 to {_MAX_STRING_BYTES}, not {max_bytes}")
    return ReportWish(users, chosen, epsilon, max_bytes=max_bytes)


def _show(advice: dict[str, Any]) -> None:
    parameters = ", ".join(f"{name} {value}" for name, value in advice["parameters"].items())
    comparison = f"better than a guess's {advice['guess']:g}"
    if advice["goal"] == "heavy":
        comparison = f"with probability 95%; it must be below {advice['guess']:g}"
    plural = "byte" if advice["bytes"] == 1 else "bytes"
    print_parts(
        f"{advice['mechanism']}: {parameters}",
        f"predicted: {_ERROR_DESCRIPTIONS[advice['goal']]} is {advice['error']:.3g}, {comparison}",
        f"a report takes {advice['bytes']} {plural}, {advice['bytes_signed']} with digest and "
        f"signature ({advice['bytes_enrolled']} with a registrar's); reading them all "
        f"{advice['seconds']:.2g} s",
        "To ask it, create a study with a question of threshold, domain and:",
    )
    write_json("-", advice["question"])
