"""Devices in JavaScript and in Python give the same vectors, and refuse the same plans."""

import json
import shutil
from pathlib import Path
from random import Random

import pytest
from playwright.sync_api import Page

from tests.js.node import run_node, run_page
from tests.js.random_plans import answer, random_case
from tests.js.test_bundle import BUNDLE

KNOWN = json.loads((Path(__file__).parents[1] / "vectors" / "encodings.json").read_text())


def test_vectors_and_refusals_are_the_known_ones(page: Page, tmp_path: Path) -> None:
    """In the modules with Node and Chromium, and in the bundle, which has shorter names."""
    unused = {"items": [], "random": "00" * 32, "choices": "00" * 32}
    refused, unanswered = KNOWN["plans_to_refuse"], KNOWN["plans_to_refuse_in_javascript"]
    shown = [unused | each for each in refused]
    shown += [unused | {"policy": {}} | each for each in unanswered]
    answers = run_node("encoding.mjs", [*KNOWN["encodings"], *shown])
    first = len(KNOWN["encodings"])
    assert answers[:first] == [each["answer"] for each in KNOWN["encodings"]]
    refusals = [each["refusal"] for each in answers[first:]]
    assert refusals == [each["limit"] for each in (*refused, *unanswered)]
    assert run_page(page, "encoding.mjs", [*KNOWN["encodings"], *shown]) == answers
    bundle = shutil.copy(BUNDLE, tmp_path / "bundle.mjs")
    cases = [*KNOWN["encodings"], *shown]
    assert run_node("encoding.mjs", {"bundle": str(bundle), "cases": cases}) == answers


@pytest.mark.parametrize("count", [50, 1_000])
def test_random_plans_have_the_same_answers_in_both_languages(count: int) -> None:
    rng = Random(count)
    cases = [random_case(rng) for _ in range(count)]
    assert run_node("encoding.mjs", cases) == [answer(case) for case in cases]
