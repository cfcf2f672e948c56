"""Which locally private reports to ask for: the oracle of the least predicted error.

A dictionary of d values is asked by the oracle that `choosing.recommend` proposes, with one value
more for devices that have nothing to say. Strings without a dictionary take prefix extension;
of them only the least count that is found is predicted, since no error of all can be. "Found" is
with odds of 95% for both.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, get_args

import typer

from blindtally.console.output import exit_with_error, write_json
from blindtally.console.tables import print_parts
from protocol.mechanisms.registry import parse_question
from protocol.mechanisms.reports.dictionary import MAX_DICTIONARY_ITEMS
from protocol.mechanisms.reports.prefix_extension import PrefixQuestion
from protocol.oracles import parameters as goals
from protocol.oracles.recommend import GUESS_ERRORS, Goal, Recommendation, min_users, recommend
from protocol.oracles.registry import oracle_from_parameters
from protocol.signed_report import packed_report_bytes

MAX_USERS = 10**9
_MAX_STRING_BYTES = 512  # of strings that are found prefix by prefix
_BETTER_THAN_A_GUESS = "to do better than a guess"
_ERROR_DESCRIPTIONS: dict[str, str] = {
    "worst-mse": "the greatest variance of an item's share",
    "l1": "the sum of absolute errors of all shares",
    "l2": "the sum of squared errors of all shares",
    "heavy": "the least share that is found",
}


@dataclass(frozen=True, slots=True)
class ReportRecommendation:
    """What to ask, and what it is predicted to do; `users` are how many it takes to work.

    None stands for more than 10^15 of them.
    """

    goal: str
    mechanism: str
    question: dict[str, Any]
    parameters: dict[str, Any]
    error: float
    guess_error: float
    report_bytes: int
    decode_seconds: float
    users_needed: int | None

    @property
    def works(self) -> bool:
        """Return whether it does better than a guess."""
        return self.error < self.guess_error

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read; an error that is infinite is null."""
        return {
            "mechanism": self.mechanism,
            "works": self.works,
            "goal": self.goal,
            "error": self.error if math.isfinite(self.error) else None,
            "guess": self.guess_error,
            "bytes": self.report_bytes,
            "bytes_signed": packed_report_bytes(self.report_bytes, has_registrar=False),
            "bytes_enrolled": packed_report_bytes(self.report_bytes, has_registrar=True),
            "seconds": self.decode_seconds,
            "users_needed": self.users_needed,
            "question": self.question,
            "parameters": self.parameters,
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
    """Print what to ask, write it as JSON, and end with exit code 1 if nothing works."""
    try:
        advice = choose_oracle(users, domain, max_bytes, epsilon, goal, most)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        _show(advice)
    write_json(json_path, advice.as_json())
    if not advice.works:
        needed = "more than 10^15" if advice.users_needed is None else f"{advice.users_needed:,}"
        what = (
            "to find what less than half of all hold"
            if advice.goal == "heavy"
            else _BETTER_THAN_A_GUESS
        )
        raise exit_with_error(f"nothing works: it takes {needed} users {what}", code=1)


def choose_oracle(
    users: int, domain: str, max_bytes: int, epsilon: float, goal: str, most: float = 1.0
) -> ReportRecommendation:
    """Return what to ask `users` devices, each for `epsilon`, over so many values or of strings.

    Raises:
        ValueError: if `users`, `domain`, `max_bytes`, `epsilon`, `goal` or `most` is out of its
            range; says which.
    """
    if not 1 <= users <= MAX_USERS:
        raise ValueError(f"--users must be within 1 and {MAX_USERS:,}, not {users}")
    if goal not in get_args(Goal):
        raise ValueError(f"--goal must be one of {', '.join(get_args(Goal))}, not {goal!r}")
    if most != 1 and goal != "worst-mse":
        raise ValueError(f"--most goes with --goal worst-mse, not with {goal}")
    if not 0 < most <= 1:
        raise ValueError(f"--most must be above 0 and at most 1, not {most:g}")
    if domain == "strings":
        return _recommend_for_strings(users, max_bytes, epsilon, goal)
    if not domain.isdecimal() or not 2 <= int(domain) <= MAX_DICTIONARY_ITEMS:
        wanted = f"a number of values within 2 and {MAX_DICTIONARY_ITEMS:,}, or strings"
        raise ValueError(
            f"--domain must be {wanted}, where --epsilon is given, not {domain!r}: "
            "the service has no larger dictionaries"
        )
    wanted_goal: Any = goal
    best = recommend(users, int(domain) + 1, epsilon, wanted_goal, max_frequency=most)
    return _recommend_for_dictionary(best, epsilon, most)


def _recommend_for_dictionary(
    best: Recommendation, epsilon: float, most: float
) -> ReportRecommendation:
    oracle = best.oracle
    asked: dict[str, Any] = {"mechanism": oracle.name, "epsilon": epsilon}
    tried: list[goals.ParameterGoal] = ["l2", "worst-mse"]
    for goal in sorted(tried, key=lambda goal: goal != best.goal):
        if goals.oracle_for(oracle.name, epsilon, oracle.domain, goal) == oracle:
            asked["goal"] = goal
            break
    else:
        asked |= {"goal": "worst-mse", "max_frequency": most}
    parameters = {k: v for k, v in oracle.parameters.items() if k != "oracle"}
    return ReportRecommendation(
        best.goal,
        oracle.name,
        asked,
        parameters,
        best.error,
        best.guess_error,
        best.nbytes,
        best.seconds,
        best.users_needed,
    )


def _recommend_for_strings(
    users: int, max_bytes: int, epsilon: float, goal: str
) -> ReportRecommendation:
    if goal != "heavy":
        raise ValueError(f"--goal must be heavy for strings that nobody can list, not {goal}")
    if max_bytes > _MAX_STRING_BYTES:
        raise ValueError(f"--max-bytes must be within 1 and {_MAX_STRING_BYTES}, not {max_bytes}")
    own = {"mechanism": "prefix-extension", "epsilon": epsilon}
    domain = {"kind": "utf8", "max_bytes": max_bytes}
    question = parse_question(own | {"threshold": 1, "domain": domain})
    assert isinstance(question, PrefixQuestion)
    oracle = oracle_from_parameters(question.chosen_oracle.parameters)
    extension = question.extension(oracle, bytes(32))
    lengths = len(extension.lengths)

    def share(n: int) -> float:
        return extension.reliably_detected_count(n) / n

    guess = GUESS_ERRORS["heavy"]
    needed = min_users(lambda n: share(n) < guess)
    seconds = lengths * oracle.decode_ns(users // lengths) / 1e9
    return ReportRecommendation(
        goal,
        question.mechanism,
        own | {"domain": domain},
        oracle.parameters | {"lengths": lengths},
        share(users),
        guess,
        -(-extension.bits // 8),
        seconds,
        needed,
    )


def _show(advice: ReportRecommendation) -> None:
    if not advice.works:
        return  # and the command says how many users it takes
    of = ", ".join(f"{k} {v}" for k, v in advice.parameters.items())
    guess = f"better than a guess's {advice.guess_error:g}"
    if advice.goal == "heavy":
        guess = f"with odds of 95%; it is to be below {advice.guess_error:g}"
    plural = "byte" if advice.report_bytes == 1 else "bytes"
    signed, enrolled = (packed_report_bytes(advice.report_bytes, has) for has in (False, True))
    print_parts(
        f"{advice.mechanism}: {of}",
        f"predicted: {_ERROR_DESCRIPTIONS[advice.goal]} is {advice.error:.3g}, {guess}",
        f"a report takes {advice.report_bytes} {plural}, "
        f"{signed} with digest and signature ({enrolled} "
        f"with a registrar's); reading them all {advice.decode_seconds:.2g} s",
        "To ask it, create a study with a question of threshold, domain and:",
    )
    typer.echo(json.dumps(advice.question, indent=2))
