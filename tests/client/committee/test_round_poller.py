"""Reports of rounds that wait: each is made once, and their number is limited."""

from dataclasses import dataclass

import pytest

from client.committee import round_poller
from client.committee.round_poller import RoundReports


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
