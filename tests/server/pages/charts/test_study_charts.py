"""Charts of a study's page: each is of one moment, and a faulty one costs the page no more."""

import re
from typing import Any, NoReturn
from xml.dom.minidom import parseString

import pytest
from structlog.testing import capture_logs

from server.pages.rendering import log_chart_fault
from tests.server.harness import Served, play
from tests.server.pages.browsing import page_of
from tests.server.pages.test_studies import HOSTILE, add_heavy_hitters

FAULT = "The chart could not be drawn."


async def played(served: Served, rounds: int) -> str:
    study = await served.create(rounds=rounds)
    for number in range(1, rounds + 1):
        await play(served, study, after=number - 1)
        await served.until_closed(study, number)
    return study


@pytest.mark.parametrize(
    ("target", "missing", "faults"),
    [
        ("server.pages.charts.study_charts._size_chart", 'id="chart-bytes"', 1),
        ("server.pages.charts.drawing.Chart.lines", 'id="chart-', 2),
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


async def test_each_chart_of_a_page_is_a_drawing_of_its_own(served: Served) -> None:
    study = await played(served, 2)
    page = await page_of(served, f"/studies/{study}")
    paths = re.findall(r'href="(/studies/\w+/charts/\w+\.svg)"', page)
    assert [path.rpartition("/")[2] for path in paths] == [
        *("items.svg", "capacity.svg", "bytes.svg")
    ]
    for path in paths:
        answer = await served.client.get(path)
        assert answer.headers["content-type"] == "image/svg+xml"
        drawing = parseString(answer.text)  # noqa: S318 - our own
        assert drawing.documentElement.getAttribute("width") == "720"
        assert "class=" not in answer.text  # its colours come with it
    unknown = await served.client.get(f"/studies/{study}/charts/none.svg")
    assert unknown.status_code == 404


async def test_hostile_items_are_text_in_a_drawing(served: Served) -> None:
    study = await served.create(name="<b> & \u05d0")
    await add_heavy_hitters(served, study, HOSTILE)
    answer = await served.client.get(f"/studies/{study}/charts/items.svg")
    drawing = parseString(answer.text)  # noqa: S318 - our own
    names = {node.tagName for node in drawing.getElementsByTagName("*")}
    assert names == {"svg", "title", "desc", "rect", "text", "tspan", "path"}
