"""Messages after a deadline that an outage of the database has passed: the sender tries again."""

from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from protocol.api.messages import ProblemType
from protocol.api.phases import MemberMessageKind, MessageKind
from server.db.repositories.access.committees import MemberMessage
from server.db.repositories.messages.device_spending import ReportCost
from server.db.repositories.messages.one_shot_messages import OneShotMessage
from server.db.repositories.messages.participants import Upload
from server.db.repositories.messages.reports import Report
from server.errors import ProblemError
from tests.server.cohort import create_full_cohort
from tests.server.harness import Served
from tests.server.one_shot import rounds as one_shot
from tests.server.one_shot.rounds import PINNED, Operators, convene
from tests.server.test_reports import create

Send = Callable[[], Awaitable[object]]


async def upload(served: Served) -> Send:
    cohort = await create_full_cohort(served)
    await served.until_phase(cohort.study, "sharing")
    seat = cohort.devices[0].seat
    assert seat is not None
    slot = await served.store.participants.slot(seat.participant)
    message = Upload.of(slot, MessageKind.KEY_SHARES, b"x")
    return lambda: served.store.receive(message)


async def report_upload(served: Served) -> Send:
    study, _ = await create(served)
    cohort = await served.store.reports.cohort(study, 1)
    message = Report(cohort, b"digest", study, 1, "a" * 64, b"x", ReportCost(1, 0, 16, 0))
    return lambda: served.store.receive(message)


async def one_shot_message(served: Served) -> Send:
    study = await one_shot.create(served)
    await convene(served, study, Operators.of())
    status = await served.store.committees.status(study, 1)
    message = OneShotMessage(status.cohort, b"digest", study, 1, "a" * 64, b"x", True)
    return lambda: served.store.receive(message)


async def member_key(served: Served) -> Send:
    study = await one_shot.create(served)
    status = await served.store.committees.status(study, 1)
    message = MemberMessage.of(status.cohort, MemberMessageKind.KEY, PINNED[0], bytes(200))
    return lambda: served.store.receive(message)


@pytest.mark.parametrize(
    ("prepare", "refusal"),
    [
        (upload, ProblemType.WRONG_PHASE),
        (report_upload, ProblemType.NO_ROUND),
        (one_shot_message, ProblemType.NO_ROUND),
        (member_key, ProblemType.WRONG_PHASE),
    ],
)
async def test_a_message_is_late_for_ever_only_if_no_time_was_lost(
    served: Served, prepare: Callable[[Served], Awaitable[Send]], refusal: ProblemType
) -> None:
    send, database = await prepare(served), served.store.database
    orchestrator = served.service.orchestrator
    async with orchestrator.poll_lock:  # no phase ends, and no deadline is extended meanwhile
        with patch.object(orchestrator, "poll", side_effect=orchestrator.poll) as poll:
            while not poll.called:
                await served.tick()
        served.clock.advance(4000)
        with pytest.raises(ProblemError) as late:
            await send()
        assert late.value.kind is refusal
        database.has_lost_time = True
        with pytest.raises(ProblemError, match="will be extended: try again") as lost:
            await send()
        assert lost.value.kind is ProblemType.UNAVAILABLE
        served.clock.advance(-4000)
        await send()
