"""A round for its operator: who was heard in each phase, who was lost, who is blamed."""

import re

from sqlalchemy import text

from tests.server.harness import Served, play, together


async def page_of(served: Served, study: str, number: int = 1) -> str:
    response = await served.client.get(f"/studies/{study}/rounds/{number}")
    assert response.status_code == 200, response.text
    return response.text


def stages(page: str) -> list[tuple[str, str]]:
    """Return state and name of each phase, in order."""
    return re.findall(r'<li class="(\w+)"[^>]*>\s*<div class="line"><strong>(\w+)</strong>', page)


def heard(page: str) -> list[tuple[str, str, str]]:
    """Return how many were heard of how many, and needed, in each phase that began."""
    return re.findall(r'aria-label="(\d+) of (\d+) heard, (\d+) needed"', page)


async def test_a_running_round_shows_where_each_phase_is_and_how_long_it_has(
    served: Served,
) -> None:
    study = await served.create(timeouts={"patience": 60})  # or silence would end the phase
    devices = await served.join(study, 6)
    await together(devices[:4], "share")
    served.clock.advance(20)
    page = await page_of(served, study)
    assert stages(page) == [
        ("done", "enrolling"),
        ("now", "sharing"),
        ("ahead", "masking"),
        ("ahead", "confirming"),
        ("ahead", "unmasking"),
    ]
    assert heard(page) == [("6", "6", "3"), ("4", "6", "4")]
    assert 'role="timer" data-left="40.0"' in page  # of 60 seconds
    assert f'data-events="/v1/studies/{study}/events"' in page
    assert "Nobody so far." in page


async def test_a_round_that_is_over_shows_who_was_lost_where_and_what_that_cost(
    served: Served,
) -> None:
    study = await served.create()
    await play(served, study, lost=((0,), (1,), (), ()))
    await served.until_closed(study)
    page = await page_of(served, study)
    assert [state for state, _ in stages(page)] == ["done"] * 5
    assert [one[0] for one in heard(page)] == ["6", "5", "4", "4", "4"]
    assert "<strong>1</strong> enrolled and did not share in time<" in page
    assert "<strong>1</strong> shared and sent no table in time<" in page
    assert "4 of 6, 4 needed" in page
    assert "data-events" not in page


async def test_a_failed_round_says_why(served: Served) -> None:
    study = await served.create()
    await served.join(study, 6)
    await served.until_phase(study, "sharing")
    await served.pass_phase(study)
    await served.until_closed(study)
    page = await page_of(served, study)
    assert [state for state, _ in stages(page)] == ["done", "failed", *["unreached"] * 3]
    assert page.count("not reached") == 3
    assert "ahead" not in page
    why = "0 of 6 shared their secrets in time, where 4 are needed"
    assert page.count(why) == 1
    assert f"Failed: {why}" in page
    assert "nothing of it was read or shown" in page
    assert "<dt>in the sum</dt><dd>0</dd>" in page
    study_page = (await served.client.get(f"/studies/{study}")).text
    assert f'<span class="sub why">{why}</span>' in study_page


async def test_who_is_blamed_is_named(served: Served) -> None:
    study = await served.create()
    await play(served, study)
    await served.until_closed(study)
    blame = text("UPDATE participants SET blamed = 'dealt <b>false</b> shares' WHERE slot = 3")
    await served.app.state.service.store.database.write(lambda session: session.execute(blame))
    page = await page_of(served, study)
    assert "slot <strong>3</strong>: dealt &lt;b&gt;false&lt;/b&gt; shares" in page


async def test_cohorts_stand_side_by_side(served: Served) -> None:
    terms = {"cohort_size": 6, "minimum": 3, "cohorts": 3, "corrupt": 0.17, "dropout": 0.34}
    study = await served.create(terms=terms)
    page = await page_of(served, study)
    assert re.findall(r'id="cohort-(\d)"', page) == ["0", "1", "2"]
    assert len(stages(page)) == 15
