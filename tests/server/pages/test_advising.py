"""What is told of a study while its form is filled: from its plan at once, and by a simulation."""

import asyncio
import re
from collections.abc import Sequence

import pytest

from protocol.mechanisms import AnyPlan
from server.pages.advising import Line, Predictor
from server.pages.kinds import KINDS
from tests.server.harness import Served
from tests.server.pages.test_creating import filled, send


@pytest.mark.parametrize("kind", KINDS)
async def test_advice_says_what_a_device_would_send(served: Served, kind: str) -> None:
    answer = await send(served, filled(kind), "/studies/new/advice")
    assert answer.status_code == 200
    assert "A device sends" in answer.text
    assert ("blindtally plan --devices 200" in answer.text) == (
        kind in ("tracked", "adaptive-iblt")
    )


async def test_advice_on_what_cannot_be_asked_says_why(served: Served) -> None:
    form = filled("adaptive-iblt", **{"question.words": "3"})
    answer = await send(served, form, "/studies/new/advice")
    assert (answer.status_code, 'class="fault"' in answer.text) == (200, True)


async def test_advice_names_fields_by_their_labels(served: Served) -> None:
    form = filled("tracked", name="", rounds="many", **{"terms.cohort_size": "50"})
    told = (await send(served, form, "/studies/new/advice")).text
    assert "Rounds: must be a whole number, within 1 and 10,000" in told
    assert "“Devices in a cohort, at least” 100 is above “Devices in a cohort, at most” 50" in told
    assert "Name" not in told  # there is time for that
    assert not re.search("cohort_size|Input should|body", told)


@pytest.mark.parametrize("kind", ["triehh", "hierarchical-histogram"])
async def test_advice_says_from_how_many_devices_on_a_cell_shows(served: Served, kind: str) -> None:
    assert "A cell shows from" in (await send(served, filled(kind), "/studies/new/advice")).text


async def test_a_study_is_predicted_when_it_is_asked_for(served: Served) -> None:
    async def predict(plan: AnyPlan) -> Sequence[Line]:
        return [Line("F1", f"0.97 of {plan.rounds}", "<b>")]

    served.app.state.predictor = Predictor(predict)
    advice = await send(served, filled("tracked"), "/studies/new/advice")
    assert 'hx-post="/studies/new/prediction"' in advice.text
    answer = await send(served, filled("tracked", rounds="7"), "/studies/new/prediction")
    assert (answer.status_code, "0.97 of 7" in answer.text) == (200, True)
    assert "&lt;b&gt;" in answer.text
    answer = await send(served, filled("tracked", rounds="0"), "/studies/new/prediction")
    assert "Rounds: must be within 1 and 10,000, not 0" in answer.text
    assert "0.97" not in answer.text


async def test_one_study_is_predicted_at_a_time(served: Served) -> None:
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def predict(_plan: AnyPlan) -> Sequence[Line]:
        began.set()
        await goes_on.wait()
        return [Line("F1", "0.97")]

    served.app.state.predictor = Predictor(predict)
    first = asyncio.create_task(send(served, filled("tracked"), "/studies/new/prediction"))
    await began.wait()
    second = await send(served, filled("tracked"), "/studies/new/prediction")
    assert "ask again in a moment" in second.text
    goes_on.set()
    assert "0.97" in (await first).text


async def test_a_prediction_that_fails_is_said_and_stops_nothing(served: Served) -> None:
    async def predict(_plan: AnyPlan) -> Sequence[Line]:
        raise RuntimeError("with words for the log")

    served.app.state.predictor = Predictor(predict)
    for _ in range(2):
        answer = await send(served, filled("tracked"), "/studies/new/prediction")
        assert "could not be worked out" in answer.text
        assert "words for the log" not in answer.text


async def test_a_service_that_stops_ends_the_prediction_and_says_so(served: Served) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def predict(_plan: AnyPlan) -> Sequence[Line]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("nobody ends it otherwise")

    served.app.state.predictor = Predictor(predict)
    asked = asyncio.create_task(send(served, filled("tracked"), "/studies/new/prediction"))
    await began.wait()
    served.app.state.service.watch.release()
    answer = await asked
    assert ended.is_set()
    assert (answer.status_code, "the service is stopping" in answer.text) == (200, True)
