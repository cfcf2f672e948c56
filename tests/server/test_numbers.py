"""Means of a study of numbers through the service: its API, its page, and its privacy."""

from typing import Any

import pytest

from protocol.estimation.number_summary import NumberSummaries
from tests.server.cohort import refused
from tests.server.harness import STEPS, Served, study_request, together
from tests.server.pages.browsing import page_of

INTERVAL = {"kind": "interval", "low": -0.5, "high": 99.5, "alpha": 10, "length": 2}
SEGMENTED = {"kind": "product", "segments": ["north", "south", "west"], "inner": INTERVAL}
ASKED = {"mechanism": "number-sums", "threshold": 2, "domain": SEGMENTED, "message_bytes": 1074}
TERMS = study_request()["terms"]
ROUNDS = (  # the rounds of a study: the items of their devices
    ("north:3", "north:5", "south:90", "south:94", "west:7", None),
    ("north:10", "north:12", "north:14", "south:1", None, None),
)


async def add_round(served: Served, study: str, number: int, held: tuple[str | None, ...]) -> None:
    devices = await served.join(study, len(held), number - 1)
    for device, item in zip(devices, held, strict=True):
        device.histogram = {} if item is None else {item: 1}
    await together(devices, *STEPS)
    assert (await served.until_closed(study, number)).state == "decoded"


async def means(served: Served, study: str, **params: Any) -> NumberSummaries:
    answer = await served.client.get(f"/v1/studies/{study}/numbers", params=params)
    assert answer.status_code == 200, answer.text
    return NumberSummaries.model_validate_json(answer.content)


async def test_segments_have_exact_means_over_the_rounds_with_enough_devices(
    served: Served,
) -> None:
    study = await served.create(question=ASKED, terms=TERMS, rounds=2)
    refused(await served.client.get(f"/v1/studies/{study}/numbers"), 409, "wrong-state")
    for number, held in enumerate(ROUNDS, 1):
        await add_round(served, study, number, held)
    answer = await means(served, study)
    assert [(row.segment, row.devices) for row in answer.results] == [
        (None, 7), ("north", 5), ("south", 2)
    ]  # fmt: skip
    total, north, south = answer.results
    assert [total.sum, north.sum, south.sum] == pytest.approx([228, 44, 184])
    assert (north.mean, north.variance) == (pytest.approx(8.8), pytest.approx(21.7))
    assert south.mean_low <= 92 <= south.mean_high == 99.5
    narrow = (await means(served, study, beta=0.5)).results[1]
    assert north.mean_low < narrow.mean_low < narrow.mean_high < north.mean_high
    heavy = await served.heavy_hitters(study)
    assert [(row.item, row.low, row.estimate, row.high) for row in heavy] == [
        ("north", 5, 5, 5), ("south", 2, 2, 2)
    ]  # fmt: skip


async def test_nobody_reads_the_sums_of_a_round_after_it_is_decoded(served: Served) -> None:
    """They have the number of the only device in the west."""
    study = await served.create(question=ASKED, terms=TERMS, rounds=1)
    await add_round(served, study, 1, ROUNDS[0])
    answer = await served.client.get(f"/v1/studies/{study}/rounds/1/cohorts/0/sum")
    assert "does not publish sums" in refused(answer, 409, "wrong-state")
    answer = await served.client.get(f"/v1/studies/{study}/rounds")
    assert "west" not in answer.text.replace(r"\"segments\":[\"north\",\"south\",\"west\"]", "")


async def test_the_page_of_a_study_shows_its_means(served: Served) -> None:
    study = await served.create(question=ASKED, terms=TERMS, rounds=1)
    assert "No answer yet" in await page_of(served, f"/studies/{study}")
    await add_round(served, study, 1, ROUNDS[0])
    page = await page_of(served, f"/studies/{study}")
    assert "Means" in page
    assert "No answer yet" not in page
    assert "alone in a segment" in page
    for number in ("192", "48", "92", "0 to 100"):
        assert f">{number}<" in page
    few = await served.create(question=ASKED | {"threshold": 5}, terms=TERMS, rounds=1)
    await add_round(served, few, 1, ROUNDS[0])
    assert "a round counts a segment from 5 devices in it" in await page_of(
        served, f"/studies/{few}"
    )


async def test_studies_of_other_mechanisms_have_no_means(served: Served) -> None:
    study = await served.create()
    answer = await served.client.get(f"/v1/studies/{study}/numbers")
    assert "sums no numbers" in refused(answer, 422, "malformed")
    unknown = await served.client.get("/v1/studies/nobody/numbers")
    refused(unknown, 404, "not-found")
    numbers = await served.create(question=ASKED)
    answer = await served.client.get(f"/v1/studies/{numbers}/quantiles?q=0.5")
    assert "Ask for the means of this study" in refused(answer, 422, "malformed")
