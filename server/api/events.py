"""What happens in a study, as it happens: Server-Sent Events, resumed where they broke off."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from protocol.events import Event
from server.api.parts import StudyId, problems
from server.api.rights import Caller, needs
from server.principals import Right
from server.service import Served

router = APIRouter(prefix="/v1/studies/{study}", tags=["studies"])
_RETRY = 2000  # milliseconds until a browser whose stream broke off comes back
_MOST = 2**31 - 1
Last = Annotated[
    int | None, Header(ge=0, le=_MOST, description="The last event that is known; 0 for none.")
]
After = Annotated[
    int, Query(ge=0, le=_MOST, description="The same, for whoever cannot send the header.")
]


async def _stream(
    study: StudyId, service: Served, caller: Caller, last_event_id: Last = None, after: After = 0
) -> AsyncIterator[AsyncIterator[Event]]:
    """Yield a stream that has its place until the answer is over."""
    last = after if last_event_id is None else last_event_id
    await service.store.events.check(study, last)
    with service.streams.open(study):
        is_let_in = partial(service.keeper.still_lets_in, caller)
        yield service.streams.follow(study, last, is_let_in)


Stream = Annotated[AsyncIterator[Event], Depends(_stream)]


@router.get(
    "/events",
    dependencies=[needs(Right.READ)],
    response_class=EventSourceResponse,
    responses=problems(404, 409, 422),
)
async def events(stream: Stream) -> AsyncIterator[ServerSentEvent]:
    """Send each event of a study, from the one after `Last-Event-ID` on, until the study ends.

    A study that is over and has told everything is refused: do not come back.
    """
    yield ServerSentEvent(retry=_RETRY)
    async for event in stream:
        said = event.model_dump_json(exclude_none=True)
        yield ServerSentEvent(id=str(event.id), event=event.kind.value, raw_data=said)
