"""Devices in JavaScript agree with the known answers, and refuse the plans that Python refuses."""

import json
from collections.abc import Mapping
from random import Random
from typing import Any

import rfc8785
from playwright.sync_api import Page

from tests.js.node import ROOT, run_node, run_page
from tests.js.random_plans import MECHANISMS, changes, random_case, refusal_of, text_of

FILES = "encodings", "hashing", "keys", "one_shot", "plans", "signatures"
VECTORS = ROOT / "tests" / "vectors"
KNOWN = json.loads(  # fields of plans are sorted
    rfc8785.dumps({name: json.loads((VECTORS / f"{name}.json").read_text()) for name in FILES})
)


def expect_known_answers(results: Mapping[str, Any]) -> None:
    for name, result in results.items():
        file, cases = name.split()
        assert result == {"cases": len(KNOWN[file][cases]), "differing": []}, name
    assert len(results) == 17


def test_all_known_answers_agree_in_node() -> None:
    expect_known_answers(run_node("conformance.mjs", KNOWN))


def test_all_known_answers_agree_in_chromium(page: Page) -> None:
    expect_known_answers(run_page(page, "conformance.mjs", KNOWN))


def test_changed_plans_are_refused_as_in_python() -> None:
    rng = Random(1)
    documents = [random_case(rng, name)["plan"] for name in MECHANISMS]
    texts = [text for document in documents for text in (text_of(document), *changes(document))]
    mixed = json.dumps(dict(reversed(documents[0].items())), separators=(",", ":"))
    texts += [mixed, texts[0].replace('"study":"', '"study":"\\ud800')]
    read = dict(zip(texts, run_node("plans.mjs", texts), strict=True))
    assert [text for text in texts if read[text] != (refusal_of(text) is None)] == []
    assert all(read[text_of(each)] for each in documents)
    assert all(refusal_of(each["text"]) for each in KNOWN["encodings"]["impossible_plans"])
