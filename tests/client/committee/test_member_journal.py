"""Journal of a committee's member: each value once, and the key only until its sum is open."""

import stat
from contextlib import suppress
from pathlib import Path

import pytest

from client.committee.member_journal import (
    KeptKey,
    MemberEntry,
    MemberJournal,
    MemberJournalError,
    UnwritableJournalError,
)

DAY = 24 * 3600.0
NOW = 1_800_000_000.0


def key_of(plan: bytes) -> KeptKey:
    return KeptKey(plan, "study", 1)


def test_a_journal_writes_each_value_once_and_erases_the_key() -> None:
    journal, plan = MemberJournal(), bytes(32)
    assert journal.key(key_of(plan), b"a" * 32, 1e9) == b"a" * 32
    assert journal.key(key_of(plan), b"b" * 32, 1e9) == b"a" * 32
    for write in (journal.bind, journal.complain, journal.attempt, journal.sign):
        write(plan, b"one")
        write(plan, b"one")
        with pytest.raises(MemberJournalError, match="another"):
            write(plan, b"two")
    journal.release(plan, b"sum")
    entry = journal.entry(plan)
    assert (entry.secret, entry.sum) == (None, b"sum")
    assert "sum=" not in repr(entry)
    with pytest.raises(MemberJournalError, match="another sum"):
        journal.release(plan, b"other")
    with pytest.raises(MemberJournalError, match="erased"):
        journal.key(key_of(plan), b"c" * 32, 1e9)


def test_one_reading_of_the_clock_erases_no_key_and_two_a_day_apart_do(tmp_path: Path) -> None:
    """The readings survive restarts, and a clock that was wrong for an hour is forgotten."""
    plan = bytes(32)

    def kept_after(*readings: float) -> bool:
        path = tmp_path / f"journal {readings}"
        for number, reading in enumerate(readings):
            journal = MemberJournal(path)
            if number == 0:
                journal.key(key_of(plan), b"a" * 32, reading)
            journal.erase_old_keys(reading)
            journal.close()
        return MemberJournal(path).kept_keys() == [key_of(plan)]

    ahead = NOW + 40 * DAY
    assert kept_after(NOW, ahead)
    assert kept_after(NOW, ahead, ahead + DAY - 1)
    assert kept_after(NOW, ahead, NOW + 3600, NOW + 2 * DAY, ahead + DAY)
    assert kept_after(NOW, NOW + 29 * DAY, NOW + 31 * DAY)
    assert not kept_after(NOW, ahead, ahead + DAY)
    assert not kept_after(NOW, NOW - 400 * DAY, NOW + 31 * DAY, NOW + 32 * DAY)


def test_two_processes_attempt_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: one statement in `_write_once`."""
    plan, attempted = bytes(32), list[bytes]()
    first, second = (MemberJournal(tmp_path / "journal") for _ in range(2))
    first.key(key_of(plan), b"a" * 32, 1e9)

    def attempt(journal: MemberJournal, digest: bytes) -> None:
        with suppress(MemberJournalError):
            journal.attempt(plan, digest)
            attempted.append(digest)

    def read_after_the_other(plan: bytes) -> MemberEntry:
        monkeypatch.undo()
        attempt(second, b"two")
        return first.entry(plan)

    monkeypatch.setattr(first, "entry", read_after_the_other)
    attempt(first, b"one")
    assert attempted == [b"one"]


def test_a_journal_on_the_disk_is_its_owners_and_survives(tmp_path: Path) -> None:
    path, plan = tmp_path / "journal", bytes(32)
    journal = MemberJournal(path)
    journal.key(key_of(plan), b"a" * 32, 1e9)
    journal.sign(plan, b"signature")
    journal.close()
    with pytest.raises(UnwritableJournalError, match="cannot be written"):
        journal.sign(plan, b"signature")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = MemberJournal(path).entry(plan)
    assert (entry.secret, entry.signature) == (b"a" * 32, b"signature")
    assert "aaaa" not in repr(entry)
    with pytest.raises(MemberJournalError, match="cannot use the journal"):
        MemberJournal(tmp_path / "no folder" / "journal")
