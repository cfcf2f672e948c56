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

from blindtally.output import failed, write_json
from blindtally.tables import show
from protocol.mechanisms import parse_question
from protocol.mechanisms.local import MOST_ITEMS
from protocol.mechanisms.prefix_extension import PrefixQuestion
from protocol.oracles import goals
from protocol.oracles.choosing import GUESS, Goal, Recommendation, least_users, recommend
from protocol.oracles.registry import oracle_of
from protocol.report import packed_bytes

MOST_USERS = 10**9
_MOST_BYTES = 512  # of strings that are found prefix by prefix
_BETTER = "to do better than a guess"
_MEASURES: dict[str, str] = {
    "worst-mse": "the greatest variance of an item's share",
    "l1": "the sum of absolute errors of all shares",
    "l2": "the sum of squared errors of all shares",
    "heavy": "the least share that is found",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to ask, and what it is predicted to do; `users` are how many it takes to work.

    None stands for more than 10^15 of them.
    """

    goal: str
    mechanism: str
    question: dict[str, Any]
    parameters: dict[str, Any]
    error: float
    guess: float
    nbytes: int
    seconds: float
    users: int | None

    @property
    def works(self) -> bool:
        """Return whether it does better than a guess."""
        return self.error < self.guess

    def as_json(self) -> dict[str, Any]:
        """Return what scripts read; an error that is infinite is null."""
        return {
            "mechanism": self.mechanism,
            "works": self.works,
            "goal": self.goal,
            "error": self.error if math.isfinite(self.error) else None,
            "guess": self.guess,
            "bytes": self.nbytes,
            "bytes_signed": packed_bytes(self.nbytes, has_registrar=False),
            "bytes_enrolled": packed_bytes(self.nbytes, has_registrar=True),
            "seconds": self.seconds,
            "users_needed": self.users,
            "question": self.question,
            "parameters": self.parameters,
        }


def advise(
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
        advice = find(users, domain, max_bytes, epsilon, goal, most)
    except ValueError as error:
        raise failed(error) from None
    if json_path != "-":
        _show(advice)
    write_json(json_path, advice.as_json())
    if not advice.works:
        needed = "more than 10^15" if advice.users is None else f"{advice.users:,}"
        what = "to find what less than half of all hold" if advice.goal == "heavy" else _BETTER
        raise failed(f"nothing works: it takes {needed} users {what}", code=1)


def find(
    users: int, domain: str, max_bytes: int, epsilon: float, goal: str, most: float = 1.0
) -> Advice:
    """Return what to ask `users` devices, each for `epsilon`, over so many values or of strings.

    Raises:
        ValueError: if `users`, `domain`, `max_bytes`, `epsilon`, `goal` or `most` is out of its
            range; says which.
    """
    if not 1 <= users <= MOST_USERS:
        raise ValueError(f"--users must be within 1 and {MOST_USERS:,}, not {users}")
    if goal not in get_args(Goal):
        raise ValueError(f"--goal must be one of {', '.join(get_args(Goal))}, not {goal!r}")
    if most != 1 and goal != "worst-mse":
        raise ValueError(f"--most goes with --goal worst-mse, not with {goal}")
    if not 0 < most <= 1:
        raise ValueError(f"--most must be above 0 and at most 1, not {most:g}")
    if domain == "strings":
        return _of_strings(users, max_bytes, epsilon, goal)
    if not domain.isdecimal() or not 2 <= int(domain) <= MOST_ITEMS:
        wanted = f"a number of values within 2 and {MOST_ITEMS:,}, or strings"
        raise ValueError(
            f"--domain must be {wanted}, where --epsilon is given, not {domain!r}: "
            "the service has no larger dictionaries"
        )
    wanted_goal: Any = goal
    best = recommend(users, int(domain) + 1, epsilon, wanted_goal, most=most)
    return _of_values(best, epsilon, most)


def _of_values(best: Recommendation, epsilon: float, most: float) -> Advice:
    oracle = best.oracle
    asked: dict[str, Any] = {"mechanism": oracle.name, "epsilon": epsilon}
    tried: list[goals.Goal] = ["l2", "worst-mse"]
    for goal in sorted(tried, key=lambda goal: goal != best.goal):
        if goals.oracle_for(oracle.name, epsilon, oracle.domain, goal) == oracle:
            asked["goal"] = goal
            break
    else:
        asked |= {"goal": "worst-mse", "most": most}
    parameters = {k: v for k, v in oracle.parameters.items() if k != "oracle"}
    return Advice(
        best.goal,
        oracle.name,
        asked,
        parameters,
        best.error,
        best.guess,
        best.nbytes,
        best.seconds,
        best.users,
    )


def _of_strings(users: int, max_bytes: int, epsilon: float, goal: str) -> Advice:
    if goal != "heavy":
        raise ValueError(f"--goal must be heavy for strings that nobody can list, not {goal}")
    if max_bytes > _MOST_BYTES:
        raise ValueError(f"--max-bytes must be within 1 and {_MOST_BYTES}, not {max_bytes}")
    own = {"mechanism": "prefix-extension", "epsilon": epsilon}
    domain = {"kind": "utf8", "max_bytes": max_bytes}
    question = parse_question(own | {"threshold": 1, "domain": domain})
    assert isinstance(question, PrefixQuestion)
    oracle = oracle_of(question.chosen.parameters)
    extension = question.extension(oracle, bytes(32))
    lengths = len(extension.lengths)

    def share(n: int) -> float:
        return extension.sure_count(n) / n

    guess = GUESS["heavy"]
    needed = least_users(lambda n: share(n) < guess)
    seconds = lengths * oracle.whole_ns(users // lengths) / 1e9
    return Advice(
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


def _show(advice: Advice) -> None:
    if not advice.works:
        return  # and the command says how many users it takes
    of = ", ".join(f"{k} {v}" for k, v in advice.parameters.items())
    guess = f"better than a guess's {advice.guess:g}"
    if advice.goal == "heavy":
        guess = f"with odds of 95%; it is to be below {advice.guess:g}"
    plural = "byte" if advice.nbytes == 1 else "bytes"
    signed, enrolled = (packed_bytes(advice.nbytes, has) for has in (False, True))
    show(
        f"{advice.mechanism}: {of}",
        f"predicted: {_MEASURES[advice.goal]} is {advice.error:.3g}, {guess}",
        f"a report takes {advice.nbytes} {plural}, {signed} with digest and signature ({enrolled} "
        f"with a registrar's); reading them all {advice.seconds:.2g} s",
        "To ask it, create a study with a question of threshold, domain and:",
    )
    typer.echo(json.dumps(advice.question, indent=2))
