"""Credentials of a closed service, and studies and devices that use them."""

from datetime import timedelta
from random import Random, SystemRandom
from typing import Any

from protocol.api.credentials import new_secret, possession_statement, secret_digest
from protocol.api.messages import EnrolmentRequest, RoundView
from secagg.keys import Identity
from server.db.repositories.access.credentials_and_audit import AccessRepository
from server.principals import Permission
from tests.server.device import Device
from tests.server.harness import Served, study_request

ALL_SCOPES = (Permission.READ, Permission.WRITE, Permission.OPERATE, Permission.SEAT)


def showing(secret: str) -> dict[str, str]:
    """Return the header that shows a secret."""
    return {"Authorization": f"Bearer {secret}"}


async def key_of(served: Served, *scopes: Permission, days: float | None = None) -> str:
    """Return a new key with `scopes`, or with all scopes."""
    lifetime = timedelta(days=days) if days else None
    _, secret = await served.store.access.create_key("test", scopes or ALL_SCOPES, lifetime)
    return secret


async def keyed(served: Served, *scopes: Permission, days: float | None = None) -> dict[str, str]:
    """Return the header that shows a new key."""
    return showing(await key_of(served, *scopes, days=days))


async def study_of(served: Served, headers: dict[str, str], **changes: Any) -> str:
    """Create a study with a key; return its id."""
    request = study_request(**changes)
    response = await served.client.post("/v1/studies", json=request, headers=headers)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


def book(served: Served) -> AccessRepository:
    access: AccessRepository = served.store.access
    return access


def application(identity: Identity, credential: str, **changes: Any) -> dict[str, Any]:
    raw = secret_digest(credential)
    signature = identity.sign(possession_statement(raw))
    request = EnrolmentRequest(
        identity=identity.public.hex(), credential=raw.hex(), signature=signature.hex()
    )
    return request.model_dump() | changes


async def enrolled(served: Served, token: str, identity: Identity) -> str:
    credential = new_secret(SystemRandom())
    asked = application(identity, credential)
    response = await served.client.post("/v1/devices", json=asked, headers=showing(token))
    assert response.status_code == 204, response.text
    return credential


async def seated(served: Served, study: str, token: str, name: str) -> Device:
    """Return a device that was let in by `token`, and has a seat."""
    device = Device(served.client, name, {"ab": 1}, Random(name), None)
    device.headers = showing(await enrolled(served, token, device.identity))
    path = f"/v1/studies/{study}/rounds/open"
    answer = await served.client.get(path, headers=device.headers, params={"wait": 10})
    await device.join(study, RoundView.model_validate_json(answer.content))
    return device
