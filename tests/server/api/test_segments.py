"""Totals, shares and most frequent items by segment: over HTTP, on the page, and for analysts."""

import re
from typing import Any

import pytest

from protocol.api.segments import SegmentSummaries
from tests.server.cohort import refused
from tests.server.harness import STEPS, Served, study_request, together
from tests.server.pages.browsing import page_of

SEGMENTS = ["north", "south", "west"]
TEXT = {"kind": "product", "segments": SEGMENTS, "inner": {"kind": "utf8", "max_bytes": 3}}
HASHED = {"kind": "hashed-product", "segments": SEGMENTS, "max_bytes": 20}
DEVICES = (  # by device
    {"north:ab": 2}, {"north:ab": 2}, {"north:ab": 1, "south:ab": 1},
    {"north:c:d": 1, "south:ab": 1}, {"north:c:d": 1, "west:x": 1}, {"south:ab": 2},
)  # fmt: skip


async def counted(
    served: Served, mechanism: str, domain: dict[str, Any], rounds: int, threshold: int = 2
) -> str:
    """Return a study of which every round has the same devices' items."""
    asked = {"mechanism": mechanism, "threshold": threshold, "contribution": 2}
    terms = study_request()["terms"]
    study = await served.create(
        question=asked | {"domain": domain, "message_bytes": 9784}, terms=terms, rounds=rounds
    )
    for number in range(1, rounds + 1):
        devices = await served.join(study, len(DEVICES), number - 1)
        for device, histogram in zip(devices, DEVICES, strict=True):
            device.histogram = dict(histogram)
        await together(devices, *STEPS)
        assert (await served.until_closed(study, number)).state == "decoded"
    return study


async def read(served: Served, study: str, **params: Any) -> SegmentSummaries:
    answer = await served.client.get(f"/v1/studies/{study}/segments", params=params)
    assert answer.status_code == 200, answer.text
    return SegmentSummaries.model_validate_json(answer.content)


async def test_segments_have_totals_shares_and_their_first_items(served: Served) -> None:
    study = await counted(served, "adaptive-iblt", TEXT, 1)
    answer = await read(served, study)
    assert (answer.summed_rounds, answer.decoded_rounds) == (1, 1)
    north, south, west = answer.segments
    assert [row.segment for row in answer.segments] == SEGMENTS
    assert (north.total, north.total_low, north.total_high) == (7, 7, 7)
    assert (south.total, south.share) == (4, pytest.approx(4 / 11))
    assert (west.total, west.share, west.items) == (None, None, ())  # a single token
    assert [(row.item, row.estimate) for row in north.items] == [("ab", 5), ("c:d", 2)]
    shares = [row.segment_share for row in (*north.items, *south.items)]
    assert shares == pytest.approx([5 / 7, 2 / 7, 1])
    assert north.items[0].segment_share_low == north.items[0].segment_share  # counted exactly
    (first,) = (await read(served, study, limit=1)).segments[0].items
    assert (first.item, (await read(served, study, limit=1)).segments[0].heavy_hitters) == ("ab", 2)


async def test_texts_of_hashed_pairs_are_fetched(served: Served) -> None:
    study = await counted(served, "tracked", HASHED, 3, threshold=3)
    answer = await read(served, study)
    north, south, west = answer.segments
    assert [north.total, south.total] == pytest.approx([21, 12], rel=0.1)
    assert west.total == 3  # of three devices, which reach this threshold
    assert [row.item for row in north.items] == ["ab", "c:d"]
    assert [row.item for row in south.items] == ["ab"]


async def test_the_page_shows_segments(served: Served) -> None:
    study = await counted(served, "adaptive-iblt", TEXT, 1)
    page = await page_of(served, f"/studies/{study}")
    figures = page.split("<figure>")[1:]
    assert [re.findall(r"<bdi>(\w+)</bdi> <small>total (\d+)", each) for each in figures] == [
        [("north", "7")], [("south", "4")],
    ]  # fmt: skip
    assert all(each.count('<bdi class="item">') >= 2 for each in figures)  # the same items in each
    assert "<strong>71%</strong>" in figures[0]  # 5 of 7, on one scale with 4 of 4
    assert 'width="71.43"' in figures[0]
    assert 'width="100.00"' in figures[1]
    assert "No item is listed in <bdi>west</bdi>." in page
    assert 'id="as-count"' in page


async def test_studies_without_segments_are_refused(served: Served) -> None:
    study = await served.create()
    answer = await served.client.get(f"/v1/studies/{study}/segments")
    assert "has no segments" in refused(answer, 422, "malformed")
    refused(await served.client.get("/v1/studies/nobody/segments"), 404, "not-found")
    fresh = await served.create(question=study_request()["question"] | {"domain": TEXT})
    assert [row.total for row in (await read(served, fresh)).segments] == [None] * 3
