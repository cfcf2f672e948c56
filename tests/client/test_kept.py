"""What a device keeps: the same identity whenever it comes again, and none that tell it apart."""

import json
import stat
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from client.journal import Given, JournalError, MemoryJournal, What
from client.kept import Kept

HOME, AWAY = "https://one.example", "https://other.example"
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "kept.json").read_text())


def test_one_folder_is_one_device(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "device"
    first, again = Kept.on_disk(folder), Kept.on_disk(folder)
    assert first.identity(HOME, "s1") == again.identity(HOME, "s1")
    assert first.credential(HOME, "s1") == again.credential(HOME, "s1")
    given = Given.of("s1", 1, 0, What.VECTOR, b"vector")
    first.journal.record(given)
    assert again.journal.rounds() == {"s1": {1}}
    other = Kept.on_disk(tmp_path / "other")
    assert other.identity(HOME, "s1") != first.identity(HOME, "s1")


def test_without_a_folder_it_is_this_users_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.kept.user_state_path", lambda name: tmp_path / name)
    first = Kept.on_disk()
    assert (tmp_path / "blindtally" / "device" / "secret").exists()
    assert Kept.on_disk().identity(HOME, "s1") == first.identity(HOME, "s1")


def test_every_study_and_every_service_meets_another_identity() -> None:
    kept = Kept(bytes(32), MemoryJournal())
    places: list[tuple[str, str | None]] = [
        (HOME, "s1"),
        (HOME, "s2"),
        (AWAY, "s1"),
        (HOME + "s", "1"),
        (HOME, 's1", "'),
        (HOME, None),
        (HOME, "null"),
    ]
    assert len({kept.identity(*place).public for place in places}) == len(places)
    assert len({kept.credential(*place) for place in places}) == len(places)


def test_what_is_given_is_chosen_alike_each_time() -> None:
    kept = Kept(bytes(32), MemoryJournal())
    one, same = (kept.choices(HOME, "s1").integers(1000, size=9) for _ in range(2))
    other = kept.choices(HOME, "s2").integers(1000, size=9)
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("vector", VECTORS["identities"])
def test_identities_are_made_as_written_down(vector: dict[str, Any]) -> None:
    kept = Kept(bytes.fromhex(vector["secret"]), MemoryJournal())
    place = vector["service"], vector["study"]
    assert kept.identity(*place).public.hex() == vector["identity"]
    assert kept.credential(*place) == vector["credential"]


def test_a_secret_is_its_owners_alone_and_in_no_log(tmp_path: Path) -> None:
    kept = Kept.on_disk(tmp_path, Random(1))
    path = tmp_path / "secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().split()[-1] not in repr(kept)
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]  # no copy beside it


def test_of_two_that_begin_at_once_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    winner = Kept.on_disk(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda _path: False)  # as the loser saw it
    assert Kept.on_disk(tmp_path).identity(HOME, "s1") == winner.identity(HOME, "s1")


@pytest.mark.parametrize(
    "said", ["", "blindtally device v1 ", "blindtally device v1 00ff", "ä" * 64, "00" * 32]
)
def test_what_is_no_secret_is_refused_and_not_replaced(tmp_path: Path, said: str) -> None:
    path = tmp_path / "secret"
    path.write_text(said)
    with pytest.raises(JournalError, match="no device's secret"):
        Kept.on_disk(tmp_path)
    assert path.read_text() == said


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="Not a directory"):
        Kept.on_disk(tmp_path / "file" / "device")
