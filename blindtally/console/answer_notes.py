"""Notes under an answer: why it is empty or short, and options that it does not list.

The reasons are those of `protocol/api/unlisted.py`, which the pages of a service show too.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from protocol.api.unlisted import (
    CountedRounds,
    limits_of_list,
    option_counts,
    range_of_unlisted,
    why_nothing_is_listed,
)

ENDS: Final = ("low", "high")  # columns of an interval

if TYPE_CHECKING:
    from protocol.api.messages import RoundView, StudyView


def notes_on_list(
    study: "StudyView", rounds: Sequence["RoundView"], listed: Sequence[str]
) -> list[str]:
    """Return the reason for an empty list, or the common items that a list may leave out."""
    if not rounds and listed:
        return []
    if not rounds:
        step = "start it" if study.state == "created" else "its first round is about to begin"
        step = "it is over: create another" if study.end_cause is not None else step
        return [f"No item is listed: no round of the study has begun ({step})."]
    counted, is_over = CountedRounds.of(rounds), study.end_cause is not None
    if listed:
        return limits_of_list(rounds[-1].plan, counted)
    return [why_nothing_is_listed(rounds[-1].plan, counted, is_over=is_over)]


def option_rows(
    rounds: Sequence["RoundView"], listed: Iterable[str], most: int
) -> tuple[list[tuple[str, str, str, str]], list[str]]:
    """Return at most `most` options that are not listed, with words for their counts, and a note.

    Each has the ends of its count, which are empty if the sums do not bound it. There are no
    options before the first sum, and without a list of options.
    """
    options = [*unlisted_rows(rounds, listed).items()]
    hidden = len(options) - max(most, 0)
    note = [f"{hidden:,} more options: {options[0][1]['unlisted']}"] if hidden > 0 else []
    shown = options[: max(most, 0)]
    return [
        (option, cells["unlisted"], *(f"{cells[end]:,.0f}" if end in cells else "" for end in ENDS))
        for option, cells in shown
    ], note


def unlisted_rows(rounds: Sequence["RoundView"], listed: Iterable[str]) -> dict[str, Any]:
    """Return the cells of options that are not listed: `unlisted`, and the ends of their counts."""
    ends = range_of_unlisted(rounds[-1].plan, CountedRounds.of(rounds)) if rounds else None
    interval = dict(zip(ENDS, map(float, ends), strict=True)) if ends else {}
    counts = unlisted_counts(rounds, listed)
    return {option: {"unlisted": words} | interval for option, words in counts.items()}


def unlisted_counts(rounds: Sequence["RoundView"], listed: Iterable[str]) -> dict[str, str]:
    """Return the options that are not listed, each with words for its count."""
    return option_counts(rounds[-1].plan, CountedRounds.of(rounds), listed) if rounds else {}


def with_threshold(rounds: Sequence["RoundView"], threshold: float | None) -> Sequence["RoundView"]:
    """Return `rounds` as if the question had this higher `threshold`, if one is given."""
    if threshold is None or not rounds:
        return rounds
    plan = rounds[-1].plan
    question = plan.question.model_copy(update={"threshold": threshold})
    asked = plan.model_copy(update={"question": question})
    return [*rounds[:-1], rounds[-1].model_copy(update={"plan": asked})]
