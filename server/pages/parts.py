"""What pages have in common: the past as this process has read it, and what a study costs."""

from typing import Annotated, Final, cast

from fastapi import Depends, Request

from protocol.mechanisms import REPORTING
from protocol.messages import StudyView
from server.pages.history import Histories
from server.pages.words import tiny

MOST_ROUNDS: Final = 100  # of a study on one page, the last ones


async def _histories(request: Request) -> Histories:
    return cast("Histories", request.app.state.histories)


Past = Annotated[Histories, Depends(_histories)]


def cost(study: StudyView) -> str:
    """Return what a study costs a device in privacy, in a few words."""
    question = study.question
    epsilon = getattr(question, "epsilon", None)
    if epsilon is None:
        return "exact sums"
    if question.mechanism in REPORTING:
        return f"ε {epsilon:g} a report"
    return f"ε {epsilon:g}, δ {tiny(getattr(question, 'delta', 0))}"
