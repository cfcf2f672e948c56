"""Event stream of a study as Server-Sent Events, which a client resumes after a disconnection."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent

from protocol.api.events import Event
from server.api.dependencies import Caller, StudyId, problem_responses, require
from server.principals import Permission
from server.service import ServiceDep

router = APIRouter(prefix="/v1/studies/{study}", tags=["studies"])
_RECONNECT_MILLISECONDS = 2000  # until a browser reconnects after a broken connection
_MAX_EVENT_ID = 2**31 - 1
LastEventId = Annotated[
    int | None,
    Header(ge=0, le=_MAX_EVENT_ID, description="Id of the last event received; 0 for none."),
]
AfterEvent = Annotated[
    int,
    Query(
        ge=0,
        le=_MAX_EVENT_ID,
        description="Id of the last event received, for clients that cannot set Last-Event-ID.",
    ),
]


async def _stream(
    study: StudyId,
    service: ServiceDep,
    caller: Caller,
    last_event_id: LastEventId = None,
    after: AfterEvent = 0,
) -> AsyncIterator[AsyncIterator[Event]]:
    """Yield a stream, which counts as open until the response ends."""
    last = after if last_event_id is None else last_event_id
    await service.event_streams.check_can_follow(study, last)
    with service.event_streams.open(study):
        is_still_valid = partial(service.authenticator.is_still_valid, caller)
        yield service.event_streams.follow(study, last, is_still_valid)


EventStreamDep = Annotated[AsyncIterator[Event], Depends(_stream)]


@router.get(
    "/events",
    dependencies=[require(Permission.READ)],
    response_class=EventSourceResponse,
    responses=problem_responses(404, 409, 422),
)
async def events(stream: EventStreamDep) -> AsyncIterator[ServerSentEvent]:
    """Send each event of a study after `Last-Event-ID`, until the study ends.

    If the study has ended and no later event exists, the request is refused with 409, so that
    clients do not reconnect.
    """
    yield ServerSentEvent(retry=_RECONNECT_MILLISECONDS)
    async for event in stream:
        data = event.model_dump_json(exclude_none=True)
        yield ServerSentEvent(id=str(event.id), event=event.kind.value, raw_data=data)
