"""Page of rates over time: changes, rates by round, and another study."""

import re
from html import unescape

import pytest

from protocol.api.rates import RoundRate
from server.pages.charts.drawing import rate_sparkline
from tests.server.api.test_changes import play
from tests.server.harness import Served, histogram_request, study_request
from tests.server.pages.browsing import page_of

EARLY_COUNTS, LATE_COUNTS = {"ab": 40.0, "cd": 30.0}, {"ab": 42.0, "<b>": 50.0}


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


async def test_the_page_has_changes_and_rates_with_their_intervals(served: Served) -> None:
    study = await play(served, EARLY_COUNTS, LATE_COUNTS)
    assert f'href="/studies/{study}/changes"' in await page_of(served, f"/studies/{study}")
    page = await page_of(served, f"/studies/{study}/changes")
    text = text_of(page)
    assert "2 of 3 items changed from round 1 to round 2." in text
    assert "at most 5% of these changes are false" in text
    assert "cd gone gone 300 0" in text
    assert re.search(r"<b> new new 0 500 – .* to ∞", text)
    assert '<th scope="row"><bdi class="item">&lt;b&gt;</bdi>' in page
    assert page.count("<polygon") == 5  # two changed items and three by round
    assert "Another study" in text


async def test_items_are_searched_by_round(served: Served) -> None:
    study = await play(served, EARLY_COUNTS, LATE_COUNTS)
    page = await page_of(served, f"/studies/{study}/changes?q=A")
    by_round = text_of(page.partition('id="rates"')[2])
    assert "ab" in by_round
    assert "cd" not in by_round
    assert "420" in by_round
    assert "counted" in by_round
    nothing = await page_of(served, f"/studies/{study}/changes?q=zz")
    assert "No item contains" in nothing


async def test_two_studies_are_compared_on_the_page(served: Served) -> None:
    first, second = await play(served, EARLY_COUNTS), await play(served, LATE_COUNTS)
    text = text_of(await page_of(served, f"/studies/{first}/changes?compare={second}"))
    assert "2 of 3 items differ between the studies" in text
    assert re.search(r"<b> new new ≤ [\d.]+ 500", text)
    assert re.search(r"cd gone gone 300 ≤ [\d.]+", text)
    assert "different questions" not in text
    unknown = text_of(await page_of(served, f"/studies/{first}/changes?compare=nobody"))
    assert "there is no such study" in unknown


async def test_studies_are_selected_by_name_and_their_differences_are_shown(served: Served) -> None:
    first = await play(served, EARLY_COUNTS)
    page = await page_of(served, f"/studies/{first}/changes")
    assert "There is no other study with a round." in page
    question = study_request()["question"] | {"contribution": 1}
    second = await play(served, LATE_COUNTS, name="<later>", question=question)
    waits = await served.create(name="waits", start=False)
    page = await page_of(served, f"/studies/{first}/changes")
    options = re.findall(r'<option value="(\w+)" (selected)?>(.*?)</option>', page)
    assert options == [(second, "", "&lt;later&gt;, 2026-05-01 12:00:00 UTC")]
    compared = await page_of(served, f"/studies/{first}/changes?compare={second}")
    assert f'<option value="{second}" selected>' in compared
    assert "The studies ask different questions." in compared
    assert "the largest number of items that a device gives: 2, then 1" in compared
    chosen = await page_of(served, f"/studies/{first}/changes?compare={waits}")
    assert f'<option value="{waits}" selected>waits' in chosen  # and why it cannot be compared
    assert "has a sum yet" in chosen


async def test_a_study_without_rates_has_the_reason(served: Served) -> None:
    one_round = await play(served, {"ab": 40.0})
    page = text_of(await page_of(served, f"/studies/{one_round}/changes"))
    assert "two rounds whose sums were read" in page
    histogram = await served.create(**histogram_request(), start=False)
    page = text_of(await page_of(served, f"/studies/{histogram}/changes"))
    assert "totals only" in page


def test_a_sparkline_has_a_band_that_is_cut_where_it_is_wide() -> None:
    line = rate_sparkline([_rate(10, 5, 20), _rate(None, None, None), _rate(0, 0, 1000)])
    assert line is not None
    assert line.points == "2.0,12.0 94.0,22.0"
    assert line.band == "2.0,2.0 94.0,2.0 94.0,22.0 2.0,17.0"
    assert rate_sparkline([_rate(None, None, None)]) is None
    empty = rate_sparkline([_rate(0, 0, 4)])
    assert empty is not None
    assert empty.band == "2.0,2.0 2.0,22.0"


def _rate(rate: float | None, low: float | None, high: float | None) -> RoundRate:
    return RoundRate(
        item="a",
        first_round=1,
        last_round=1,
        devices=10,
        how="not read" if rate is None else "counted",
        rate=rate,
        low=low,
        high=high,
    )


@pytest.mark.parametrize("query", ["compare=a-b", "q=" + "x" * 201])
async def test_other_parameters_are_refused(served: Served, query: str) -> None:
    study = await served.create()
    response = await served.client.get(f"/studies/{study}/changes?{query}")
    assert response.status_code == 422
