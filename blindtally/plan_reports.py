"""Which locally private reports to ask for: the oracle of the least predicted error.

A dictionary of d values is asked by the oracle that `choosing.recommend` proposes, with one value
more for devices that have nothing to say. Strings without a dictionary take prefix extension;
of them only the least count that is found is predicted, since no error of all can be.
"""

import math
from dataclasses import dataclass
from typing import Any, get_args

from rich.console import Console

from blindtally.output import failed, write_json
from protocol.mechanisms import parse_question
from protocol.mechanisms.prefix_extension import PrefixQuestion
from protocol.oracles import goals
from protocol.oracles.choosing import Goal, Recommendation, recommend
from protocol.oracles.registry import oracle_of

MOST_USERS = 10**9
_MOST_VALUES = 2**32 - 1
_MEASURES: dict[str, str] = {
    "worst-mse": "the greatest variance of an item's share",
    "l1": "the sum of absolute errors of all shares",
    "l2": "the sum of squared errors of all shares",
    "heavy": "the least share that is found",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to ask, and what it is predicted to do; `users` are how many it takes to work."""

    goal: str
    mechanism: str
    question: dict[str, Any]
    parameters: dict[str, Any]
    error: float
    guess: float
    nbytes: int
    seconds: float
    users: int
    odds: str = "odds of 95%"

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
            "seconds": self.seconds,
            "users_needed": self.users,
            "question": self.question,
            "parameters": self.parameters,
        }


def advise(
    users: int, domain: str, max_bytes: int, epsilon: float, goal: str, json_path: str | None
) -> None:
    """Print what to ask, write it as JSON, and end with exit code 1 if nothing works."""
    try:
        advice = find(users, domain, max_bytes, epsilon, goal)
    except ValueError as error:
        raise failed(str(error)) from None
    if json_path != "-":
        _show(advice)
    if json_path is not None:
        write_json(json_path, advice.as_json())
    if not advice.works:
        why = f"nothing works: it takes {advice.users:,} users to do better than a guess"
        raise failed(why, code=1)


def find(users: int, domain: str, max_bytes: int, epsilon: float, goal: str) -> Advice:
    """Return what to ask `users` devices, each for `epsilon`, over so many values or of strings.

    Raises:
        ValueError: if `users`, `domain`, `epsilon` or `goal` is out of its range; says which.
    """
    if not 1 <= users <= MOST_USERS:
        raise ValueError(f"--users must be within 1 and {MOST_USERS:,}, not {users}")
    if goal not in get_args(Goal):
        raise ValueError(f"--goal must be one of {', '.join(get_args(Goal))}, not {goal!r}")
    if domain == "strings":
        return _of_strings(users, max_bytes, epsilon, goal)
    if not domain.isdecimal() or not 2 <= int(domain) <= _MOST_VALUES:
        wanted = f"a number of values within 2 and {_MOST_VALUES:,}, or strings"
        raise ValueError(f"--domain must be {wanted}, where --epsilon is given, not {domain!r}")
    wanted_goal: Any = goal
    return _of_values(recommend(users, int(domain) + 1, epsilon, wanted_goal), epsilon)


def _of_values(best: Recommendation, epsilon: float) -> Advice:
    oracle = best.oracle
    asked: dict[str, Any] = {"mechanism": oracle.name, "epsilon": epsilon}
    tried: list[goals.Goal] = ["l2", "worst-mse"]
    for goal in sorted(tried, key=lambda goal: goal != best.goal):
        if goals.oracle_for(oracle.name, epsilon, oracle.domain, goal) == oracle:
            asked["goal"] = goal
            break
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
    own = {"mechanism": "prefix-extension", "epsilon": epsilon}
    domain = {"kind": "utf8", "max_bytes": max_bytes}
    question = parse_question(own | {"threshold": 1, "domain": domain})
    assert isinstance(question, PrefixQuestion)
    oracle = oracle_of(question.chosen.parameters)
    extension = question.extension(oracle, bytes(32))
    lengths = len(extension.lengths)

    def share(n: int) -> float:
        return extension.least_count(n) / n

    needed = 1
    while share(needed) >= 1:
        needed = math.ceil(needed * 1.01)
    seconds = lengths * oracle.whole_ns(users // lengths) / 1e9
    return Advice(
        goal,
        question.mechanism,
        own | {"domain": domain},
        oracle.parameters | {"lengths": lengths},
        share(users),
        1.0,
        -(-extension.bits // 8),
        seconds,
        needed,
        "odds of one half",
    )


def _show(advice: Advice) -> None:
    if not advice.works:
        return  # and the command says how many users it takes
    screen = Console(soft_wrap=True)
    of = ", ".join(f"{k} {v}" for k, v in advice.parameters.items())
    screen.print(f"{advice.mechanism}: {of}")
    measure = _MEASURES[advice.goal] + (f", with {advice.odds}," if advice.goal == "heavy" else "")
    guess = f"better than a guess's {advice.guess:g}"
    screen.print(f"predicted: {measure} is {advice.error:.3g}, {guess}")
    plural = "byte" if advice.nbytes == 1 else "bytes"
    screen.print(
        f"a report takes {advice.nbytes} {plural}, reading them all {advice.seconds:.2g} s"
    )
    screen.print("To ask it, create a study with a question of threshold, domain and:")
    screen.print_json(data=advice.question)
