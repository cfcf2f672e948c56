"""Causes of the end of a study, and the sentence that explains each."""

from enum import StrEnum


class EndCause(StrEnum):
    """Causes of the end of a study; the values are stable, so that programs can depend on them."""

    GOAL = "goal"  # the expected precision and recall of its list reached its goal
    COMPLETE = "complete"  # its mechanism has nothing left to ask
    LAST_ROUND = "last-round"  # all of its rounds are over
    STOPPED = "stopped"  # by its analyst
    INTERNAL = "internal"  # a fault of the service: no further round could be planned


def end_sentence(cause: EndCause, number: int, rounds: int, *, has_goal: bool) -> str:
    """Return the reason of the end of a study of at most `rounds` rounds in round `number`."""
    where = f"in round {number:,} of at most {rounds:,}"
    if cause is EndCause.GOAL:
        return (
            f"The expected precision and recall of the list reached the goal {where}. "
            "They are expectations: the true values can be lower, above all if the list is short."
        )
    if cause is EndCause.COMPLETE:
        return f"The answer was complete {where}."
    if cause is EndCause.STOPPED:
        return f"The study was stopped {where}."
    if cause is EndCause.INTERNAL:
        return f"A fault of the service ended the study {where}."
    goal = ", and the list has not reached the goal" if has_goal else ""
    return f"All {rounds:,} rounds are over{goal}."
