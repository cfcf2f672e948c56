"""Choice of a question's `message_bytes` by simulation, before its study is created.

The planner is a part of the package `blindtally`, above this one, and needs its extra `simulate`.
It is imported only if it is used.
"""

from importlib import import_module
from typing import Final, Protocol, cast

from client.extras_installation import describe_missing
from protocol.mechanisms.registry import AnyQuestion
from protocol.question_and_plan import AUTO_BYTES, Terms

_PLANNER: Final = "blindtally.planning.recommended_size"


class SizePlanner(Protocol):
    """Module that chooses sizes."""

    def choose_size(self, question: AnyQuestion, terms: Terms, rounds: int) -> tuple[int, str]:
        """Return the `message_bytes` for a study, and a sentence with the reason."""


def choose_size(question: AnyQuestion, terms: Terms, rounds: int) -> tuple[AnyQuestion, str]:
    """Return `question` with chosen `message_bytes`, and the reason; unchanged without "auto".

    The reason is empty if nothing was chosen. The simulation takes seconds, or a minute for large
    studies.

    Raises:
        ModuleNotFoundError: if the simulation's dependencies are missing.
        ValueError: if no size suffices.
    """
    if getattr(question, "message_bytes", None) != AUTO_BYTES:
        return question, ""
    try:
        planner = cast("SizePlanner", import_module(_PLANNER))
        size, reason = planner.choose_size(question, terms, rounds)
    except ModuleNotFoundError as error:
        missing = describe_missing(error, "simulate")
        text = f'message_bytes="auto" simulates the study, which needs {missing}'
        raise ModuleNotFoundError(text, name=error.name) from error
    return question.model_copy(update={"message_bytes": size}), reason
