"""Journal of a committee's member: each value once, and the key only until its sum is open."""

import stat
from contextlib import suppress
from pathlib import Path

import pytest

from client.member_journal import MemberEntry, MemberJournal, MemberJournalError


def test_a_journal_writes_each_value_once_and_erases_the_key() -> None:
    journal, plan = MemberJournal(), bytes(32)
    assert journal.key(plan, b"a" * 32, 1e9) == b"a" * 32
    assert journal.key(plan, b"b" * 32, 1e9) == b"a" * 32
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
        journal.key(plan, b"c" * 32, 1e9)
    journal.key(b"p" * 32, b"d" * 32, 1e9)
    journal.erase_keys_before(1e9 + 1)
    assert journal.entry(b"p" * 32).secret is None


def test_two_processes_attempt_one_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards: one statement in `_write_once`."""
    plan, attempted = bytes(32), list[bytes]()
    first, second = (MemberJournal(tmp_path / "journal") for _ in range(2))
    first.key(plan, b"a" * 32, 1e9)

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
    journal.key(plan, b"a" * 32, 1e9)
    journal.sign(plan, b"signature")
    journal.close()
    with pytest.raises(MemberJournalError, match="cannot be written"):
        journal.sign(plan, b"signature")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = MemberJournal(path).entry(plan)
    assert (entry.secret, entry.signature) == (b"a" * 32, b"signature")
    assert "aaaa" not in repr(entry)
    with pytest.raises(MemberJournalError, match="cannot use the journal"):
        MemberJournal(tmp_path / "no folder" / "journal")
