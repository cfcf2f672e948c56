"""What pages have in common: what they follow, what they recall, what a study costs."""

from typing import Annotated, Any, Final, cast

from fastapi import Depends, Request

from protocol.events import EventKind
from protocol.mechanisms import REPORTING
from protocol.messages import StudyView
from server.pages.history import Histories
from server.pages.words import tiny
from server.store import Store

MOST_ROUNDS: Final = 100  # of a study on one page, the last ones


async def _histories(request: Request) -> Histories:
    return cast("Histories", request.app.state.histories)


Recalled = Annotated[Histories, Depends(_histories)]


async def follow(store: Store, study: str) -> dict[str, Any]:
    """Return what a page's script follows of `study`: do this first, so that no event is missed."""
    last = await store.events.last((study,))
    return {"kinds": " ".join(EventKind), "last_event": last.get(study, 0)}


def cost(study: StudyView) -> str:
    """Return what a study costs a device in privacy, in a few words."""
    question = study.question
    epsilon = getattr(question, "epsilon", None)
    if epsilon is None:
        return "exact sums"
    if question.mechanism in REPORTING:
        return f"ε {epsilon:g} a report"
    return f"ε {epsilon:g}, δ {tiny(getattr(question, 'delta', 0))}"
