"""What must be right about a request for a study before it is kept."""

import asyncio
from collections.abc import Mapping
from hashlib import sha256
from random import Random
from typing import Annotated, Any

from fastapi import Header, Request
from pydantic import ValidationError

from protocol.faults import faults_of
from protocol.messages import StudyRequest
from server.problems import fault_at
from server.refusals import Fault, Refusal, malformed_all
from server.service import Served
from server.settings import Settings
from server.store.asking import Asked, Limits, first_plan

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[!-~]{1,200}$",
        description="Of your choice, and new for each study: repeat a request with its key.",
    ),
]
CREATED: dict[str, Any] = {
    "headers": {
        "Location": {"schema": {"type": "string"}, "description": "Where the study is."},
        "Idempotent-Replayed": {
            "schema": {"const": "true"},
            "description": "The study was created by an earlier request with this key.",
        },
    }
}


def digest_of(request: StudyRequest) -> bytes:
    """Return the SHA-256 of what was asked: spaces and the order of names do not count."""
    return sha256(request.model_dump_json(exclude_unset=True).encode()).digest()


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
    faults = await all_faults(document, limits_of(service.settings))
    if faults:
        raise malformed_all(faults, 422)


async def all_faults(document: object, limits: Limits) -> list[Fault]:
    """Return every fault of what should be a StudyRequest, but those of a sound one's plan."""
    try:
        StudyRequest.model_validate(document)
    except ValidationError as error:
        found = faults_of(error, StudyRequest)
        faults = [fault_at(("body", *where), what) for where, what in found]
        return faults + (await _misfits(document, limits) if isinstance(document, Mapping) else [])
    return []


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
