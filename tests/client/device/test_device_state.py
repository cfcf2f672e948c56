"""State of a device: the same identity whenever it returns, and identities that nobody can link."""

import json
import stat
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from client.committee.member_journal import KeptKey
from client.committee.registrar import DrawRecord
from client.device.device_state import DeviceState
from client.device.journal import JournalError, MemoryJournal
from protocol.clock_readings import DAY_SECONDS
from tests.support.journals import vector_entry

HOME, OTHER_SERVICE = "https://one.example", "https://other.example"
VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "device_identities.json").read_text())


def test_one_folder_is_one_device(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "device"
    first, again = DeviceState.on_disk(folder), DeviceState.on_disk(folder)
    assert first.identity(HOME, "s1") == again.identity(HOME, "s1")
    assert first.credential(HOME, "s1") == again.credential(HOME, "s1")
    given = vector_entry("s1")
    first.journal.record(given)
    assert again.journal.rounds_by_study() == {"s1": {1}}
    other = DeviceState.on_disk(tmp_path / "other")
    assert other.identity(HOME, "s1") != first.identity(HOME, "s1")


def test_the_default_folder_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.device.device_state.user_state_path", lambda name: tmp_path / name)
    first = DeviceState.on_disk()
    assert (tmp_path / "blindtally" / "device" / "secret").exists()
    assert DeviceState.on_disk().identity(HOME, "s1") == first.identity(HOME, "s1")


def test_every_study_and_every_service_meets_another_identity() -> None:
    state = DeviceState(bytes(32), MemoryJournal())
    places: list[tuple[str, str | None]] = [
        (HOME, "s1"),
        (HOME, "s2"),
        (OTHER_SERVICE, "s1"),
        (HOME + "s", "1"),
        (HOME, 's1", "'),
        (HOME, None),
        (HOME, "null"),
    ]
    assert len({state.identity(*place).public for place in places}) == len(places)
    assert len({state.credential(*place) for place in places}) == len(places)


def test_what_is_given_is_chosen_alike_each_time() -> None:
    state = DeviceState(bytes(32), MemoryJournal())
    first, same = (state.choices(HOME, "s1")(9) for _ in range(2))
    other = state.choices(HOME, "s2")(9)
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("vector", VECTORS["identities"])
def test_identities_are_made_as_written_down(vector: dict[str, Any]) -> None:
    state = DeviceState(bytes.fromhex(vector["secret"]), MemoryJournal())
    place = vector["service"], vector["study"]
    assert state.identity(*place).public.hex() == vector["identity"]
    assert state.credential(*place) == vector["credential"]


def test_a_secret_is_its_owners_alone_and_in_no_log(tmp_path: Path) -> None:
    state = DeviceState.on_disk(tmp_path, Random(1))
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().split()[-1] not in repr(state)
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]  # no other copy


def test_of_two_first_starts_one_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    winner = DeviceState.on_disk(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda _path: False)  # as the slower process saw it
    assert DeviceState.on_disk(tmp_path).identity(HOME, "s1") == winner.identity(HOME, "s1")


@pytest.mark.parametrize(
    "text", ["", "blindtally device v1 ", "blindtally device v1 00ff", "ä" * 64, "00" * 32]
)
def test_what_is_no_secret_is_refused_and_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(JournalError, match="does not contain the secret"):
        DeviceState.on_disk(tmp_path)
    assert path.read_text() == text


def test_a_device_keeps_no_old_keys_of_committees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: `DeviceState.member_journal`; otherwise a stolen disk opens stored messages."""
    state, start = DeviceState.on_disk(tmp_path / "device"), time.time()
    old, new = (KeptKey(plan * 32, "study-1", 1) for plan in (b"o", b"n"))
    with closing(state.member_journal()) as journal:
        journal.key(old, b"a" * 32, 1e9)
        journal.key(new, b"b" * 32, start)
    for days, secret in ((0.5, b"a" * 32), (1.1, None)):
        monkeypatch.setattr("time.time", lambda days=days: start + days * DAY_SECONDS)
        with closing(state.member_journal()) as journal:
            assert journal.entry(old.plan).secret == secret
            assert journal.entry(new.plan).secret == b"b" * 32


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="Not a directory"):
        DeviceState.on_disk(tmp_path / "file" / "device")


def test_a_folder_is_named_by_a_text_or_a_path(tmp_path: Path) -> None:
    named = DeviceState.on_disk(str(tmp_path / "device"))
    again = DeviceState.on_disk(tmp_path / "device")
    assert named.identity("s", "x").public == again.identity("s", "x").public
    DrawRecord(str(tmp_path / "draws")).draw(b"", b"", [bytes(32)], 1, Random(1))
    assert (tmp_path / "draws").exists()
