"""Who asks, and when: tickets, places, and questions that wait for a phase to be over."""

from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from typing import Annotated

from fastapi import Depends, Header, Request, Response

from protocol.credentials import bearer, digest
from protocol.messages import Pending, ProblemType
from protocol.round import Phase
from secagg.errors import FaultyParticipantError
from server.api.parts import ParticipantId
from server.doorkeeper import address
from server.logs import concerning
from server.refusals import Refusal, cohort_failed, left_out, malformed
from server.service import Served, Service
from server.store.participants import Place, Standing
from server.watch import cohort_bell

ORDER = {phase: place for place, phase in enumerate(Phase)}


async def _ticket(authorization: Annotated[str | None, Header()] = None) -> bytes:
    """Return the SHA-256 of the ticket: nothing else of it is kept or compared."""
    ticket = bearer(authorization, "")
    if ticket is None:
        detail = "Authorization: Bearer and 32 random bytes in base64url are needed"
        raise Refusal(ProblemType.NOT_AUTHORISED, detail)
    return digest(ticket)


Ticket = Annotated[bytes, Depends(_ticket)]


async def _place(
    ticket: Ticket, participant: ParticipantId, request: Request, service: Served
) -> Place:
    try:
        place = await service.frozen.place(participant)
    except Refusal:
        if service.keeper.is_open:
            raise
        place = None  # strangers are not told who there is
    if place is None or not compare_digest(place.ticket, ticket):
        await service.keeper.fail(address(request.scope), "bad ticket", participant)
        raise Refusal(ProblemType.NOT_AUTHORISED, "this is another participant's ticket")
    service.keeper.count(f"participant {participant}")
    concerning(cohort_id=place.cohort)
    return place


Placed = Annotated[Place, Depends(_place)]


@contextmanager
def blame() -> Iterator[None]:
    """Turn what a body does wrong into the refusal of the body: nothing else changes."""
    try:
        yield
    except (ValueError, FaultyParticipantError) as error:
        raise malformed(str(error)) from None


async def past(
    service: Service, place: Place, what: str, closing: Phase, seconds: float
) -> Phase | Response:
    """Return the phase once `closing` is over, else, after `seconds`, the answer to give.

    Raises:
        Refusal: if the cohort failed, is over, or is not even in `closing`.
    """

    async def ask() -> Standing | None:
        standing = await service.store.participants.standing(place.cohort)
        return None if standing.phase is closing else standing

    found = await service.watch.until(cohort_bell(place.cohort), ask, seconds)
    standing = found or await service.store.participants.standing(place.cohort)
    if standing.phase is Phase.FAILED:
        raise cohort_failed(standing.failure)
    if standing.phase is closing:
        pending = Pending(phase=standing.phase, deadline=standing.deadline)
        headers = {"Retry-After": str(service.retry_after(least=0))}
        return Response(pending.model_dump_json(), 202, headers, "application/json")
    if standing.phase is Phase.SUMMED or ORDER[standing.phase] < ORDER[closing]:
        when = f"after {closing} and before the sum"
        detail = f"the cohort is {standing.phase}: ask for {what} {when}"
        raise Refusal(ProblemType.WRONG_PHASE, detail, phase=standing.phase)
    return standing.phase


async def refuse_silent(service: Service, place: Place, phase: Phase, kind: str) -> None:
    """Refuse whoever did not say in its phase, which is closed, what was asked for."""
    if place.slot not in await service.frozen.heard(place.cohort, kind):
        raise left_out(phase)
