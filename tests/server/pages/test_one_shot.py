"""Pages of a study of one-shot sums: its phases, and who must collude to see more."""

from protocol.device_policy.sizes_and_losses import upload_bytes
from server.pages.formatting import nbytes
from tests.server.harness import Served
from tests.server.one_shot.rounds import (
    PINNED,
    Operators,
    convene,
    create,
    open_sum,
    send,
    send_all,
)
from tests.server.one_shot.volunteer_rounds import (
    POLICY,
    Volunteers,
    convene_volunteers,
    create_drawn,
    devices,
)
from tests.server.pages.browsing import page_of
from tests.server.pages.test_rounds import received, stages

LINE = ("convening", "collecting", "checking", "agreeing", "releasing")


async def test_a_study_states_who_must_collude_to_see_more(served: Served) -> None:
    study = await create(served)
    page = " ".join((await page_of(served, f"/studies/{study}")).split())
    assert "more than 1 of the 7 operators that the study names" in page
    assert "2 of them could read devices with small counts, and 5 every device" in page
    assert "sum no set of fewer than 4 devices" in page
    assert "sums of at least 4 devices could be read" in page
    assert "At most 1 operators are absent, refuse or lie" in page
    assert "each time that members agree" in page
    assert "masks its table" not in page
    assert "devices drop out." not in page
    assert f"Members of the committee</dt><dd><bdi>{', '.join(PINNED)}</bdi>" in page
    assert "Share of absent members</dt><dd>0.2" in page
    assert f"--member {PINNED[0]} --member {PINNED[1]}" in page


async def test_a_round_shows_its_phases_and_the_messages_of_each(served: Served) -> None:
    operators = Operators.of()
    study = await create(served)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert stages(page) == [("now", LINE[0]), *(("ahead", phase) for phase in LINE[1:])]
    assert received(page) == [("0", "7", "6")]
    view = await convene(served, study, operators)
    await send_all(served, view, range(5))
    operators.away.add(0)
    await open_sum(served, study, operators)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert stages(page) == [("done", phase) for phase in LINE]
    six = ("6", "6", "6")
    assert received(page) == [("7", "7", "6"), ("5", "60", "4"), ("6", "7", "6"), six, six]
    assert "operators signed the set of messages" in page
    sent = nbytes(upload_bytes(view.plan))
    assert f"<dt>Message of a device</dt><dd>{sent}</dd>" in page
    assert f'data-label="Message of a device">{sent}<' in await page_of(served, f"/studies/{study}")
    assert "shares of the table for the committee" in page
    assert "checked no shares" not in page


async def test_a_failed_round_shows_the_phase_that_it_failed_in(served: Served) -> None:
    study = await create(served)
    await served.pass_phase(study)
    await served.until_closed(study)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert stages(page) == [("failed", LINE[0]), *(("unreached", phase) for phase in LINE[1:])]
    assert "0 of 7 registered keys for the committee in time, where 6" in page


async def test_a_study_of_volunteers_shows_their_draw_and_who_must_collude(served: Served) -> None:
    study = await create_drawn(served)
    page = " ".join((await page_of(served, f"/studies/{study}")).split())
    assert "At most 1 of the devices that volunteer in the whole study" in page
    assert "more than 1 of them with probability 2^-40 at most" in page
    assert "more than 1 of the 9 members of a committee" in page
    assert "shares its table among 9 of 12 volunteers" in page
    volunteers = Volunteers.of(study)
    view = await convene_volunteers(served, study, volunteers)
    for device in devices(view, range(5)):
        await send(served, view, device, POLICY)
    await open_sum(served, study, volunteers)
    page = await page_of(served, f"/studies/{study}/rounds/1")
    assert stages(page) == [("done", phase) for phase in (LINE[0], "drawing", *LINE[1:])]
    drawn, opened = [("12", "12", "12"), ("1", "1", "1")], [("9", "9", "8")] * 3
    assert received(page) == [*drawn, ("5", "60", "4"), *opened]
    assert "volunteers signed the set of messages" in page
