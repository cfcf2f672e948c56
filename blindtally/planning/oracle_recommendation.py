"""Recommendation of locally private reports: the oracle with the smallest predicted error.

A dictionary of d values has one value more, for devices without an item. Strings without a
dictionary need prefix extension, of which only the smallest detected share is predicted. Detection
has a probability of 95%.
"""

import json
import math
from typing import Any, get_args

import typer

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.tables import print_parts
from protocol.api.device_messages import packed_report_bytes
from protocol.mechanisms.registry import parse_question
from protocol.mechanisms.reports.dictionary import MAX_DICTIONARY_ITEMS
from protocol.mechanisms.reports.prefix_extension import PrefixQuestion
from protocol.oracles.recommend import GUESS_ERRORS, Goal, Recommendation, min_users, recommend
from protocol.oracles.registry import ParameterGoal, oracle_for, oracle_from_parameters

MAX_USERS = 10**9
_MAX_STRING_BYTES = 512  # with prefix extension
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
    """Print the recommendation and write it as JSON; exit with code 1 if no oracle works."""
    try:
        advice = choose_oracle(users, domain, max_bytes, epsilon, goal, most)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-" and advice["works"]:
        _show(advice)
    write_json(json_path, advice)
    if not advice["works"]:
        users_needed = advice["users_needed"]
        needed = "more than 10^15" if users_needed is None else f"{users_needed:,}"
        purpose = "to be better than a guess"
        if goal == "heavy":
            purpose = "to detect items that less than half of all users hold"
        raise exit_with_error(f"nothing works: it takes {needed} users {purpose}", code=1)


def choose_oracle(
    users: int, domain: str, max_bytes: int, epsilon: float, goal: str, most: float = 1.0
) -> dict[str, Any]:
    """Return the best question for `users` devices, over strings or the given number of values.

    The result is the JSON document of the command.

    Raises:
        ValueError: if an argument is out of its range.
    """
    if not 1 <= users <= MAX_USERS:
        raise ValueError(f"--devices must be from 1 to {MAX_USERS:,}, not {users}")
    if goal not in get_args(Goal):
        raise ValueError(f"--goal must be one of {', '.join(get_args(Goal))}, not {goal!r}")
    if most != 1 and goal != "worst-mse":
        raise ValueError(f"--most goes with --goal worst-mse, not with {goal}")
    if not 0 < most <= 1:
        raise ValueError(f"--most must be above 0 and at most 1, not {most:g}")
    if domain == "strings":
        return _recommend_for_strings(users, max_bytes, epsilon, goal)
    if not domain.isdecimal() or not 2 <= int(domain) <= MAX_DICTIONARY_ITEMS:
        raise ValueError(
            f"--domain must be a number of values from 2 to {MAX_DICTIONARY_ITEMS:,}, or strings, "
            f"if --epsilon is given, not {domain!r}: the service has no larger dictionaries"
        )
    checked_goal: Any = goal
    best = recommend(users, int(domain) + 1, epsilon, checked_goal, max_frequency=most)
    return _recommend_for_dictionary(best, epsilon, most)


def _recommend_for_dictionary(best: Recommendation, epsilon: float, most: float) -> dict[str, Any]:
    oracle = best.oracle
    question: dict[str, Any] = {"mechanism": oracle.name, "epsilon": epsilon}
    tried: list[ParameterGoal] = ["l2", "worst-mse"]
    for goal in sorted(tried, key=lambda goal: goal != best.goal):
        if oracle_for(oracle.name, epsilon, oracle.domain, goal) == oracle:
            question["goal"] = goal
            break
    else:
        question |= {"goal": "worst-mse", "max_frequency": most}
    return {
        "mechanism": oracle.name,
        **_predicted_error(best.goal, best.error),
        **_report_sizes(best.nbytes),
        "seconds": best.seconds,
        "users_needed": best.users_needed,
        "question": question,
        "parameters": {k: v for k, v in oracle.parameters.items() if k != "oracle"},
    }


def _recommend_for_strings(users: int, max_bytes: int, epsilon: float, goal: str) -> dict[str, Any]:
    if goal != "heavy":
        raise ValueError(f"--goal must be heavy for strings without a dictionary, not {goal}")
    if max_bytes > _MAX_STRING_BYTES:
        raise ValueError(f"--max-bytes must be from 1 to {_MAX_STRING_BYTES}, not {max_bytes}")
    fields = {"mechanism": "prefix-extension", "epsilon": epsilon}
    fields |= {"domain": {"kind": "utf8", "max_bytes": max_bytes}}
    question = parse_question(fields | {"threshold": 1})
    assert isinstance(question, PrefixQuestion)
    oracle = oracle_from_parameters(question.chosen_oracle.parameters)
    extension = question.extension(oracle, bytes(32))
    lengths = len(extension.lengths)

    def detected_share(n: int) -> float:
        return extension.reliably_detected_count(n) / n

    return {
        "mechanism": question.mechanism,
        **_predicted_error("heavy", detected_share(users)),
        **_report_sizes(-(-extension.bits // 8)),
        "seconds": lengths * oracle.decode_ns(users // lengths) / 1e9,
        "users_needed": min_users(lambda n: detected_share(n) < GUESS_ERRORS["heavy"]),
        "question": fields,
        "parameters": oracle.parameters | {"lengths": lengths},
    }


def _predicted_error(goal: Goal, error: float) -> dict[str, Any]:
    """Return the fields on the error, compared with a guess; an infinite error is null."""
    guess = GUESS_ERRORS[goal]
    shown = error if math.isfinite(error) else None
    return {"works": error < guess, "goal": goal, "error": shown, "guess": guess}


def _report_sizes(report_bytes: int) -> dict[str, int]:
    """Return the bytes of a report alone, with digest and signature, and with a registrar's."""
    signed, enrolled = (packed_report_bytes(report_bytes, has_registrar=r) for r in (False, True))
    return {"bytes": report_bytes, "bytes_signed": signed, "bytes_enrolled": enrolled}


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
    typer.echo(json.dumps(advice["question"], indent=2))
