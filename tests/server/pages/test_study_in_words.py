"""The question of a study in words, for each kind of question and domain."""

import re
from html import unescape
from string import ascii_lowercase
from typing import Any

import pytest

from client.analyst.analyst import Study
from protocol.api.messages import HeavyHitter, StudyView
from server.pages.answer_summary import quality_chips, question_in_words
from server.pages.commands import fleet_command
from server.pages.forms.questions import QUESTION_FORMS
from tests.server.harness import Served, histogram_request, study_request
from tests.server.pages.browsing import page_of, post
from tests.server.pages.test_new_study import filled

SEGMENTS = {"question.domain.segments": "north\nsouth"}


PRIVATE = "The answer is differentially private, with an epsilon of 1."
CASES: list[tuple[str, dict[str, str], str, str]] = [
    ("tracked", {}, "Finds texts of up to 64 bytes with a total of 20 or more. There are 5", ""),
    (
        "tracked",
        SEGMENTS | {"rounds": "1", "question.message_bytes": "19784"},
        "Finds texts of up to 64 bytes in 2 segments with a total of 20 or more.",
        "--data my.csv",
    ),
    ("adaptive-iblt", {}, "Finds texts of up to 12 bytes with a total of", "--data words"),
    (
        "number-sums",
        SEGMENTS,
        "Finds the mean and the variance of numbers from 0 to 100 in 2 segments.",
        "--data my.csv",
    ),
    (
        "hierarchical-histogram",
        {},
        f"Finds the distribution of numbers from 0 to 100. {PRIVATE}",
        "--data ages",
    ),
    (
        "triehh",
        {"terms.cohorts": "50"},
        f"Finds the common ones among strings of up to 8 characters from {ascii_lowercase}. ",
        "--data my.csv",
    ),
    (
        "ocms-gf",
        {},
        "Counts 7 listed items, and lists those with a total of 20 or more. Each device adds noise",
        "--data my.csv",
    ),
]
PARTICIPATION = [
    ({}, "at most 200 devices; a device takes part in one of them, and gives at most 3 items."),
    (
        {"rounds": "1", "question.contribution": "1", "question.message_bytes": "19784"},
        "There is one round of at most 200 devices; a device gives one item.",
    ),
]


async def created(served: Served, kind: str, changes: dict[str, str]) -> StudyView:
    answer = await post(served, "/studies/new", filled(kind, **changes))
    where = answer.headers["location"]
    return StudyView.model_validate_json((await served.client.get(f"/v1{where}")).content)


@pytest.mark.parametrize(("kind", "changes", "words", "data"), CASES)
async def test_a_page_has_the_question_in_words_and_a_command(
    kind: str, changes: dict[str, str], words: str, data: str, served: Served
) -> None:
    view = await created(served, kind, changes)
    assert question_in_words(view).startswith(words)
    page = await page_of(served, f"/studies/{view.id}")
    assert f'id="asked">{question_in_words(view)}</p>' in page
    command = fleet_command(view, "http://test")
    options = f"--url http://test --study {view.id} {data}".strip()
    assert command.startswith(f"blindtally fleet {options}")
    assert command.endswith("--no-registrar") == (kind != "ocms-gf")
    assert f"<code>{command}</code>" in page


@pytest.mark.parametrize(("changes", "words"), PARTICIPATION)
async def test_it_states_what_a_device_gives(
    changes: dict[str, str], words: str, served: Served
) -> None:
    assert question_in_words(await created(served, "tracked", changes)).endswith(words)


async def test_an_exact_share_is_shown_without_an_error(served: Served) -> None:
    view = await created(served, "ocms-gf", {})
    count: dict[str, float] = {"estimate": 6, "standard_error": 0, "low": 6, "high": 6}
    for low, high, chips in ((0.5, 0.5, 0), (0.4, 0.6, 1)):
        first = HeavyHitter(item="a", share=0.5, share_low=low, share_high=high, **count)
        assert len([*quality_chips(view, None, [first], (), None)]) == chips


async def test_all_kinds_of_question_have_words(served: Served) -> None:
    for kind in QUESTION_FORMS:
        answer = await post(served, "/studies/new", filled(kind, key=kind))
        assert "Finds " in (page := await page_of(served, answer.headers["location"])) or (
            "Counts " in page
        )


@pytest.mark.parametrize(
    "changes", [{}, histogram_request(), {"question": {}}], ids=["items", "numbers", "segments"]
)
async def test_the_copied_queries_are_the_answer_and_have_no_key(
    served: Served, changes: dict[str, Any]
) -> None:
    if "question" in changes and not changes["question"]:
        inner = {"kind": "utf8", "max_bytes": 3}
        domain = {"kind": "product", "segments": ["a", "b"], "inner": inner}
        changes = {"question": study_request()["question"] | {"domain": domain}}
    study = await served.create(**changes)
    page = unescape(await page_of(served, f"/studies/{study}"))
    (address,) = re.findall(r"curl .*?'(http://test/v1/.*?)'", page)
    answer = await served.client.get(address)
    assert answer.status_code in (200, 409)  # nothing was counted yet
    (program,) = re.findall(r"(import os.*?)</code>", page, re.DOTALL)
    (method,) = re.findall(r"analyst\.study\(\"\w+\"\)\.(\w+)\(", program)
    assert hasattr(Study, method)
    compile(program, "copied", "exec")
    assert f"blindtally query {study} --url http://test" in page
    assert "btk_" not in page
