"""Devices in JavaScript agree with the known answers, and refuse the plans that Python refuses."""

import json
from collections.abc import Iterator, Mapping
from copy import deepcopy
from random import Random
from typing import Any

import rfc8785
from playwright.sync_api import Page
from pydantic import ValidationError

from protocol.mechanisms.registry import read_plan
from tests.js.node import ROOT, run_node, run_page
from tests.js.random_plans import random_case
from tests.protocol.mechanism_examples import ONE_SHOT_EXAMPLES

FILES = "keys", "one_shot", "plans", "signatures"
VECTORS = ROOT / "tests" / "vectors"
KNOWN = json.loads(  # fields of plans are sorted
    rfc8785.dumps({name: json.loads((VECTORS / f"{name}.json").read_text()) for name in FILES})
)
VALUES = (-1, 0, 0.5, 1e18, 1e300, "x", "", "a" * 64, None, True, [], ["x"], {}, {"kind": "utf8"})
UNREAD = {"epsilon", "colluders", "mode", "relation", "theta"}
PLANS = "tracked, some items", "hierarchical-histogram, sampled", "triehh, sampled"


def expect_known_answers(results: Mapping[str, Any]) -> None:
    for name, result in results.items():
        file, cases = name.split()
        assert result == {"cases": len(KNOWN[file][cases]), "differing": []}, name
    assert len(results) == 14


def test_all_known_answers_agree_in_node() -> None:
    expect_known_answers(run_node("conformance.mjs", KNOWN))


def test_all_known_answers_agree_in_chromium(page: Page) -> None:
    expect_known_answers(run_page(page, "conformance.mjs", KNOWN))


def test_plans_with_a_wrong_field_are_refused_as_in_python() -> None:
    plans = [ONE_SHOT_EXAMPLES[f"{name}, in a one-shot sum"].plan() for name in PLANS]
    documents = [json.loads(plan.canonical_text()) for plan in plans]
    documents.append(random_case(Random(1), "number-sums")["plan"])
    changed = [each for document in documents for each in (document, *changes(document))]
    texts = [rfc8785.dumps(each).decode() for each in changed]
    mixed = json.dumps(dict(reversed(documents[0].items())), separators=(",", ":"))
    texts += [mixed, texts[0].replace('"study":"', '"study":"\\ud800')]
    verdicts = {text: is_accepted(text) for text in texts}
    expected = {text: verdict for text, verdict in verdicts.items() if verdict is not None}
    read = dict(zip(expected, run_node("plans.mjs", [*expected]), strict=True))
    assert [text for text in expected if read[text] != expected[text]] == []
    assert all(expected[rfc8785.dumps(each).decode()] for each in documents)


def changes(document: Any) -> Iterator[Any]:
    """Yield `document` with another value of each field that is read, without it, and with more.

    Of a list, the first entry is changed.
    """
    if isinstance(document, Mapping):
        yield document | {"unknown": 1}
        for name, value in document.items():
            yield {other: document[other] for other in document if other != name}
            for changed in () if name in UNREAD else (*VALUES, *changes(value)):
                yield document | {name: changed}
    elif isinstance(document, list) and document:
        for changed in (*VALUES, *changes(document[0])):
            yield [changed, *deepcopy(document[1:])]


def is_accepted(text: str) -> bool | None:
    """Return whether Python accepts a plan; None if it refuses what fields say together."""
    try:
        read_plan(text)
    except ValidationError as error:
        together = all(each["type"] == "value_error" for each in error.errors())
        return None if together else False
    except ValueError:  # the text is not canonical
        return False
    return True
