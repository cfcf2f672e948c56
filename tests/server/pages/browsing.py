"""Requests of a browser to the pages."""

import httpx

from server.pages.rendering import CONTENT_SECURITY_POLICY
from tests.server.harness import Served

SAME_ORIGIN = {"Origin": "http://test"}


async def page_of(served: Served, path: str, **headers: str) -> str:
    """Return a page."""
    response = await served.client.get(path, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    return response.text


async def post(served: Served, path: str, form: dict[str, str] | None = None) -> httpx.Response:
    """Send a form from a page of the service."""
    return await served.client.post(path, data=form, headers=SAME_ORIGIN)
