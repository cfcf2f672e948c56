"""Preview of a study while its form is filled: from its plan, and from a simulation."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import pytest

from protocol.mechanisms.registry import AnyPlan
from server.pages.forms.fields import QUESTION_FORMS
from server.pages.forms.predictor import (
    ANSWER_SECONDS,
    AdviceLine,
    PartialPrediction,
    Predictor,
)
from tests.server.harness import Served
from tests.server.pages.test_new_study import COMMITTEE, filled, send

Predictions = AsyncGenerator[PartialPrediction]


@dataclass
class Source:
    """A source of predictions that counts how often it was prepared and closed."""

    predict: Callable[[AnyPlan], Predictions]
    prepared: int = 0
    closed: int = 0

    def prepare(self) -> None:
        self.prepared += 1

    def close(self) -> None:
        self.closed += 1


async def preview(served: Served, kind: str, **changes: str) -> str:
    answer = await send(served, filled(kind, **changes), "/studies/new/preview")
    assert answer.status_code == 200
    return answer.text


async def prediction(served: Served, **changes: str) -> str:
    answer = await send(served, filled("tracked", **changes), "/studies/new/prediction")
    assert answer.status_code == 200
    return answer.text


async def test_a_preview_shows_the_bytes_that_a_device_sends(served: Served) -> None:
    for kind in QUESTION_FORMS:
        text = await preview(served, kind)
        assert "A device sends" in text
        has_command = "blindtally plan --devices 200" in text
        assert has_command == (kind in ("tracked", "adaptive-iblt"))


async def test_a_preview_names_fields_by_their_labels(served: Served) -> None:
    changes = {"name": "", "rounds": "many", "terms.cohort_size": "50"}
    text = await preview(served, "tracked", **changes)
    assert "Rounds: must be a whole number, from 1 to 10,000" in text
    assert "“Devices in a cohort, at least” 100 is above “Devices in a cohort, at most” 50" in text
    assert "Name" not in text  # the preview does not need it
    assert not re.search("cohort_size|Input should|body", text)


async def test_a_preview_shows_what_one_lying_device_can_spoil(served: Served) -> None:
    assert "in every round: without a registrar" in await preview(served, "tracked")
    text = await preview(served, "tracked", **{"terms.cohorts": "4", "terms.registrar": "09" * 32})
    assert re.search("A lying device can spoil.*1 of 4 cohorts.*in one round", text, re.DOTALL)


async def test_a_preview_of_a_one_shot_sum_has_the_bytes_of_its_message(served: Served) -> None:
    text = await preview(served, "tracked", **COMMITTEE)
    (size,) = re.findall(r"A device sends.*?([\d.]+) kB", text, re.DOTALL)
    assert 3.5 < float(size) < 4.5  # about twice a table of 2 kB
    assert re.search("Colluders tolerated.*?1.*?of 7 members", text, re.DOTALL)
    assert "Shares of a device" not in text


async def test_a_preview_warns_of_a_sum_without_a_registrar(served: Served) -> None:
    warning = "Devices refuse it"
    assert warning in await preview(served, "tracked")
    assert warning not in await preview(served, "tracked", **{"terms.registrar": "09" * 32})
    assert warning not in await preview(served, "ocms-gf")


async def test_a_preview_warns_of_answers_that_may_show_items_of_few_devices(
    served: Served,
) -> None:
    """Devices with default settings refuse such studies, so nobody would take part."""
    form = {"terms.registrar": "09" * 32, "question.threshold": "4.5"}
    warning = "asks for items held 4.5 times, below 5"
    assert warning in await preview(served, "tracked", **form)
    assert warning not in await preview(served, "tracked", **form | {"question.threshold": "5"})


async def test_a_preview_shows_when_a_cell_is_published(served: Served) -> None:
    for kind in ("triehh", "hierarchical-histogram"):
        assert "A cell is published from" in await preview(served, kind)


async def test_a_preview_warns_of_strings_that_need_more_rounds(served: Served) -> None:
    assert "Rounds needed" not in await preview(served, "triehh")
    assert "with 5, only shorter ones are found" in await preview(served, "triehh", rounds="5")


async def test_a_study_is_predicted_on_request(served: Served) -> None:
    async def predict(plan: AnyPlan) -> Predictions:
        yield PartialPrediction([AdviceLine("F1", f"0.97 of {plan.rounds}", "<b>")])

    served.app.state.predictor = Predictor(Source(predict))
    assert 'hx-post="/studies/new/prediction"' in await preview(served, "tracked")
    text = await prediction(served, rounds="7")
    assert "0.97 of 7" in text
    assert "&lt;b&gt;" in text
    text = await prediction(served, rounds="0")
    assert "Rounds: must be from 1 to 10,000, not 0" in text
    assert "0.97" not in text


async def test_the_page_shows_that_a_prediction_runs_and_then_its_result(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.pages.forms.predictor.ANSWER_SECONDS", 0.01)
    goes_on, starts = asyncio.Event(), 0

    async def predict(_plan: AnyPlan) -> Predictions:
        nonlocal starts
        starts += 1
        await goes_on.wait()
        yield PartialPrediction([AdviceLine("F1", "0.97")])

    served.app.state.predictor = Predictor(Source(predict))
    for _ in range(2):
        text = await prediction(served)
        assert "Simulating, for 0 s so far" in text
        assert 'hx-trigger="load delay' in text  # the page requests it again
    monkeypatch.setattr("server.pages.forms.predictor.ANSWER_SECONDS", 60)
    goes_on.set()
    assert "0.97" in await prediction(served)
    assert starts == 1


async def test_a_rough_answer_is_shown_until_there_is_a_better_one(served: Served) -> None:
    goes_on = [asyncio.Event(), asyncio.Event()]

    async def predict(_plan: AnyPlan) -> Predictions:
        yield PartialPrediction([AdviceLine("F1", "0.8")], 1, 3)
        await goes_on[0].wait()
        yield PartialPrediction([AdviceLine("F1", "0.9")], 2, 3)
        await goes_on[1].wait()
        yield PartialPrediction([AdviceLine("F1", "0.95")], 3, 3)

    served.app.state.predictor = Predictor(Source(predict))
    text = await prediction(served)
    assert "A rough answer." in text
    assert "0.8" in text
    assert "1 of 3 steps are done" in text
    assert 'max="3" value="1"' in text
    goes_on[0].set()
    assert "0.9" in await prediction(served)
    goes_on[1].set()
    text = ""
    while "0.95" not in text or "rough" in text:
        text = await prediction(served)
    assert "Simulating" not in text


async def test_a_form_prepares_a_prediction_that_a_valid_study_may_request(served: Served) -> None:
    async def predict(_plan: AnyPlan) -> Predictions:
        yield PartialPrediction(())

    source = Source(predict)
    served.app.state.predictor = predictor = Predictor(source)
    await preview(served, "tracked", rounds="0")
    assert source.prepared == 0
    await preview(served, "tracked")
    assert source.prepared == 1
    await predictor.aclose()
    assert source.closed == 1


def test_a_first_answer_comes_within_two_seconds() -> None:
    assert ANSWER_SECONDS < 2


async def test_one_study_is_predicted_at_a_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.pages.forms.predictor.ANSWER_SECONDS", 0.01)
    goes_on = asyncio.Event()

    async def predict(plan: AnyPlan) -> Predictions:
        await goes_on.wait()
        yield PartialPrediction([AdviceLine("F1", f"0.97 of {plan.rounds}")])

    served.app.state.predictor = Predictor(Source(predict))
    assert "Simulating" in await prediction(served, rounds="7")
    assert "try again in a moment" in await prediction(served, rounds="8")
    monkeypatch.setattr("server.pages.forms.predictor.ANSWER_SECONDS", 60)
    goes_on.set()
    assert "0.97 of 7" in await prediction(served, rounds="7")
    assert "0.97 of 8" in await prediction(served, rounds="8")


async def test_a_prediction_ends_when_no_page_requests_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.pages.forms.predictor.ANSWER_SECONDS", 0.01)
    monkeypatch.setattr("server.pages.forms.predictor._ABANDONED_SECONDS", 0.05)
    ended = asyncio.Event()

    async def predict(_plan: AnyPlan) -> Predictions:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        yield PartialPrediction(())  # nobody ends it otherwise

    served.app.state.predictor = Predictor(Source(predict))
    assert "Simulating" in await prediction(served)
    async with asyncio.timeout(30):
        await ended.wait()


async def test_a_prediction_that_takes_too_long_is_reported(served: Served) -> None:
    async def predict(_plan: AnyPlan) -> Predictions:
        raise TimeoutError
        yield

    served.app.state.predictor = Predictor(Source(predict))
    assert "takes longer than this service allows" in await prediction(served)


async def test_a_failed_prediction_is_reported_and_stops_nothing(served: Served) -> None:
    async def predict(_plan: AnyPlan) -> Predictions:
        raise RuntimeError("text for the log")
        yield

    served.app.state.predictor = Predictor(Source(predict))
    for _ in range(2):
        text = await prediction(served)
        assert "the simulation failed" in text
        assert "text for the log" not in text


async def test_a_service_that_stops_ends_the_prediction_and_reports_it(served: Served) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def predict(_plan: AnyPlan) -> Predictions:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        yield PartialPrediction(())  # nobody ends it otherwise

    served.app.state.predictor = Predictor(Source(predict))
    asked = asyncio.create_task(prediction(served))
    await began.wait()
    served.service.notifier.shut_down()
    assert "the service is stopping" in await asked
    assert ended.is_set()
