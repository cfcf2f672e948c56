"""Heavy hitters over HTTP: summed over rounds, by pages, and as a table."""

import asyncio
import csv
import io
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from protocol.api.messages import HeavyHitterPage
from protocol.estimation.estimates import Estimate, ListQuality, add_estimates
from protocol.mechanism import Answer, Mechanism
from protocol.mechanisms.registry import MECHANISMS
from server.api.answers import heavy_hitters
from server.db.repositories.leases import close_round_job
from server.db.repositories.rounds.rounds import ClosedRound
from tests.server.harness import Served

QUALITY = ListQuality(expected_precision=0.9, expected_recall=0.8, expected_missed=1.5)
HOSTILE = ["=cmd()", "+1", "-1", "@x", "\tx", "<b>", 'a"b,c', "nul\0", "ünï", "a\nb"]


async def answer(served: Served, *rounds: Sequence[tuple[Any, ...]]) -> str:
    """Return a study whose rounds have these estimates: items, counts, variances, p-values."""
    study = await served.create(rounds=len(rounds))
    store = served.store
    for number, estimates in enumerate(rounds, start=1):
        plan = (await served.show_round(study, number)).plan
        decoded = tuple(Estimate(*estimate) for estimate in estimates)
        study_state = add_estimates(await store.answers.study_state(study), decoded)
        result = Answer(True, len(decoded), decoded, study_state)
        mechanism = MECHANISMS[plan.mechanism]
        heavy = Mechanism.final_estimates(mechanism, plan.question, study_state)
        following = plan.model_copy(update={"round": number + 1})
        outcome = ClosedRound("decoded", 6, result, tuple(heavy), QUALITY)
        lease = await store.leases.claim(close_round_job(study, number), "test", 60)
        await store.rounds.close(study, number, outcome, following, lease)
    return study


async def show(served: Served, study: str, **params: Any) -> HeavyHitterPage:
    response = await served.client.get(f"/v1/studies/{study}/heavy-hitters", params=params)
    assert response.status_code == 200, response.text
    return HeavyHitterPage.model_validate_json(response.content)


async def test_estimates_and_variances_add_up_over_rounds_and_reach_the_threshold(
    each_served: Served,
) -> None:
    study = await answer(
        each_served, [("a", 3, 4), ("b", 3.9, 1), ("c", 9, 9)], [("a", 1, 5), ("d", 4, 0)]
    )
    page = await show(each_served, study)
    shown = [(row.item, row.estimate, row.standard_error) for row in page.heavy_hitters]
    assert shown == [("c", 9, 3), ("a", 4, 3), ("d", 4, 0)]
    ends = [(hitter.low, hitter.high) for hitter in page.heavy_hitters]
    assert ends[0] == (pytest.approx(4.1, abs=0.1), 12)  # as many as there are devices
    assert ends[1][0] < 4 < ends[1][1]
    assert ends[2] == (4, 4)
    assert page.next is None


async def test_items_have_probabilities_and_the_list_has_its_expected_quality(
    each_served: Served,
) -> None:
    """The estimate of c has a standard deviation of 2; the probability of b is stored."""
    items = [("c", 9, 4), ("a", 4, 0), ("b", 6, 4, None, 0.7)]
    page = await show(each_served, await answer(each_served, items))
    by_item = {row.item: row for row in page.heavy_hitters}
    assert by_item["a"].probability == 1
    assert 0.99 < by_item["c"].probability < 1
    assert by_item["a"].top_probability is None
    assert page.quality == QUALITY


async def test_the_top_items_have_the_probability_of_being_among_them(served: Served) -> None:
    study = await answer(served, [("a", 30, 1), ("b", 9, 4), ("c", 9, 4), ("d", 4, 1)])
    page = await show(served, study, top=2)
    (first, second) = page.heavy_hitters
    assert (first.item, first.top_probability, page.next) == ("a", pytest.approx(1, abs=0.01), None)
    assert second.top_probability == pytest.approx(0.39, abs=0.05)
    assert len((await show(served, study, top=10)).heavy_hitters) == 4


async def test_a_threshold_may_be_raised_later_but_not_lowered(served: Served) -> None:
    study = await answer(served, [("a", 30, 1), ("b", 9, 4), ("c", 4, 0)])
    page = await show(served, study, threshold=9)
    assert [row.item for row in page.heavy_hitters] == ["a", "b"]
    assert page.heavy_hitters[1].probability == pytest.approx(0.58, abs=0.03)
    assert [row.item for row in (await show(served, study, threshold=10)).heavy_hitters] == ["a"]
    path = f"/v1/studies/{study}/heavy-hitters"
    refused = await served.client.get(path, params={"threshold": 3})
    assert refused.status_code == 422
    assert "agreed to a threshold of 4" in refused.json()["detail"]


async def test_intervals_end_at_what_all_devices_of_the_rounds_may_hold(served: Served) -> None:
    """Six devices, in one round and in two."""
    by_rounds = []
    for rounds in ([[("a", 10, 16)]], [[("a", 5, 8)], [("a", 5, 8)]]):
        study = await answer(served, *rounds)
        (row,) = (await show(served, study)).heavy_hitters
        by_rounds.append(row.high)
    assert by_rounds == [6, 12]


async def test_a_flag_is_in_the_page_and_in_the_table_until_the_study_ends(
    each_served: Served,
) -> None:
    flagged = ("a", 5.0, 1.0, 1e-9)
    study = await answer(each_served, [flagged, ("b", 5.0, 1.0)], [("a", 1.0, 1.0)])
    page = await show(each_served, study)
    assert [(row.item, row.cohort_p_value) for row in page.heavy_hitters] == [
        ("a", pytest.approx(1e-9)),
        ("b", None),
    ]
    path = f"/v1/studies/{study}/heavy-hitters"
    response = await each_served.client.get(path, params={"format": "csv"})
    first, second = list(csv.reader(io.StringIO(response.text, newline="")))[1:]
    assert (float(first[-2]), second[-2]) == (pytest.approx(1e-9), "")


async def test_pages_have_each_item_once_in_the_same_order_on_every_database(
    each_served: Served,
) -> None:
    items = [f"{letter}{number}" for letter in "bBäa\U0001f600z" for number in range(4)]
    study = await answer(each_served, [(item, 5 + len(item) % 2, 1) for item in items])
    seen: list[str] = []
    after = None
    while True:
        page = await show(each_served, study, limit=5, **({"after": after} if after else {}))
        seen += [hitter.item for hitter in page.heavy_hitters]
        after = page.next
        if after is None:
            break
    assert seen == sorted(items, key=str.encode)


async def test_an_unknown_cursor_is_malformed(served: Served) -> None:
    study = await served.create()
    path = f"/v1/studies/{study}/heavy-hitters"
    for after in ("x", "!!", "W10=", "WzEsIDJd", "bnVsbA==", "ü", "A" * 99):
        response = await served.client.get(path, params={"after": after})
        assert (response.status_code, response.json()["errors"][0]["location"]) == (
            422,
            "query.after",
        )


async def test_an_item_is_one_cell_also_if_semicolons_separate_cells(served: Served) -> None:
    study = await answer(served, [("a;=1+1;b", 5, 4)])
    response = await served.client.get(f"/v1/studies/{study}/heavy-hitters?format=csv")
    assert response.text.splitlines()[1].startswith('"a;=1+1;b",5.0,2.0,')
    rows = csv.reader(io.StringIO(response.text, newline=""), delimiter=";")
    assert [len(row) for row in rows] == [1, 1]


async def test_the_table_has_every_row_and_no_formula(served: Served) -> None:
    study = await answer(served, [(item, 5, 4) for item in HOSTILE])
    path = f"/v1/studies/{study}/heavy-hitters"
    for how in ({"params": {"format": "csv"}}, {"headers": {"Accept": "text/csv"}}):
        response = await served.client.get(path, **how)
        assert response.headers["content-type"] == "text/csv; charset=utf-8"
        head, *rows = csv.reader(io.StringIO(response.text, newline=""))
        assert head[:5] == ["item", "estimate", "standard_error", "low", "high"]
        assert head[5:8] == ["share", "share_low", "share_high"]
        assert head[8:] == ["cohort_p_value", "probability"]
        assert {row[0].removeprefix("'") for row in rows} == set(HOSTILE)
        assert not [row for row in rows if row[0].startswith(("=", "+", "-", "@", "\t"))]
        assert {tuple(row[1:3]) for row in rows} == {("5.0", "2.0")}


async def test_a_selection_is_computed_once_for_each_round_and_not_for_a_deleted_study(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = Mock(side_effect=heavy_hitters.top_items)
    monkeypatch.setattr(heavy_hitters, "top_items", top)
    first = await answer(served, [("a", 9, 4), ("b", 8, 1)])
    study = await answer(served, [("a", 9, 4), ("b", 8, 1), ("c", 7, 1)])
    pages = await asyncio.gather(*(show(served, study, top=2) for _ in range(8)))
    assert (top.call_count, len({page.model_dump_json() for page in pages})) == (1, 1)
    assert (await show(served, study, top=2, threshold=8.5)).heavy_hitters[0].item == "a"
    assert [row.item for row in (await show(served, study, top=3)).heavy_hitters] == [*"abc"]
    assert len((await show(served, first, top=2)).heavy_hitters) == 2
    assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
    gone = await served.client.get(f"/v1/studies/{study}/heavy-hitters", params={"top": 2})
    assert gone.status_code == 404
