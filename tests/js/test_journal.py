"""A journal in JavaScript limits what a device sends, as the journal in Python does."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.js.node import ROOT, run_node, run_page

VECTOR = {"service": "http://a", "collection": "default", "message": ""}
IDENTITIES = json.loads((ROOT / "tests" / "vectors" / "device_identities.json").read_text())
STEPS = (  # day, study, round, message, whether every round asks again, limit that refuses it
    (20_000, "one", 1, "a", False, None),
    (20_001, "one", 1, "b", False, "once per study"),
    (20_001, "one", 1, "b", True, "once per round"),
    (20_001, "one", 2, "b", True, None),
    (20_002, "one", 3, "c", True, "max_rounds"),
    (20_032, "two", 1, "b", False, "max_exact_studies"),
    (20_033, "two", 1, "b", False, None),  # a second reading of the clock, a day later
    (19_000, "two", 2, "c", True, "clock"),  # before 2024
    (20_031, "two", 2, "c", True, "clock"),  # two days behind
)


def step(name: str, day: int, study: str, number: int, digest: str, again: bool) -> dict[str, Any]:
    plan = {"question": {"every_round": again}}
    vector = VECTOR | {"study": study, "round": number, "digest": digest}
    return vector | {"name": name, "day": day, "plan": plan}


@pytest.mark.parametrize("place", ["node", "page"])
def test_a_journal_in_javascript_limits_studies_and_identities_are_those_of_python(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    given = {
        "folder": str(tmp_path) if place == "node" else None,
        "identities": IDENTITIES["identities"],
        "steps": [step("steps", *each[:-1]) for each in STEPS],
        # Of many tabs or processes that record at the same time, one may send its message.
        "racing": [step("race", 20_000, "one", 1, str(message), False) for message in range(20)],
    }
    if place == "node":
        done = run_node("journal.mjs", given)
    else:
        page: Page = request.getfixturevalue("page")
        done = run_page(page, "journal.mjs", given)
    assert done["limits"] == [limit for *_, limit in STEPS]
    assert sorted(map(str, done["raced"])) == ["None", *["once per study"] * 19]
    known = [[each["identity"], each["credential"]] for each in IDENTITIES["identities"]]
    assert done["derived"] == known
    assert done["alone"] == ("both" if place == "node" else None)  # a page has one lock
