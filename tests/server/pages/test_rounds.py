"""Page of a round: messages received in each phase, dropouts, blamed participants."""

import re

import pytest
from sqlalchemy import text

from tests.server.harness import Served, play, study_request, together
from tests.server.pages.browsing import page_of


def stages(page: str) -> list[tuple[str, str]]:
    """Return state and name of each phase, in order."""
    return re.findall(r'<li class="(\w+)"[^>]*>\s*<div class="line"><strong>(\w+)</strong>', page)


def received(page: str) -> list[tuple[str, str, str]]:
    """Return the numbers received, expected and needed in each phase that has begun."""
    return re.findall(r'aria-label="(\d+) of (\d+) received, (\d+) needed"', page)


async def test_a_running_round_shows_each_phase_and_its_time(served: Served) -> None:
    study = await served.create(timeouts={"idle": 60})  # otherwise the phase would end earlier
    devices = await served.join(study, 6)
    await together(devices[:4], "share")
    served.clock.advance(20)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert stages(page) == [
        ("done", "enrolling"),
        ("now", "sharing"),
        ("ahead", "checking"),
        ("ahead", "masking"),
        ("ahead", "confirming"),
        ("ahead", "unmasking"),
    ]
    assert received(page) == [("6", "6", "3"), ("4", "6", "4")]
    assert 'role="timer" data-left="40.0"' in page  # of 60 seconds
    assert f'data-events="/v1/studies/{study}/events"' in page
    assert "None so far." in page


async def test_a_closed_round_shows_its_dropouts_by_phase(served: Served) -> None:
    study = await served.create()
    await play(served, study, lost=((0,), (), (1,), (), ()))
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert [state for state, _ in stages(page)] == ["done"] * 6
    assert [numbers[0] for numbers in received(page)] == ["6", "5", "5", "4", "4", "4"]
    assert "<strong>1</strong> joined and did not share in time<" in page
    assert "<strong>1</strong> checked and sent no table in time" in page
    assert "4 of 6, 4 needed" in page
    assert "data-events" not in page


async def test_a_failed_round_gives_the_reason(served: Served) -> None:
    study = await served.create()
    await served.join(study, 6)
    await served.until_phase(study, "sharing")
    await served.pass_phase(study)
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert [state for state, _ in stages(page)] == ["done", "failed", *["unreached"] * 4]
    assert page.count("not reached") == 4
    assert "not yet" not in page
    why = "0 of 6 shared their secrets in time, where 4 are needed"
    assert page.count(why) == 1
    assert f"Failed: {why}" in page
    assert "nothing of it is in the answer" in page
    assert "<dt>devices in the sum</dt><dd>0</dd>" in page
    study_page = await page_of(served, f"/studies/{study}")
    assert f'<span class="sub why">{why}</span>' in study_page
    page = await page_of(served, f"/studies/{study}")
    assert "No round is in the answer: a round needs " in page
    assert '<span class="state failed">failed</span>' in page.partition("<h1")[0][-1500:]
    assert "state finished" not in page + await page_of(served, "/")
    assert "more words" not in page


async def test_of_many_cohorts_those_with_a_fault_are_shown_first(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.pages.rounds.MAX_CARDS", 2)
    study = await served.create(terms=study_request()["terms"] | {"cohorts": 3})
    failed = "UPDATE cohorts SET failure = 'too few' WHERE number = 2"
    await served.store.database.write(lambda session: session.execute(text(failed)))
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert re.findall(r'id="cohort-(\d)"', page) == ["2", "0"]
    assert "1 more cohorts are in <code>GET" in page


async def test_blamed_participants_are_named(served: Served) -> None:
    study = await served.create()
    await play(served, study)
    await served.until_closed(study)
    blame = text("UPDATE participants SET blamed = 'sent <b>false</b> shares' WHERE slot = 3")
    await served.store.database.write(lambda session: session.execute(blame))
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert "slot <strong>3</strong>: sent &lt;b&gt;false&lt;/b&gt; shares" in page
