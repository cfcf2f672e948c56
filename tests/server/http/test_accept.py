"""Content negotiation: the weights of media types in Accept decide, and 0 refuses a type."""

import pytest
from starlette.types import Scope

from server.http.auth import shows_page
from server.http.response_headers import accepted_ranges, prefers
from tests.server.harness import Served, play


def scope_of(*fields: str, path: str = "/") -> Scope:
    headers = [(b"accept", field.encode("latin-1")) for field in fields]
    return {"type": "http", "method": "GET", "path": path, "headers": headers}


@pytest.mark.parametrize(
    ("fields", "is_preferred"),
    [
        (("text/csv",), True),
        (("TEXT/CSV; charset=utf-8",), True),
        (("text/*",), True),
        (("application/json;q=0.9", "text/csv"), True),
        (("*/*;q=0.1, text/csv ; Q=0.2",), True),
        ((), False),
        (("",), False),
        (("*/*",), False),
        (("application/json, text/csv",), False),
        (("text/csv;q=0",), False),
        (("text/csv;q=0, */*",), False),
        (("text/csv;q=0.000, text/*",), False),
        (("text/csv;q=0.5, application/json",), False),
        (("text/csv;q=nan",), False),
        (("text/csv;q=-1",), False),
        (("text/csvx",), False),
        (("application/text/csv",), False),
    ],
)
def test_csv_is_sent_only_to_who_gives_it_more_weight_than_json(
    fields: tuple[str, ...], is_preferred: bool
) -> None:
    assert prefers(scope_of(*fields), "text/csv", to="application/json") is is_preferred


def test_an_error_is_a_page_only_for_who_prefers_pages() -> None:
    browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
    assert shows_page(scope_of(browser, path="/mistyped"))
    for field in ("text/html;q=0, application/json", "*/*", "application/json, text/html;q=0.1"):
        assert not shows_page(scope_of(field, path="/mistyped"))


def test_ranges_keep_their_other_parameters() -> None:
    field = "application/openmetrics-text; version=1.0.0;q=0.75;escaping=values"
    (media_range,) = accepted_ranges(scope_of(field))
    assert media_range == "application/openmetrics-text; version=1.0.0;escaping=values"


async def test_metrics_are_not_sent_in_a_format_that_is_refused(served: Served) -> None:
    openmetrics = "application/openmetrics-text; version=1.0.0"
    for weight, is_sent in (("", True), (";q=0", False)):
        field = f"{openmetrics}{weight}, text/plain;q=0.5"
        answer = await served.client.get("/metrics", headers={"Accept": field})
        assert answer.headers["content-type"].startswith("application/openmetrics") is is_sent


async def test_head_of_every_document_has_the_headers_of_get_and_no_body(served: Served) -> None:
    """An event stream without an end is answered at once, too."""
    study = await served.create(rounds=2)
    await play(served, study)
    (device,) = await served.join(study, 1, after=1, first=6)
    path, base = f"/v1/studies/{study}", f"/studies/{study}"
    paths = ["/healthz", "/readyz", "/metrics", "/", "/help", "/v1/studies", path, base]
    paths += [f"{path}/heavy-hitters", f"{path}/rounds/1", f"{path}/rounds/9", "/nothing"]
    paths += [f"{path}/events", f"/v1/participants/{device.seat.participant}/roster"]
    ignored = {"x-request-id", "retry-after"}
    for each in paths:
        head = await served.client.head(each)
        assert head.content == b"", each
        if each.endswith("/events"):
            assert head.headers["content-type"].startswith("text/event-stream")
            continue
        get = await served.client.get(each)
        assert head.status_code == get.status_code, each
        of_head, of_get = (
            {name: value for name, value in answer.headers.items() if name not in ignored}
            for answer in (head, get)
        )
        if each not in {"/metrics", base, "/"}:  # they show times
            assert of_head == of_get, each
    posted = await served.client.head(f"{path}/start")
    assert posted.status_code == (await served.client.get(f"{path}/start")).status_code == 405
