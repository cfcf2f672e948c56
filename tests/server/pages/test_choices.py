"""Choice of a mechanism by items and protection of devices, with and without scripts."""

import asyncio
import re

import pytest

from protocol.api.messages import StudyView
from protocol.description import HeldKind
from server.pages.forms.questions import (
    METHODS,
    QUESTION_FORMS,
    chosen_form,
    offered_forms,
    values_for,
)
from tests.server.harness import Served
from tests.server.pages.browsing import page_of
from tests.server.pages.test_new_study import error_at, filled, send


def test_each_kind_of_answer_has_all_three_methods() -> None:
    for held in HeldKind:
        offered = offered_forms(held)
        assert [each.method for each in offered] == list(METHODS)
        assert {each.question.held for each in offered} == {held}


@pytest.mark.parametrize(
    ("shown", "question", "holds", "chosen"),
    [
        ("tracked", "tracked", "texts", "tracked"),
        ("tracked", "triehh", "texts", "triehh"),
        ("tracked", "tracked", "numbers", "number-sums"),  # the method stays
        ("triehh", "triehh", "numbers", "hierarchical-histogram"),
        ("tracked", "triehh", "options", "count-median"),  # both changed, without scripts
        ("tracked", "number-sums", "texts", "number-sums"),  # one of all methods
        ("adaptive-iblt", "adaptive-iblt", "options", "tracked:options"),
        ("tracked", "tracked", "anything", "tracked"),
    ],
)
def test_the_choice_that_was_changed_decides(
    shown: str, question: str, holds: str, chosen: str
) -> None:
    assert chosen_form({"shown": shown, "question": question, "holds": holds}).key == chosen


def test_values_that_were_typed_stay_and_defaults_are_those_of_the_choice() -> None:
    form = filled("tracked", shown="tracked", **{"question.threshold": "33"})
    values = values_for(QUESTION_FORMS["prefix-extension"], form)
    assert (values["question.threshold"], values["name"]) == ("33", "by tracked")
    assert values["question.epsilon"] == "4"
    values = values_for(QUESTION_FORMS["prefix-extension"], filled("tracked", shown="tracked"))
    assert values["question.threshold"] == "1000"
    assert "start" not in values_for(QUESTION_FORMS["triehh"], {"shown": "tracked"})


async def test_the_form_asks_first_and_shows_what_one_will_get_without_scripts(
    served: Served,
) -> None:
    page = await page_of(served, "/studies/new")
    parts = ("What do you want to know?", "Who is asked?", "What does each device hold?")
    parts += ("How are the devices protected?", "All methods", "What you will get")
    places = [page.index(part) for part in parts]
    assert places == sorted(places)
    assert re.search(r"Expected F1</dt><dd><strong>0\.\d\d to", page)
    for kind in QUESTION_FORMS:
        assert page.count(f'value="{kind}" name="question"') == 1


async def test_a_choice_shows_its_fields_before_a_study_is_made(served: Served) -> None:
    form = filled("tracked", shown="tracked", holds="numbers", name="Which age?")
    for path in ("/studies/new/check", "/studies/new"):
        answer = await send(served, form, path)
        assert answer.status_code == 200
        assert 'name="shown" value="number-sums"' in answer.text
        assert 'value="Which age?"' in answer.text
    assert (await served.client.get("/v1/studies")).json()["studies"] == []


async def test_faults_are_at_their_fields_before_a_study_is_made(served: Served) -> None:
    changes = {"rounds": "many", "terms.cohort_size": "50", "question.domain.low": "500"}
    page = (await send(served, filled("number-sums", **changes), "/studies/new/check")).text
    assert "must be a whole number" in error_at(page, "rounds")
    assert "must be below “Highest value”" in error_at(page, "question.domain.low")
    assert "100 is above" in error_at(page, "terms.minimum")
    assert 'href="#f-rounds">Rounds: must be' in page
    assert error_at(page, "name") == ""


class _Devices:
    """Simulated devices that only note their studies."""

    registrar = "09" * 32
    study: str | None = None

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    def play(self, study: StudyView, host: str, port: int | None) -> None:
        assert (study.terms.registrar, host, port) == (self.registrar, "test", None)
        self.study = study.id


async def test_simulated_devices_answer_one_example_at_a_time(served: Served) -> None:
    assert "an example that runs" not in await page_of(served, "/studies/new")
    devices = served.app.state.simulator = _Devices()
    assert "an example that runs" in await page_of(served, "/studies/new")
    for made in await asyncio.gather(
        *(send(served, {"key": key}, "/studies/new/example") for key in "123")
    ):
        assert made.headers["location"] == f"/studies/{devices.study}"
    assert len((await served.client.get("/v1/studies")).json()["studies"]) == 1
