"""Rounds that wait: each is reported once, their number is limited, and a full disk passes."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest

from client.committee import round_poller
from client.committee.member import CommitteeMember
from client.committee.member_journal import UnwritableJournalError
from client.committee.round_poller import RoundPoller, RoundReports


@dataclass(frozen=True)
class _Round:
    study: str
    round: int


def test_an_invented_round_displaces_the_earliest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_poller, "MAX_KEPT_ROUNDS", 3)
    reports, reported = RoundReports[_Round](), list[tuple[int, str]]()

    def report(pending: _Round, reason: str) -> None:
        reported.append((pending.round, reason))

    for number in range(5):
        reports.refuse(_Round("s", number), "no", report)
        reports.fail(_Round("s", number), ValueError("later"), report)
        reports.fail(_Round("s", number), ValueError("later"), report)
    assert [reports.is_refused(_Round("s", number)) for number in range(5)] == [False] * 2 + [
        True
    ] * 3
    assert len(reported) == 2 * 5
    reports.fail(_Round("s", 4), ValueError("later"), report)
    assert len(reported) == 2 * 5
    reports.fail(_Round("s", 0), ValueError("later"), report)
    assert len(reported) == 2 * 5 + 1


class _FullAtFirst(RoundPoller[_Round]):
    """Member whose disk is full in the first two preparations and the first step."""

    refusals, repeated = CommitteeMember.refusals, CommitteeMember.repeated
    poll_seconds = 0.0
    calls = 0

    def _write(self) -> None:
        self.calls += 1
        if self.calls in (1, 2, 4):
            raise UnwritableJournalError("the journal cannot be written")

    async def prepare(self, *_: object) -> None:
        self._write()

    async def waiting(self, *_: object) -> list[_Round]:
        await asyncio.sleep(0)
        return [_Round("s", 1)]

    async def step(self, *_: object) -> bool:
        self._write()
        return True


async def test_a_member_whose_disk_was_full_reports_it_once_and_serves_the_round_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reported = list[str]()
    done = asyncio.Event()

    def report(_: _Round, reason: str) -> None:
        reported.append(reason)
        if not reason:
            done.set()

    serving = asyncio.create_task(_FullAtFirst().serve(cast("Any", None), None, report))
    await asyncio.wait([serving, asyncio.create_task(done.wait())], return_when="FIRST_COMPLETED")
    serving.cancel()
    fault = "the journal cannot be written (it is tried again)"
    assert reported[:2] == [fault, ""]
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [f"cannot read the rounds: {fault}", "the rounds can be read again"]
