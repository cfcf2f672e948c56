"""Clients that poll receive no unchanged document, and a time to retry."""

import asyncio
from random import Random

import pytest

from protocol.api.messages import RoundView
from server.db.repositories.rounds.rounds import RoundRepository
from server.notify.notifier import MAX_RETRY_AFTER_SECONDS, RetryScheduler
from tests.server.cohort import Cohort, refused
from tests.server.harness import Served


async def test_a_document_is_sent_again_only_if_it_changed(served: Served) -> None:
    for path in ("", "/rounds", "/rounds/1", "/rounds/open", "/heavy-hitters"):
        study = await served.create()
        address = f"/v1/studies/{study}{path}"
        first = await served.client.get(address)
        tag = first.headers["etag"]
        assert first.headers["cache-control"] == "private, no-cache"
        for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            again = await served.client.get(address, headers={"If-None-Match": given})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        other = await served.client.get(address, headers={"If-None-Match": '"other"'})
        assert (other.status_code, other.content) == (200, first.content)
        await served.client.post(f"/v1/studies/{study}/stop")
        changed = await served.client.get(address, headers={"If-None-Match": tag})
        if path == "/rounds/open":
            refused(changed, 409, "wrong-state")  # the study has no further round
        elif path != "/heavy-hitters":
            assert changed.status_code == 200
            assert changed.headers["etag"] != tag


async def test_devices_that_ask_for_the_open_round_share_one_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change is shown at once; without one, a document is half a second old at most."""
    find_open, reads = type(served.service.store.rounds).find_open, list[int]()

    async def counted(rounds: RoundRepository, study: str, after: int) -> RoundView | None:
        reads.append(after)
        return await find_open(rounds, study, after)

    monkeypatch.setattr(type(served.service.store.rounds), "find_open", counted)
    address = f"/v1/studies/{await served.create()}/rounds/open"
    answers = await asyncio.gather(*(served.client.get(address) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {200}
    assert reads == [0]
    await asyncio.sleep(0.6)
    await served.client.get(address)
    assert reads == [0, 0]
    await served.client.post(f"{address.removesuffix('/rounds/open')}/stop")
    refused(await served.client.get(address), 409, "wrong-state")
    for query in ("after=", "after=-1", "wait=", "after=1&wait=x"):
        refused(await served.client.get(f"{address}?{query}"), 422, "malformed")


async def test_an_answer_that_is_not_ready_has_a_time_to_retry(cohort: Cohort) -> None:
    client, study = cohort.served.client, cohort.study
    answer = await client.get(f"/v1/studies/{study}/rounds/open?after=1")
    refused(answer, 409, "no-round")
    assert answer.headers["retry-after"] == "1"
    await cohort.served.until_phase(study, "sharing")
    pending = await cohort.devices[0].get("encrypted-shares", wait=0)
    assert (pending.status_code, pending.headers["retry-after"]) == (202, "0")


class Time:
    """A clock that moves only when a test sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_thousands_of_clients_are_spread_over_time() -> None:
    pacing = RetryScheduler(Random(1), clients_per_second=100, clock=Time())
    delays = [pacing.next_delay() for _ in range(2000)]
    assert set(delays[:90]) == {1}  # few clients return immediately
    assert max(delays) <= 21
    assert len(set(delays[1000:])) > 10  # not all at once


def test_no_delay_is_longer_than_clients_accept() -> None:
    pacing = RetryScheduler(Random(1), clock=Time())
    delays = [
        pacing.next_delay(waiting=10**6, minimum=minimum) for _ in range(500) for minimum in (0, 1)
    ]
    assert max(delays) == MAX_RETRY_AFTER_SECONDS
    assert min(delays) < 3


def test_past_requests_do_not_delay_later_ones() -> None:
    time = Time()
    pacing = RetryScheduler(Random(1), clients_per_second=100, clock=time)
    for _ in range(5000):
        pacing.next_delay()
    time.now += 60
    assert {pacing.next_delay() for _ in range(50)} == {1}
