"""A clone has the values of its original, and names those that the form does not have."""

import re
from typing import Any

import pytest

from protocol.api.messages import StudyView
from server.pages.forms.cloning import lost_fields, values_of
from server.pages.forms.questions import QUESTION_FORMS, study_document
from tests.server.harness import Served, study_request
from tests.server.pages.browsing import page_of, post
from tests.server.pages.test_figures import close_two_rounds
from tests.server.pages.test_new_study import COMMITTEE, filled

TERMS = study_request()["terms"] | {"registrar": "09" * 32}


async def view_of(served: Served, study: str) -> StudyView:
    return StudyView.model_validate_json((await served.client.get(f"/v1/studies/{study}")).content)


@pytest.mark.parametrize("kind", QUESTION_FORMS)
async def test_a_clone_of_a_study_from_the_form_is_the_same_study(
    kind: str, served: Served
) -> None:
    changes = {}
    if kind in ("tracked", "number-sums"):
        changes["question.domain.segments"] = "north\nsouth"
    if kind == "adaptive-iblt":
        changes |= COMMITTEE
    if kind == "tracked":
        changes |= {"stop_at.precision": "0.95", "stop_at.recall": "0.9"}
    answer = await post(served, "/studies/new", filled(kind, **changes))
    study = answer.headers["location"].removeprefix("/studies/")
    view = await view_of(served, study)
    values = values_of(view)
    assert values["name"] == f"by {kind} (copy)"
    assert lost_fields(view, values) == []
    page = await page_of(served, f"/studies/new/from/{study}")
    assert f'A copy of <a href="/studies/{study}">' in page
    assert "has no field for" not in page
    form = values | {"question": kind, "key": "1" * 32}
    created = await post(served, "/studies/new", form)
    assert created.status_code == 303, re.findall(r"fault.*?</p>", created.text)
    copy = await view_of(served, created.headers["location"].removeprefix("/studies/"))
    salts = {"domain": {"salt"}}
    assert copy.question.model_dump(exclude=salts) == view.question.model_dump(exclude=salts)
    assert (copy.terms, copy.rounds, copy.timeouts) == (view.terms, view.rounds, view.timeouts)
    assert copy.stop_at == view.stop_at


@pytest.mark.parametrize(
    ("question", "lost"),
    [
        ({"confidence": 0.9}, ["Confidence"]),
        (
            {"domain": {"kind": "alphabet", "characters": "abc", "length": 3}},
            ["Item kind", "Characters", "Longest string", "Item pad"],
        ),
    ],
)
async def test_fields_that_the_form_does_not_have_are_named(
    question: dict[str, Any], lost: list[str], served: Served
) -> None:
    study = await served.create(question=study_request()["question"] | question, terms=TERMS)
    view = await view_of(served, study)
    assert lost_fields(view, values_of(view)) == lost
    page = await page_of(served, f"/studies/new/from/{study}")
    assert f"This form has no field for: {'; '.join(lost)}." in page
    assert f'value="{"09" * 32}"' in page


_LARGE_MESSAGE = {"question": study_request()["question"] | {"message_bytes": 20_000}}
_STRINGS = {"mechanism": "triehh", "threshold": 20, "contribution": 1, "message_bytes": 41_784}
_STRINGS |= {"epsilon": 4, "delta": 1e-6}
_VOLUNTEERS = {"sum": "one-shot", "committee": {"volunteers": 1000, "size": 100}}


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        (
            {"terms": TERMS | {"cohort_size": 2000, "minimum": 1000} | _VOLUNTEERS}
            | _LARGE_MESSAGE,
            "volunteers",
        ),
        (
            {
                "question": _STRINGS
                | {"domain": {"kind": "alphabet", "characters": "ab", "length": 4}}
            },
            "Item pad",
        ),
    ],
)
async def test_a_part_that_the_form_cannot_express_is_named(
    changes: dict[str, Any], lost: str, served: Served
) -> None:
    page = await page_of(served, f"/studies/new/from/{await served.create(**changes)}")
    assert re.search(f"This form has no field for: [^.]*{lost}", page)


async def test_a_study_of_a_kind_without_a_form_has_no_clone(served: Served) -> None:
    question = {
        "mechanism": "count-sketch",
        "threshold": 5,
        "contribution": 1,
        "domain": {"kind": "listed", "items": ["a", "b"]},
        "message_bytes": 2784,
    }
    study = await served.create(question=question)
    assert "/studies/new/from/" not in await page_of(served, f"/studies/{study}")
    assert (await served.client.get(f"/studies/new/from/{study}")).status_code == 404
    assert (await served.client.get("/studies/new/from/nobody")).status_code == 404


def test_a_document_of_values_is_that_of_the_form() -> None:
    values = dict.fromkeys(("name", "question.threshold"), "")
    assert "threshold" not in study_document(QUESTION_FORMS["tracked"], values)["question"]


async def test_an_empty_answer_links_to_clones_that_may_list_more(served: Served) -> None:
    question = study_request()["question"] | {"threshold": 50}
    study = await served.create(question=question, terms=TERMS, rounds=2)
    assert "Ask again with" not in await page_of(served, f"/studies/{study}")
    await close_two_rounds(served, study)
    await post(served, f"/studies/{study}/stop", {})
    links = re.findall(
        rf'"(/studies/new/from/{study}\?[^"]*)"', await page_of(served, f"/studies/{study}")
    )
    assert [link.partition("?")[2] for link in links] == ["threshold=5", "rounds=4"]
    for link, value in zip(links, ("5", "4"), strict=True):
        field = "question.threshold" if "threshold" in link else "rounds"
        assert re.search(rf'name="{field}"[^>]*value="{value}"', await page_of(served, link))
    for wrong in ("threshold=5x", "threshold=1e13", f"rounds=1{'0' * 400}", "rounds=0"):
        answer = await served.client.get(f"/studies/new/from/{study}?{wrong}")
        assert answer.status_code == 422
    page = await page_of(served, f"/studies/new/from/{study}?threshold=1234567.5")
    assert 'value="1234567.5"' in page


async def test_a_study_without_a_sum_is_asked_again_as_it_was(served: Served) -> None:
    """A lower threshold brings no devices."""
    study = await served.create(terms=TERMS)
    await post(served, f"/studies/{study}/stop", {})
    page = await page_of(served, f"/studies/{study}")
    assert f'Ask again with <a href="/studies/new/from/{study}">the same terms</a>.' in page
