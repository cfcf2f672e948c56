"""One-shot rounds of the service: the committee convenes, devices send, members open the sum."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from time import time
from unittest.mock import AsyncMock

import pytest

from client.committee.member_journal import KeptKey, MemberJournal
from protocol.api.phases import ONE_SHOT_SUM, Phase
from secagg.keys import Identity
from secagg.oneshot.message import merkle_levels
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Vector
from server.db.repositories.messages.one_shot_messages import OneShotMessageRepository
from server.rounds.jobs import JobRunner
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served
from tests.server.one_shot.rounds import (
    OPERATORS,
    PINNED,
    TERMS,
    Operators,
    convene,
    create,
    one_shot_device,
    open_sum,
    phase_of,
    send,
    send_all,
    sum_of_vectors,
)
from tests.server.statements import statements

DAY = 24 * 3600.0


async def test_a_round_sums_exactly_what_its_devices_sent_and_reads_each_message_once(
    each_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, pages = list[Sequence[bytes]](), list[str]()
    read = OneShotMessageRepository.page

    async def page(
        repository: OneShotMessageRepository, cohort: int, after: str, limit: int
    ) -> list[tuple[str, bytes | None]]:
        pages.append(after)
        return await read(repository, cohort, after, limit)

    def counted(shares: Sequence[bytes]) -> list[bytes]:
        trees.append(shares)
        return merkle_levels(shares)

    monkeypatch.setattr("server.rounds.one_shot_sums.merkle_levels", counted)
    monkeypatch.setattr(OneShotMessageRepository, "page", page)
    served, operators = each_served, Operators.of()
    study = await create(served)
    view = await convene(served, study, operators)
    vectors = await send_all(served, view, range(8))
    closed = await open_sum(served, study, operators)
    assert operators.refusals == []
    assert (closed.state, closed.participants) == ("decoded", 8)
    assert await served.read_sum(study) == sum_of_vectors(view, list(vectors.values()))
    phases = [record.phase for record in closed.cohorts[0].history]
    assert phases == ["convening", "collecting", "checking", "agreeing", "releasing", "summed"]
    received = [record.received for record in closed.cohorts[0].history]
    assert received[:5] == [7, 8, 7, 7, 7]
    assert len(trees) == 8  # one Merkle tree for each message
    assert len(pages) == len(set(pages)) == 2  # the second one is empty


async def test_a_sum_beyond_the_bound_of_the_degree_proof_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: `_BEYOND_BOUND`; each sum is beyond a bound that no number of members keeps."""
    monkeypatch.setattr(CommitteeParameters, "droppable", lambda *_: -1)
    operators, study = Operators.of(), await create(served)
    await send_all(served, await convene(served, study, operators), range(4))
    (cohort,) = (await open_sum(served, study, operators)).cohorts
    noted = [record.phase for record in cohort.history if record.note]
    assert (noted, cohort.phase) == ([Phase.AGREEING], Phase.SUMMED)
    page = await served.client.get(f"/studies/{study}/rounds/1")
    assert "may have chosen the members that checked it." in page.text


async def test_a_member_is_found_by_its_identity_and_not_by_reading_all_studies(
    served: Served,
) -> None:
    """Each member polls, and waits for the news of all committees."""
    other = Identity.of(b"o" * 32).public.hex()
    studies = [await create(served) for _ in range(3)]
    committees = served.store.committees
    with statements(served.store.database, "member_messages") as executed:
        assert await committees.pending(other) == ()
        rounds = await committees.pending(PINNED[0])
    assert [each.study for each in rounds] == studies
    assert len(executed) == 2
    assert not any("studies" in each or "history" in each for each in executed)


async def test_messages_of_a_sum_that_is_over_are_refused_and_deleted_in_parts(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their rows are deleted after a month, but the Merkle trees may still be cached."""
    monkeypatch.setattr("server.db.repositories.rounds.cohorts._BODIES_PER_TRANSACTION", 3)
    operators, study = Operators.of(), await create(served)
    await send_all(served, await convene(served, study, operators), range(8))
    cohorts = served.store.cohorts
    assert not await cohorts.delete_one_shot_bodies([1])  # of a sum that is not over
    monkeypatch.setattr(JobRunner, "delete_bodies", AsyncMock())
    await open_sum(served, study, operators)
    assert await cohorts.finished_with_bodies() == [1]
    assert [await cohorts.delete_one_shot_bodies([1]) for _ in range(4)] == [True] * 3 + [False]
    assert await cohorts.finished_with_bodies() == []
    path = f"/v1/studies/{study}/rounds/1/members/{PINNED[0]}/columns"
    refused(await served.client.get(path), 409, "wrong-phase")
    await served.store.retention.delete_device_rows(study)
    refused(await served.client.get(path), 409, "wrong-phase")


async def test_the_last_message_ends_the_collection_at_once(serve: Serve, sqlite_url: str) -> None:
    """The service looks at its rounds once a minute, and when a message may end a phase."""
    operators, last = Operators.of(), 5
    async with serve(sqlite_url, poll_seconds=60, min_poll_seconds=0) as served:
        study = await create(served, terms=TERMS | {"cohort_size": last + 1})
        view = await convene(served, study, operators)
        await served.service.orchestrator.poll()
        await send_all(served, view, range(last))
        assert await phase_of(served, study) is Phase.COLLECTING
        await send(served, view, one_shot_device(last))
        async with asyncio.timeout(20):
            while await phase_of(served, study) is Phase.COLLECTING:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_server_and_members_that_start_again_in_every_phase_finish_the_round(
    serve: Serve, sqlite_url: str
) -> None:
    """Members keep their journals only, and the last one drops out; the server has its rows only.

    All start again before each phase, and when half of it has happened.
    """
    journals, vectors = [MemberJournal() for _ in OPERATORS], dict[int, Vector]()
    async with serve(sqlite_url) as served:
        study = await create(served)
    for phase in ONE_SHOT_SUM.phases:
        for half in (range(3), range(3, 7 if phase is Phase.CONVENING else 6)):
            async with serve(sqlite_url) as served:
                assert await phase_of(served, study) is phase
                view = await served.show_round(study)
                if phase is Phase.COLLECTING:
                    vectors |= await send_all(served, view, half)
                else:
                    operators = Operators.of(journals)
                    operators.away = {*range(7)} - {*half}
                    await operators.act(served)
                    assert operators.refusals == []
                if half.start:
                    await served.pass_phase(study, before=phase)
    async with serve(sqlite_url) as served:
        closed = await served.until_closed(study)
        assert (closed.state, closed.participants) == ("decoded", 6)
        assert await served.read_sum(study) == sum_of_vectors(view, list(vectors.values()))


async def test_members_that_start_again_with_clocks_ahead_open_their_sum(
    served: Served, tmp_path: Path
) -> None:
    """The keys go when the service shows that the round is over, with or without a sum."""
    study = await create(served, rounds=2)
    paths = [tmp_path / f"journal-{number}" for number in range(7)]
    members = Operators.of([MemberJournal(path) for path in paths])
    view = await convene(served, study, members)
    vectors = await send_all(served, view, range(6))
    members = Operators.of([MemberJournal(path) for path in paths])
    assert await members.erase_spent_keys(served, time() + 40 * DAY) == [1] * 7
    assert (await open_sum(served, study, members)).participants == len(vectors)
    await convene(served, study, members, 2)
    assert await members.erase_spent_keys(served, time()) == [1] * 7
    await served.client.post(f"/v1/studies/{study}/stop")
    assert await members.erase_spent_keys(served, time()) == [0] * 7


async def test_only_a_service_that_shows_the_plan_of_a_key_has_it_erased(served: Served) -> None:
    study = await create(served)
    members = Operators.of()
    await convene(served, study, members)
    await served.client.post(f"/v1/studies/{study}/stop")
    journal = members.members[0].journal
    foreign = [KeptKey(bytes([n]) * 32, each, 1) for n, each in enumerate((study, "other", "../x"))]
    for kept in foreign:
        journal.key(kept, b"k" * 32, time())
    assert (await members.erase_spent_keys(served, time()))[0] == len(foreign)
