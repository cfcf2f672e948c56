"""The page on which a browser takes part: what it states, for which studies, and who reaches it."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import httpx

from protocol.mechanisms.registry import SUM_MECHANISMS
from server.http.join_paths import JoinPaths
from server.pages.rendering import assets
from tests.server.credentials import keyed, study_of
from tests.server.harness import Served, histogram_request
from tests.server.one_shot.rounds import PINNED, TERMS, create

ENCODERS = Path(__file__).parents[3] / "js" / "src" / "encode.js"
OPTIONS = {
    "mechanism": "tracked",
    "threshold": 5,
    "contribution": 2,
    "domain": {"kind": "listed", "items": ["fig", "pear"]},
    "message_bytes": 3000,
}
TOKEN = "abc_DEF-0123456789xyzA"


async def join_page(served: Served, study: str, status: int = 200) -> str:
    """Return the page without its markup's line breaks."""
    response = await served.client.get(f"/join/{study}")
    assert response.status_code == status
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert response.headers["referrer-policy"] == "no-referrer"
    return unescape(" ".join(response.text.split()))


async def test_the_page_states_what_is_asked_sent_and_seen_and_which_scripts_it_runs(
    served: Served,
) -> None:
    study = await create(served, question=OPTIONS, name="Which <fruit>?")
    page = await join_page(served, study)
    overview = unescape(" ".join((await served.client.get(f"/studies/{study}")).text.split()))
    lists = re.findall(r"<ul>(?:<li>[^<]*</li>)+</ul>", page)
    assert len(lists) == 4
    assert all(each in overview for each in lists[:3])  # who could see what
    for text in (
        "<bdi>Which <fruit>?</bdi>",
        "in encrypted shares for 7 members of a committee. Only exact sums of at least 4 devices",
        "<li>names no registrar, so its server could invent the other devices</li>",
        "<li>may sum as few as 4 devices, below 50</li>",
        'name="item" value="pear"',
        "<noscript>",
    ):
        assert text in page
    limits = json.loads(re.search(r'data-policy="(\{.*?\})"', page)[1])  # type: ignore[index]
    assert limits == {"committee": [*PINNED], "trust_server_identities": True, "min_cohort": 4}
    for name in ("blindtally-device.js", "join.js"):
        digest = sha256(assets()[name].body)
        assert f"<code>{digest.hexdigest()}</code>" in page
        integrity = b64encode(digest.digest()).decode()
        assert f'="../static/{name}" integrity="sha256-{integrity}"' in page
    assert not re.search(r'(?:href|src)="/|<script>|style=| on[a-z]+=', page)
    assert "Take part from this browser" in overview


async def test_other_studies_say_why_no_browser_can_take_part(served: Served) -> None:
    noisy = histogram_request()
    report = {"mechanism": "krr", "threshold": 1, "epsilon": 2}
    report |= {"domain": OPTIONS["domain"]}
    one_shot: dict[str, Any] = {"terms": TERMS, "timeouts": {"idle": 5}}
    registered = TERMS | {"registrar": "ab" * 32}
    text = {"kind": "utf8", "max_bytes": 4}
    segments = {"kind": "product", "segments": ["a", "b"], "inner": text}
    for reason, study in {
        "no sum that one message is enough for": await served.create(),
        "has not begun": await create(served, question=OPTIONS, start=False),
        "no browser makes messages": await create(served),
        "counts by segment": await create(served, question=OPTIONS | {"domain": segments}),
        "lets devices add noise": await served.create(
            **one_shot | {"question": noisy["question"], "terms": TERMS | {"minimum": 20}}
        ),
        "a registrar's signature": await create(served, question=OPTIONS, terms=registered),
        "one message is enough": await served.create(question=report),
    }.items():
        page = await join_page(served, study)
        assert reason in page
        assert "<form" not in page
        overview = (await served.client.get(f"/studies/{study}")).text
        assert "Take part from this browser" not in overview
    over = await create(served, question=OPTIONS)
    await served.client.post(f"/v1/studies/{over}/stop")
    assert "is over" in await join_page(served, over)
    for name in ("0123456789abcdef", "letters", "%3Cb%3E"):
        assert "There is no such study" in await join_page(served, name, 404)


async def test_who_has_the_link_to_a_closed_service_reads_this_page_only(closed: Served) -> None:
    headers = await keyed(closed)
    study = await study_of(closed, headers, question=OPTIONS, terms=TERMS)
    page = await join_page(closed, study)
    assert " data-closed>" in page
    for text in ("open service", "Log out", 'href="/'):
        assert text not in page
    assert (await closed.client.get(f"/studies/{study}")).status_code == 303
    assert (await closed.client.get(f"/v1/studies/{study}")).status_code == 401


def test_the_mechanisms_of_browsers_are_those_that_javascript_encodes() -> None:
    listed = re.search(r"const ENCODERS = \{(.*?)\};", ENCODERS.read_text(), re.DOTALL)
    assert listed
    encoded = {*re.findall(r'(?:^|,)\s*"?([a-z-]+)', listed[1])}
    assert encoded == {name for name, each in SUM_MECHANISMS.items() if each.is_in_javascript}


# Requests with their status; 0 if no part of the service answers, but the listener itself.
REACHED = [
    ("GET", "/{token}/join/{study}", 200),
    ("GET", "/{token}/static/join.js", 200),
    ("GET", "/{token}/static/app.css", 200),
    ("GET", "/{token}/v1/studies/{study}/rounds/open", 409),  # the committee convenes
    ("PUT", "/{token}/v1/studies/{study}/rounds/1/devices/" + "0" * 64 + "/message", 409),
    ("GET", "/join/{study}", 0),
    ("GET", "/" + TOKEN[:-1] + "B/join/{study}", 0),
    ("GET", "/" + TOKEN[:-1] + "/join/{study}", 0),
    ("GET", "/é/join/{study}", 0),
    ("GET", "/", 0),
    ("GET", "//{token}/join/{study}", 0),
    ("GET", "/{token}", 0),
    ("GET", "/{token}/", 0),
    ("GET", "/{token}/join/", 0),
    ("GET", "/{token}/join/{study}/", 0),
    ("GET", "/{token}/join/{study}%0A", 0),
    ("POST", "/{token}/join/{study}", 0),
    ("GET", "/{token}/studies/{study}", 0),
    ("GET", "/{token}/join/..%2Fstudies%2F{study}", 0),
    ("GET", "/{token}/static/..%2Fjoin%2F{study}", 0),
    ("GET", "/{token}/v1/studies", 0),
    ("POST", "/{token}/v1/studies", 0),
    ("GET", "/{token}/v1/studies/{study}", 0),
    ("GET", "/{token}/v1/studies/{study}/heavy-hitters", 0),
    ("GET", "/{token}/v1/studies/{study}/rounds/1", 0),
    ("POST", "/{token}/v1/studies/{study}/stop", 0),
    ("POST", "/{token}/v1/devices", 0),
    ("GET", "/{token}/docs", 0),
    ("GET", "/{token}/metrics", 0),
]


async def test_other_machines_reach_the_page_and_the_requests_of_a_device_only(
    served: Served,
) -> None:
    study = await create(served, question=OPTIONS)
    transport = httpx.ASGITransport(JoinPaths(served.app, TOKEN))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        for method, path, status in REACHED:
            response = await client.request(method, path.format(token=TOKEN, study=study))
            reached = response.status_code, "x-request-id" in response.headers
            assert reached == ((status, True) if status else (404, False)), path
