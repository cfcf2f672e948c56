"""What must be right about a request for a study before it is kept."""

import asyncio
from collections.abc import Mapping
from random import Random

from fastapi import Request
from pydantic import ValidationError

from protocol.messages import StudyRequest
from server.problems import fault_of
from server.refusals import Fault, Refusal, malformed_all
from server.service import Served
from server.settings import Settings
from server.store.asking import Asked, Limits, first_plan


def limits_of(settings: Settings) -> Limits:
    """Return what an operator lets studies ask of one device."""
    return Limits(settings.max_upload_bytes, settings.most_epsilon, settings.most_delta)


async def whole(request: Request, service: Served) -> None:
    """Refuse a study for every fault: of its parts, and of how those that are sound fit together.

    A document without faults in its parts is left to the store, which makes its plan anyway.

    Raises:
        Refusal: if a part is at fault.
    """
    if not await request.body():
        return  # the framework says that it is missing
    document = await request.json()  # it can be read: what is no JSON does not come here
    try:
        StudyRequest.model_validate(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        faults = [fault_of({**each, "loc": ("body", *each["loc"])}) for each in found]
        if isinstance(document, Mapping):
            faults += await _misfits(document, limits_of(service.settings))
        raise malformed_all(faults, 422) from None


async def _misfits(document: Mapping[str, object], limits: Limits) -> list[Fault]:
    """Return why there is no plan; nothing if what a plan is made of is at fault itself."""
    try:
        asked = Asked.model_validate(document)
        await asyncio.to_thread(first_plan, asked, "none", limits, Random(0))
    except ValidationError:
        return []
    except Refusal as refusal:
        return list(refusal.errors or ())
    return []
