"""Pages of the list and of a study: they show the same data as the API, as text."""

import csv
import io
import re
from html import unescape
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import urlencode
from xml.dom.minidom import parseString

import numpy as np
import pytest
from sqlalchemy import insert
from sqlalchemy.exc import OperationalError

from protocol.api.messages import HeavyHitter, HeavyHitterPage
from protocol.api.phases import Phase
from protocol.mechanisms.central.hierarchical_histogram import (
    COUNTS_ARRAY,
    NOISE_ARRAY,
    SAMPLING_VARIANCE_ARRAY,
)
from protocol.study_state import StudyState
from server.db.schema import HeavyHitterRow, StudyStateRow
from server.pages.answers import unresolved_keys
from server.pages.charts.drawing import Bar, Bars, estimate_bars
from server.pages.charts.round_history import RoundSize
from server.pages.rounds import round_progress
from tests.server.harness import Served, histogram_request, play, study_request, together
from tests.server.pages.browsing import page_of, post
from tests.server.pages.test_rounds import received

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "{{ 7 * 7 }}{% raw %}",
    "abc\u202etxt.exe",
    "\u05d0\u05d1\u05d2 123",
    "nul \u0000 and alert \u0007",
    "\ud800 alone",
    "=cmd|' /C calc'!A0",
    "x" * 1024,
)


async def add_heavy_hitters(
    served: Served, study: str, items: tuple[str, ...], **changes: Any
) -> None:
    rows = [
        {"study": study, "item": item, "estimate": 1000.0 - index, "variance": 4.0} | changes
        for index, item in enumerate(items)
    ]
    database = served.store.database
    await database.write(lambda session: session.execute(insert(HeavyHitterRow), rows))


def items_in(page: str) -> list[str]:
    shown = re.findall(
        r'<th scope="row" role="rowheader"><bdi class="item"[^>]*>(.*?)</bdi>', page, re.DOTALL
    )
    return [unescape(item) for item in shown]


async def test_an_empty_list_has_the_next_steps_and_an_example(served: Served) -> None:
    page = await page_of(served, "/")
    for words in ("<strong>Ask.</strong>", "Let devices take part.", "Read the answer"):
        assert words in page
    (key,) = re.findall(r'name="key" value="(\w+)"', page)
    for _ in range(2):  # a double click makes one study
        made = await post(served, "/studies/new/example", {"key": key})
        assert made.status_code == 303
    page = await page_of(served, made.headers["location"])
    assert "Its first round waits for devices." in page
    assert "Let at least 90 devices take part." in page
    assert "state running" in page
    listed = await page_of(served, "/")
    assert listed.count('<tr id="study-') == 1
    assert "Load the example" not in listed


async def test_the_running_round_is_a_funnel_next_to_the_answer(served: Served) -> None:
    study = await served.create(rounds=2, timeouts={"idle": 60})
    devices = await served.join(study, 6)
    await together(devices[:4], "share")
    page = await page_of(served, f"/studies/{study}")
    title = f'<a href="/studies/{study}/rounds/1">Round 1</a> of 2: 4 of 6 shared their mask key'
    assert title in page
    assert re.search(
        r'at most <span role="timer" data-left="[\d.]+">.*</span> left in this step', page
    )
    assert received(page) == [("4", "6", "4")]
    phases = re.findall(r'<li class="(\w+)"[^>]*><b>(\w+)</b>', page)
    assert phases[:3] == [("done", "enrolling"), ("now", "sharing"), ("ahead", "checking")]
    assert page.count("No answer yet") == 1
    await post(served, f"/studies/{study}/stop")
    assert 'class="phases"' not in await page_of(served, f"/studies/{study}")


async def test_the_funnel_adds_the_messages_of_all_cohorts(served: Served) -> None:
    study = await served.create(
        terms=study_request()["terms"] | {"cohorts": 2}, timeouts={"idle": 60}
    )
    await served.join(study, 12)
    for _ in range(100):
        view = await served.show_round(study)
        if all(cohort.phase is Phase.SHARING for cohort in view.cohorts):
            break
        await served.tick()
    progress = round_progress(view, served.clock())
    assert [each.state for each in progress[:2]] == ["done", "now"]
    assert (progress[0].received, progress[0].expected, progress[0].quorum) == (12, 12, 6)
    first = view.cohorts[0]
    early = first.model_copy(update={"phase": first.history[0].phase, "history": first.history[:1]})
    mixed = view.model_copy(update={"cohorts": (early, *view.cohorts[1:])})
    progress = round_progress(mixed, served.clock())
    assert [each.state for each in progress[:3]] == ["now", "now", "ahead"]
    assert "2 cohorts together" in await page_of(served, f"/studies/{study}")


async def test_the_list_shows_the_progress_of_each_study(each_served: Served) -> None:
    over = await each_served.create(name="over", rounds=1)
    await play(each_served, over)
    await each_served.until_closed(over)
    each_served.clock.advance(60)
    waits = await each_served.create(name="waits", start=False)
    await each_served.client.post(f"/v1/studies/{waits}/stop")
    page = await page_of(each_served, "/")
    first, second = re.findall(r'<tr id="study-(\w+)">(.*?)</tr>', page, re.DOTALL)
    assert (first[0], second[0]) == (waits, over)
    for word in ("waits", "state stopped", "0 of 1", "none yet", "exact sums"):
        assert word in first[1]
    for word in ("over", "state finished", "1 of 1", "state decoded", ">6<", ">1<"):
        assert word in second[1]


async def test_a_long_list_has_pages(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.pages.studies._PAGE_SIZE", 2)
    for number in range(3):
        await served.create(name=f"study {number}", start=False)
    page = await page_of(served, "/")
    assert page.count('<tr id="study-') == 2
    (after,) = re.findall(r'href="/\?after=(\w+)"', page)
    older = await page_of(served, f"/?after={after}")
    names = re.findall(r">(study \d)</bdi>", page + older)
    assert sorted(names) == ["study 0", "study 1", "study 2"]


async def test_a_study_that_has_ended_shows_the_reason(served: Served) -> None:
    goal = {"precision": 0.9, "recall": 0.8}
    study = await served.create(rounds=3, stop_at=goal)
    assert 'id="goal"' in await page_of(served, f"/studies/{study}")
    await play(served, study)
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}")
    assert "of the list reached the goal in round 1 of at most 3. They are expectations" in page
    assert "state finished" in page
    assert 'id="goal"' not in page
    assert "<b>100%</b><span>of the list is right</span>" in page


async def test_a_study_that_was_not_started_has_no_answer_and_no_rounds(served: Served) -> None:
    study = await served.create(start=False)
    page = await page_of(served, f"/studies/{study}")
    for words in (
        "Not started: no device was asked yet, and 3 devices",
        "No round has been opened.",
    ):
        assert words in page
    started = await post(served, f"/studies/{study}/start")
    assert (started.status_code, started.headers["location"]) == (303, f"/studies/{study}")
    assert "state running" in await page_of(served, f"/studies/{study}")
    await post(served, f"/studies/{study}/stop")
    page = await page_of(served, f"/studies/{study}")
    assert "state stopped" in page
    assert "data-events" not in page  # there will be no more events
    trail = await served.store.access.audit_entries(10, None)
    assert [entry.action for entry in trail] == ["stop study", "start study", "create study"]


async def test_a_study_is_deleted_on_its_page(served: Served) -> None:
    study = await served.create()
    assert "Delete permanently" not in await page_of(served, f"/studies/{study}")
    await post(served, f"/studies/{study}/stop")
    assert "Delete permanently" in await page_of(served, f"/studies/{study}")
    deleted = await post(served, f"/studies/{study}/delete")
    assert (deleted.status_code, deleted.headers["location"]) == (303, "/")
    assert study not in await page_of(served, "/")
    assert (await served.client.get(f"/studies/{study}")).status_code == 404


async def test_the_page_of_a_study_shows_the_data_of_the_api(served: Served) -> None:
    study = await served.create(rounds=3)
    for number in (1, 2, 3):
        await play(served, study, after=number - 1)
        await served.until_closed(study, number)
    items = await served.heavy_hitters(study)
    page = await page_of(served, f"/studies/{study}")
    assert items_in(page) == [item.item for item in items]
    shown = re.findall(
        r'share"><strong>(\d+)%</strong> </td>\s*<td role="cell" class="n devices"><strong>(\d+)<',
        page,
    )
    assert shown == [(f"{100 * (item.share or 0):.0f}", f"{item.estimate:.0f}") for item in items]
    assert (items[0].item, shown[0]) == ("ab", ("100", "18"))
    assert 'aria-label="Devices of 1,000, by round: 1,000, 1,000, 1,000"' in page
    assert "<small>steady</small>" in page
    for title in ("Items shown and capacity", "Bytes per device"):
        assert title in page
    assert page.count('<span class="state decoded">') == 3
    assert "No epsilon bounds the privacy loss of exact sums" in page


async def test_hostile_items_are_shown_as_text(served: Served) -> None:
    study = await served.create(name=HOSTILE[0])
    await add_heavy_hitters(served, study, HOSTILE)
    page = await page_of(served, f"/studies/{study}")
    shown = [item.encode("utf-8", "replace").decode() for item in HOSTILE]
    assert [item.replace("\r", "") for item in items_in(page)] == shown
    assert f'tabindex="0">{"x" * 51}' in page  # a keyboard reaches what three lines cut off
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "{{" not in page.replace("{{ 7 * 7 }}", "")
    assert "contains U+202E" in page
    assert "contains U+0000, U+0007" in page
    assert "<script>alert" not in await page_of(served, "/")


async def test_an_item_whose_cohorts_differ_is_marked(served: Served) -> None:
    study = await served.create()
    await add_heavy_hitters(served, study, ("alike",), cohort_p_value=None)
    assert "cohorts differ" not in await page_of(served, f"/studies/{study}")
    await add_heavy_hitters(served, study, ("unlike",), cohort_p_value=3.2e-12)
    page = await page_of(served, f"/studies/{study}")
    assert "cohorts differ, p = 3e-12" in page
    assert page.count("cohorts differ, p") == 1
    assert "Honest devices cause this with probability p" in page


async def test_a_search_ignores_case(served: Served) -> None:
    study = await served.create()
    await add_heavy_hitters(served, study, ("Berlin", "BERN", "paris", "<b>"))
    path = f"/studies/{study}"
    assert items_in(await page_of(served, f"{path}?q=ber")) == ["Berlin", "BERN"]
    assert items_in(await page_of(served, f"{path}?q=%3Cb")) == ["<b>"]
    nothing = await page_of(served, f"{path}?q=%3Ci%3E")
    assert items_in(nothing) == []
    assert "None of the 4 items contains" in nothing
    assert "<i>" not in nothing
    long = await served.client.get(f"{path}?q={'x' * 201}")
    assert (long.status_code, "text/html" in long.headers["content-type"]) == (422, True)


async def test_items_are_sorted_and_have_pages(served: Served) -> None:
    study = await served.create()
    items = [f"{'aB'[number % 2]}{number:03}" for number in range(120)]
    await add_heavy_hitters(served, study, tuple(items))

    async def shown(**query: object) -> list[str]:
        return items_in(await page_of(served, f"/studies/{study}?{urlencode(query)}"))

    assert await shown() == items[:50]
    assert await shown(page=3) == await shown(page=99) == items[100:]
    by_text = sorted(items, key=str.casefold)
    assert await shown(order="item") == by_text[:50]
    assert await shown(order="item", page=3) == by_text[100:]
    assert await shown(q="B", order="item", page=2) == by_text[110:]
    page = await page_of(served, f"/studies/{study}?q=B&order=item&page=1")
    links = [unescape(link) for link in re.findall(r'href="(/studies/\w+\?q=[^"]+)"', page)]
    assert links == [
        f"/studies/{study}?q=B&order=estimate&page=1",
        f"/studies/{study}?q=B&order=item&page=2",
    ]
    assert 'aria-sort="ascending">Item' in page
    assert "Items 1 to 50 of 60" in page
    for query in ("order=rank", "page=0", "page=x"):
        refused = await served.client.get(f"/studies/{study}?{query}")
        assert (refused.status_code, "text/html" in refused.headers["content-type"]) == (422, True)


async def test_downloads_hold_all_and_nothing_that_a_spreadsheet_runs(served: Served) -> None:
    study = await served.create()
    usual = tuple(f"item {number}" for number in range(150))
    await add_heavy_hitters(served, study, ("=1+1", *usual))
    page = await page_of(served, f"/studies/{study}")
    assert len(items_in(page)) == 50
    assert "The CSV and JSON files have all items." in page
    answer = await served.client.get(f"/studies/{study}/heavy-hitters.csv")
    assert f'filename="heavy-hitters-{study}.csv"' in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["item"] for row in rows] == ["'=1+1", *usual]
    answer = await served.client.get(f"/studies/{study}/heavy-hitters.json")
    document = answer.json()
    assert document.pop("unlisted") == {}
    downloaded = HeavyHitterPage.model_validate(document)
    assert [row.item for row in downloaded.heavy_hitters] == ["=1+1", *usual]
    assert (await served.client.get(f"/studies/{study}/heavy-hitters.xml")).status_code == 404


async def test_htmx_gets_the_live_part_alone(served: Served) -> None:
    study = await served.create()
    whole, part = [
        await page_of(served, f"/studies/{study}", **head) for head in ({}, {"HX-Request": "true"})
    ]
    assert "<html" in whole
    assert "<html" not in part
    assert 'id="live-source"' in part
    assert part.strip() in whole


async def test_an_unknown_study_has_an_error_page(served: Served) -> None:
    for path in (
        "/studies/0123456789abcdef",
        "/studies/no-id",
        "/studies/0123456789abcdef/rounds/1",
    ):
        answer = await served.client.get(path)
        assert (answer.status_code, answer.headers["content-type"][:9]) == (404, "text/html")
        assert "no such study" in answer.text
        assert '<a href="/">Go to the list of studies</a>' in answer.text


async def test_the_address_of_all_studies_leads_to_the_list(served: Served) -> None:
    answer = await served.client.get("/studies")
    assert (answer.status_code, answer.headers["location"]) == (307, "/")


async def test_a_browser_gets_an_error_page_for_an_unknown_path_and_a_program_json(
    served: Served,
) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml"}
    for path, headers, is_page in (
        ("/nonsense", browser, True),
        ("/studies/x/y", browser, True),
        ("/studies/x/y", {}, True),
        ("/nonsense", {}, False),
        ("/v1/nonsense", browser, False),
        ("/v1", browser, False),
        ("/static/nothing.css", browser, False),
    ):
        answer = await served.client.get(path, headers=headers)
        media_type = "text/html" if is_page else "application/problem+json"
        assert answer.status_code == 404
        assert answer.headers["content-type"].partition(";")[0] == media_type, path
        assert ("there is no such page" in answer.text) is is_page
    post = await served.client.post("/nonsense", headers=browser)
    assert post.headers["content-type"] == "application/problem+json"
    wrong_method = await served.client.get("/logout", headers=browser)
    assert (wrong_method.status_code, wrong_method.headers["allow"]) == (405, "POST")


async def test_pages_and_their_files_answer_head_as_get(served: Served) -> None:
    study = await served.create()
    page = f"/studies/{study}"
    for path in ("/", page, f"{page}/rounds/1", f"{page}/changes", "/help", "/static/app.css"):
        get, head = await served.client.get(path), await served.client.head(path)
        assert (get.status_code, head.status_code) == (200, 200), path
        assert head.headers["content-type"] == get.headers["content-type"]
    assert (await served.client.head("/studies/nobody")).status_code == 404
    events = await served.client.head(f"/v1/studies/{study}/events")
    assert events.status_code == 200


async def test_no_page_contains_code_or_styles(served: Served) -> None:
    """The policy would block them, and readers of the page would not notice."""
    study = await served.create()
    for path in ("/", f"/studies/{study}", f"/studies/{study}/rounds/1", "/studies/new"):
        page = await page_of(served, path)
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", page)
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)


async def test_an_error_has_a_page_without_details(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, status, reason in (
        (OperationalError("", None, Exception("a secret")), 503, "the database is busy"),
        (RuntimeError("a secret"), 500, "an internal error of the service"),
    ):
        monkeypatch.setattr(type(served.store.studies), "page", AsyncMock(side_effect=error))
        answer = await served.client.get("/")
        assert (answer.status_code, answer.headers["content-type"][:9]) == (status, "text/html")
        assert answer.headers.get("retry-after") == ("10" if status == 503 else None)
        assert reason in answer.text
        assert "secret" not in answer.text


async def test_keys_of_hashed_items_and_who_may_read_them_are_explained(served: Served) -> None:
    running, over = "whose string is not known yet", "strings are fetched from the second round on"
    limit = (
        "Devices do not see the counts. A dishonest server could ask for the string of a rare key"
    )
    question = study_request()["question"]
    hashed = {"mechanism": "tracked", "domain": {"kind": "hashed", "max_bytes": 20}}
    for changes, has_keys in (({}, False), (hashed, True)):
        study = await served.create(question=question | changes)
        await add_heavy_hitters(served, study, ("#0123456789",))
        page = await page_of(served, f"/studies/{study}")
        assert ((running in page), (limit in page)) == (has_keys, has_keys)
        await post(served, f"/studies/{study}/stop")
        assert (over in await page_of(served, f"/studies/{study}")) == has_keys


@pytest.mark.parametrize("strings", [0, 4])
async def test_a_finished_study_states_how_many_strings_a_round_fetched(
    served: Served, strings: int
) -> None:
    view = await served.store.studies.show(await served.create())
    over = view.model_copy(update={"state": "finished", "round": 3})
    sizes = [RoundSize(100, 10, 100, fetched) for fetched in (0, strings)]
    reason = unresolved_keys(over, sizes)
    assert ("in this study at most 4." in reason) is (strings == 4)
    assert ("in this study there was no room" in reason) is (strings == 0)
    assert "more rounds, more bytes per device, or a smaller limit of bytes" in reason


async def test_a_study_with_a_budget_shows_the_epsilon_of_each_party(served: Served) -> None:
    study = await served.create(**histogram_request())
    page = await page_of(served, f"/studies/{study}")
    assert "ε 1, δ 1e-6" in page
    assert "Epsilon against each party, at δ 1e-6, if all rounds are run" in page
    assert "Only noisy sums" in page
    assert "no bound" not in page
    assert "capacity of the table" not in page  # it has no table
    assert "By round" not in page  # it has one round


async def test_the_distribution_of_a_prefix_study_equals_the_api(served: Served) -> None:
    study = await served.create(**histogram_request(high=8))
    assert "Quantiles" not in await page_of(served, f"/studies/{study}")
    counts = np.concatenate([np.full(2**level, 800 / 2**level) for level in range(4)])
    arrays = {
        COUNTS_ARRAY: counts[1:],
        NOISE_ARRAY: np.ones(1),
        SAMPLING_VARIANCE_ARRAY: np.ones(1),
    }
    row = {"study": study, "body": StudyState(arrays=arrays).pack()}
    database = served.store.database
    await database.write(lambda session: session.execute(insert(StudyStateRow), row))
    page = await page_of(served, f"/studies/{study}")
    response = await served.client.get(f"/v1/studies/{study}/quantiles?q=0.5&q=0.25")
    assert [round(result["value"], 6) for result in response.json()["results"]] == [4, 2]
    rows = r'<th scope="row">(\d+%|Mean)[^<]*</th>\s*<td class="n"><strong>([\d.]+)<'
    shown = dict(re.findall(rows, page))
    assert [float(shown[name]) for name in ("50%", "25%", "Mean")] == [4, 2, 4]
    assert page.count('<line class="interval"') == 8  # a bar for each number
    (path,) = re.findall(r'href="(/studies/[^"]*/histogram.svg)"', page)
    file = await served.client.get(path)
    drawing = parseString(file.text)  # noqa: S318 - our own
    assert len(drawing.getElementsByTagName("rect")) == 9  # and the paper
    assert 'class="median"' in page
    assert '<table class="hits"' not in page


@pytest.mark.parametrize("registrar", [None, "09" * 32])
async def test_a_study_without_a_registrar_states_that_it_can_be_flooded(
    served: Served, registrar: str | None
) -> None:
    study = await served.create(terms=study_request()["terms"] | {"registrar": registrar})
    page = await page_of(served, f"/studies/{study}")
    assert ("One program can take all slots of a round" in page) is (registrar is None)
    assert ("Devices with default settings refuse this study." in page) is (registrar is None)
    assert ("must know the registrar beforehand" in page) is (registrar is not None)


async def test_a_study_of_reports_has_the_privacy_summary_of_reports(served: Served) -> None:
    question = {
        "mechanism": "krr",
        "threshold": 10,
        "domain": {"kind": "listed", "items": ["yes", "no"]},
        "epsilon": 1.0,
    }
    study = await served.create(question=question)
    page = await page_of(served, f"/studies/{study}")
    assert "ε 1 per report" in page
    assert "at most e^1" in page
    assert "The server invents no devices" not in page
    assert "One program can send all reports of a round" in page
    shown = await page_of(served, f"/studies/{study}/rounds/1")
    assert "<strong>reporting</strong>" in shown
    assert "<strong>masking</strong>" not in shown


@pytest.mark.parametrize(
    ("terms", "sentence"),
    [
        ({"cohorts": 3, "registrar": "09" * 32}, "The registrar draws which devices share"),
        ({"cohorts": 3}, "more than 0 such identities in the whole study"),
        ({"registrar": "09" * 32}, "more than 0 such identities in the whole study"),
    ],
)
async def test_a_study_states_who_seats_its_devices_and_how_many_may_collude(
    served: Served, terms: dict[str, object], sentence: str
) -> None:
    study = await served.create(terms=study_request()["terms"] | terms)
    assert sentence in " ".join((await page_of(served, f"/studies/{study}")).split())


async def test_only_pages_of_several_cohorts_have_the_word(served: Served) -> None:
    for cohorts in (1, 2):
        study = await served.create(terms=study_request()["terms"] | {"cohorts": cohorts})
        page = await page_of(served, f"/studies/{study}")
        group = "round" if cohorts == 1 else "cohort, a group of devices"
        assert f"The exact sum of each {group}: " in page
        shown = await page_of(served, f"/studies/{study}/rounds/1")
        assert ("Cohort 0" in shown) is (cohorts == 2)


def test_bars_have_one_axis_from_zero_with_the_threshold_on_it() -> None:
    def item(estimate: float, low: float, high: float) -> HeavyHitter:
        return HeavyHitter(item="x", estimate=estimate, standard_error=1, low=low, high=high)

    bars = estimate_bars([item(80, 60, 100), item(10, -5, 25)], threshold=20)
    assert (bars.axis_end, bars.threshold) == (100, 20)
    assert bars.bars == (Bar(80, 60, 100), Bar(10, 0, 25))
    assert estimate_bars([item(10, 9, 11)], threshold=40).axis_end == 40
    assert estimate_bars([], threshold=5) == Bars((), 5, 100)


async def test_a_page_has_a_bar_for_each_item_also_without_scripts(served: Served) -> None:
    study = await served.create()
    await play(served, study)
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}")
    assert page.count("<rect ") == len(items_in(page)) == 1
    assert '<rect x="0" y="3" width="100.00" height="10"/>' in page
    assert '<path class="bound" d="M66.67 0v16"/>' in page  # 4 of 6
