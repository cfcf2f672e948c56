"""Numbers on pages: each is right, rounded to what is known, or not shown."""

import csv
import math
import re

import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.orm import Session

from protocol.api.messages import HeavyHitter
from server.db.schema import RoundRow
from server.pages.answers import least_listed
from tests.server.harness import Served, histogram_request, play, study_request, together
from tests.server.pages.browsing import page_of


async def close_two_rounds(served: Served, study: str) -> None:
    """Store that rounds of 700 and 690 devices are over, in which nothing was found."""
    of_study = RoundRow.study == study

    def close(session: Session) -> None:
        closed = {"state": "decoded", "participants": 700, "closed": served.clock()}
        session.execute(update(RoundRow).where(of_study).values(**closed))
        (first,) = session.execute(select(RoundRow.__table__).where(of_study)).mappings()
        session.execute(insert(RoundRow), [{**first, "number": 2, "participants": 690}])

    await served.store.database.write(close)


@pytest.mark.parametrize(("every_round", "devices"), [(True, "700"), (False, "1,390")])
async def test_devices_that_come_in_every_round_are_counted_once(
    served: Served, every_round: bool, devices: str
) -> None:
    asked = histogram_request()
    asked["question"] |= {"every_round": every_round, "epsilon": 4.0}
    study = await served.create(rounds=2, **asked)
    await close_two_rounds(served, study)
    listed = await page_of(served, "/")
    assert f'data-label="Devices">{devices}<' in listed
    assert 'data-label="Items found">–<' in listed
    when = "in a round" if every_round else "counted"
    page = await page_of(served, f"/studies/{study}")
    assert f"<li>{devices} devices {when}</li>" in page
    assert "Sampling threshold t" not in page
    assert "Items shown" not in page


async def test_a_study_whose_devices_have_joined_waits_for_none(served: Served) -> None:
    study = await served.create(rounds=2, timeouts={"idle": 60})
    assert "Its first round waits for devices." in await page_of(served, f"/studies/{study}")
    devices = await served.join(study, 6)
    await together(devices[:4], "share")
    page = await page_of(served, f"/studies/{study}")
    assert "The devices of its round have joined." in page
    assert "waits for devices" not in page


async def test_more_items_than_a_table_has_room_for_are_not_called_possible(served: Served) -> None:
    study = await served.create()
    await play(served, study)
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert "<small> in a table for " in page
    assert " possible" not in page


async def test_a_trie_that_finds_nothing_names_the_votes_that_epsilon_needs(served: Served) -> None:
    asked = histogram_request()
    words = {"kind": "utf8", "max_bytes": 2}
    trie = {"mechanism": "triehh", "domain": words, "contribution": 1, "message_bytes": 21_784}
    study = await served.create(rounds=2, **asked | {"question": asked["question"] | trie})
    await close_two_rounds(served, study)
    page = await page_of(served, f"/studies/{study}")
    for words_of_page in (
        "No item is listed. One is listed from a count of about ",
        " among 695 devices: a count is shown from ",
        " votes in a level, and a device votes with probability ",
        "because epsilon is 1.",
        "A threshold below that, such as 1, changes nothing.",
        "To list more, use a larger epsilon, or more devices.",
    ):
        assert words_of_page in page
    assert re.search(r"<h2.*?>Items.* about ([0-9]+) .*from a count of about \1 ", page, re.DOTALL)
    assert "Quantiles" not in page
    assert '<table class="hits"' not in page


def test_a_heading_is_true_of_an_item_that_noise_has_listed() -> None:
    ends = {"standard_error": 9, "low": 0, "high": 600}
    words = [HeavyHitter(item="the", estimate=n, **ends) for n in (251, 101.6)]
    assert [least_listed(165.2, 10, words[:n]) for n in (0, 1, 2)] == [
        "about 166", "about 166", "about 102",
    ]  # fmt: skip
    assert least_listed(10, 10, words) == least_listed(math.inf, 10, words) == "10"


async def test_options_below_the_threshold_are_shown_without_a_number(served: Served) -> None:
    """Each of six devices holds "ab", two of them "a", two "abc", and nobody the last one."""
    options = {"kind": "listed", "items": ["a", "ab", "abc", "<b>"]}
    question = study_request()["question"] | {"domain": options}
    study = await served.create(question=question)
    await play(served, study)
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}")
    row = r'rowheader"><bdi class="item">(.*?)</bdi>.*?"n devices"><\w+[^>]*>(.*?)<'
    unknown, known = "fewer than 4 (0 to 3)", "6"
    assert re.findall(row, page, re.DOTALL) == [
        ("a", unknown), ("ab", known), ("abc", unknown), ("&lt;b&gt;", unknown),
    ]  # fmt: skip
    assert page.count("<small>0 to 50%</small>") == 3
    assert "Devices leave out items that are no option and those above" in page
    unlisted = dict.fromkeys(("a", "abc", "<b>"), "fewer than 4")
    base = f"/studies/{study}/heavy-hitters"
    document = await served.client.get(f"{base}.json")
    assert document.json()["unlisted"] == unlisted
    for path in (f"{base}.csv", f"/v1{base}?format=csv"):
        table = csv.DictReader((await served.client.get(path)).text.splitlines())
        counts = {row["item"]: (row["estimate"], row["unlisted"]) for row in table}
        assert counts.pop("ab")[1] == ""
        assert counts == {option: ("", words) for option, words in unlisted.items()}


async def test_words_on_options_rest_on_all_rounds_not_on_those_of_the_page(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first round was sampled, and the page shows the last one only."""
    monkeypatch.setattr("server.pages.studies.MAX_ROUNDS_SHOWN", 1)
    options = {"kind": "listed", "items": ["a", "ab"]}
    question = study_request()["question"] | {"domain": options}
    study = await served.create(question=question, rounds=2)
    await close_two_rounds(served, study)
    sampled = "UPDATE rounds SET plan = json_set(plan, '$.t', 1.5, '$.cells', 300) WHERE number = 1"
    await served.store.database.write(lambda session: session.execute(text(sampled)))
    page = await page_of(served, f"/studies/{study}")
    assert "not found to reach 4" in page
    assert "fewer than 4" not in page
