"""Credentials of a closed service, and studies made with them."""

from datetime import timedelta

from server.principals import Permission
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


async def study_of(served: Served, headers: dict[str, str]) -> str:
    """Create a study with a key; return its id."""
    response = await served.client.post("/v1/studies", json=study_request(), headers=headers)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])
