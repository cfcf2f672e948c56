"""Charts of a study's page: each is of one moment, and a faulty one costs the page no more."""

import asyncio
from dataclasses import FrozenInstanceError
from typing import Any, NoReturn

import pytest
from structlog.testing import capture_logs

from protocol.domains.strings import Utf8
from server.api.populations import study_statement
from server.pages import estimate_histories
from server.pages.estimate_histories import EstimateHistory
from server.pages.rendering import log_chart_fault
from tests.server.harness import Served, play
from tests.server.pages.browsing import page_of

FAULT = "The chart could not be drawn."


async def played(served: Served, rounds: int) -> str:
    study = await served.create(rounds=rounds)
    for number in range(1, rounds + 1):
        await play(served, study, after=number - 1)
        await served.until_closed(study, number)
    return study


async def test_a_page_shows_one_history_while_the_next_rounds_are_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round is read after the chart is made, and before the page is written."""
    study, gate = await played(served, 2), asyncio.Event()
    histories, loop = served.app.state.histories, asyncio.get_running_loop()
    view = await served.store.studies.show(study)
    rounds = await served.store.progress.round_summaries(study, 2)
    decode, statement = estimate_histories.decode_round, study_statement

    async def decode_late(*arguments: Any) -> Any:
        if arguments[2].round == 2:
            await gate.wait()
        return await decode(*arguments)

    async def read_the_rest() -> None:
        gate.set()
        while (await histories.history(view, rounds, 4000))[1]:
            pass  # each call waits for a moment

    def statement_after_the_rest(*arguments: Any) -> Any:
        asyncio.run_coroutine_threadsafe(read_the_rest(), loop).result(10)
        return statement(*arguments)

    monkeypatch.setattr(estimate_histories, "decode_round", decode_late)
    monkeypatch.setattr("server.pages.studies.study_statement", statement_after_the_rest)
    page = await page_of(served, f"/studies/{study}")
    assert 'aria-label="Estimates so far: 6"' in page
    assert "Later rounds are being read" in page
    assert FAULT not in page
    assert 'aria-label="Estimates so far: 6, 12"' in await page_of(served, f"/studies/{study}")


def test_a_history_that_a_page_has_cannot_change() -> None:
    history = EstimateHistory(Utf8(max_bytes=20))
    with pytest.raises(FrozenInstanceError):
        history.rounds = (1,)  # type: ignore[misc]
    assert all(isinstance(part, tuple) for part in (history.rounds, history.estimates))


@pytest.mark.parametrize(
    ("target", "missing", "faults"),
    [
        ("server.pages.charts._count_chart", 'id="chart-counts"', 1),
        ("server.pages.charts._words_chart", 'id="chart-words"', 1),
        ("server.pages.drawing.Chart.lines", 'id="chart-', 3),
        ("server.pages.answers.sparkline", "Estimates so far:", 0),
        ("server.pages.changes.rate_sparkline", "Rates by round:", 0),
    ],
)
async def test_a_chart_that_cannot_be_drawn_costs_the_chart_and_one_log_line(
    served: Served, monkeypatch: pytest.MonkeyPatch, target: str, missing: str, faults: int
) -> None:
    def explode(*_args: Any) -> NoReturn:
        raise ArithmeticError("the secret is 42")

    study = await played(served, 2)
    path = f"/studies/{study}" + ("/changes" if ".changes." in target else "")
    assert missing in await page_of(served, path)
    monkeypatch.setattr(target, property(explode) if target.endswith("lines") else explode)
    log_chart_fault.cache_clear()  # other tests have studies with the same id
    with capture_logs() as logs:
        pages = [await page_of(served, path) for _ in range(3)]
    for page in pages:
        assert missing not in page
        assert page.count(FAULT) == faults
        assert "secret" not in page
    logged = [line["chart"] for line in logs if line["event"] == "chart not drawn"]
    assert len(logged) == len(set(logged)) == max(faults, 1)
