"""Pages of help: each term that a page links to, and each operation and document of the API."""

import re
import tomllib
from html import unescape
from pathlib import Path

import pytest

import server.api
import server.pages
from server.pages.forms.questions import QUESTION_FORMS
from server.pages.help import fields_of, operations_of, type_name
from tests.server.cohort import refused
from tests.server.harness import Served
from tests.server.pages.browsing import page_of

SOURCES = [
    path
    for ending in ("py", "html")
    for path in Path(server.pages.__path__[0]).rglob(f"*.{ending}")
]
MEANINGS = Path(server.api.__path__[0]) / "field_meanings.toml"
ANCHOR = re.compile(r'(?:macros\.help\(|help_anchor=)"([\w-]+)"')


async def test_each_help_link_leads_to_its_term(served: Served) -> None:
    page = await page_of(served, "/help")
    anchors = {anchor for path in SOURCES for anchor in ANCHOR.findall(path.read_text())}
    assert {"privacy", "phases", "sampling"} <= anchors
    missing = {anchor for anchor in anchors | QUESTION_FORMS.keys() if f'id="{anchor}"' not in page}
    assert missing == set()
    assert 'href="/help" aria-current="page"' in page


async def test_the_page_has_each_operation_and_each_document(closed: Served) -> None:
    answer = await closed.client.get("/docs")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'; base-uri")
    page = unescape(answer.text)
    document = (await closed.client.get("/openapi.json")).json()
    operations = [
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
    ]
    assert len(operations) > 30
    assert [each for each in operations if f"<code>{each}</code>" not in page] == []
    assert [name for name in document["components"]["schemas"] if f'id="{name}"' not in page] == []
    assert "DELETE /v1/studies/{study}" in operations


async def test_each_field_and_parameter_has_a_meaning_and_no_other_name_has(closed: Served) -> None:
    document = (await closed.client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    rows = [(name, *row) for name, each in schemas.items() for row in fields_of(each)]
    rows += [("", *row) for _, each in operations_of(document["paths"]) for row in each.parameters]
    names = {f"{name}.{field}" for name, field, *_ in rows} | {field for _, field, *_ in rows}
    assert tomllib.loads(MEANINGS.read_text()).keys() <= names
    assert [(name, field) for name, field, _, meaning in rows if not meaning] == []


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_what_strangers_may_read_is_made_once(
    closed: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifteen requests a second for the page took all of the time of the process."""
    client, partial = closed.client, {"HX-Request": "true"}
    first = [await client.get(path), await client.get(path, headers=partial)]
    monkeypatch.setattr(closed.app, "openapi", None)
    again = [
        await client.get(path, headers={"Host": "x.example"}),
        await client.get(path, headers=partial),
    ]
    assert [each.content for each in again] == [each.content for each in first]
    assert all(each.is_success and each.headers["x-request-id"] for each in again)
    assert len({each.headers["x-request-id"] for each in (*first, *again)}) == 4
    assert len(closed.app.state.public_responses) == 2


async def test_pages_that_load_scripts_from_elsewhere_are_off(served: Served) -> None:
    for path in ("/redoc", "/docs/oauth2-redirect"):
        refused(await served.client.get(path), 404, "not-found")


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"$ref": "#/components/schemas/Terms"}, "Terms"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string or null"),
        ({"type": "array", "items": {"type": "integer"}}, "list of integer"),
        ({"enum": ["a", "b"]}, "'a' or 'b'"),
        ({"const": 1}, "1"),
        ({}, ""),
    ],
)
def test_types_are_written_in_words(schema: dict[str, object], name: str) -> None:
    assert type_name(schema) == name
