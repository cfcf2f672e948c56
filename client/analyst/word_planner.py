"""Choice of the words of a question by simulation, before its study is created.

The planner is a part of the package `blindtally`, above this one, and needs its extra `simulate`.
It is imported only if it is used.
"""

from importlib import import_module
from typing import Final, Protocol, cast

from client.extras_installation import describe_missing
from protocol.mechanisms.registry import AnyQuestion
from protocol.question_and_plan import AUTO_WORDS, Terms

_PLANNER: Final = "blindtally.planning.recommended_words"


class WordPlanner(Protocol):
    """Module that chooses words."""

    def choose_words(self, question: AnyQuestion, terms: Terms, rounds: int) -> tuple[int, str]:
        """Return the words for a study, and a sentence with the reason."""


def choose_words(question: AnyQuestion, terms: Terms, rounds: int) -> tuple[AnyQuestion, str]:
    """Return `question` with chosen words, and the reason; unchanged unless its words are "auto".

    The reason is empty if nothing was chosen. The simulation takes seconds, or a minute for large
    studies.

    Raises:
        ModuleNotFoundError: if the simulation's dependencies are missing.
        ValueError: if no number of words suffices.
    """
    if getattr(question, "words", None) != AUTO_WORDS:
        return question, ""
    try:
        planner = cast("WordPlanner", import_module(_PLANNER))
        words, reason = planner.choose_words(question, terms, rounds)
    except ModuleNotFoundError as error:
        missing = describe_missing(error, "simulate")
        text = f'words="auto" simulates the study, which needs {missing}'
        raise ModuleNotFoundError(text, name=error.name) from error
    return question.model_copy(update={"words": words}), reason
