"""Journal of a device: one version of each message, after any restart and any incomplete line."""

import json
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import get_ident
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.device.journal import FileJournal, Journal, JournalEntry, JournalError, MemoryJournal
from protocol.api.phases import MessageKind
from protocol.device_policy.policy import PolicyError
from protocol.privacy.noise_loss import CountNoise, NoisyCounts, noise_epsilon
from tests.support.policies import refused_for


def vector(body: bytes, number: int = 1, cohort: int = 0, study: str = "study-1") -> JournalEntry:
    """Return the entry of a masked input."""
    kind = MessageKind.MASKED_INPUT
    return replace(JournalEntry.of(study, number, cohort, kind, body, 1), collection="words")


VECTOR = vector(b"masked")
CONFIRMATION = JournalEntry.of("study-1", 1, 0, MessageKind.CONFIRMATION, b"signature under a set")
REVEAL = JournalEntry.of("study-1", 1, 0, MessageKind.UNMASKING_SHARES, b"one half")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture(params=["memory", "file"])
def journal(request: pytest.FixtureRequest, path: Path) -> Journal:
    return MemoryJournal() if request.param == "memory" else FileJournal(path)


def test_the_same_message_may_be_sent_as_often_as_it_takes(journal: Journal) -> None:
    for entry in (VECTOR, VECTOR, CONFIRMATION, REVEAL, REVEAL, VECTOR):
        journal.record(entry)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (VECTOR, vector(b"another")),
        (VECTOR, vector(b"another", 2)),  # of the next round
        (VECTOR, replace(VECTOR, cohort=1)),
        (
            CONFIRMATION,
            JournalEntry.of("study-1", 1, 0, MessageKind.CONFIRMATION, b"under another set"),
        ),
        (REVEAL, JournalEntry.of("study-1", 1, 0, MessageKind.UNMASKING_SHARES, b"the other half")),
    ],
)
def test_a_second_message_of_a_kind_is_refused(
    journal: Journal, first: JournalEntry, second: JournalEntry
) -> None:
    journal.record(first)
    for _ in range(2):  # a refusal leaves no trace that would let it through next time
        with refused_for("once per study", f"{second.kind} number 2 in"):
            journal.record(second)
    journal.record(first)


def test_another_study_is_another_matter(journal: Journal) -> None:
    journal.record(VECTOR)
    journal.record(replace(VECTOR, study="study-2", digest="00" * 32))
    journal.record(replace(CONFIRMATION, study="study-3"))
    assert journal.rounds_by_study() == {"study-1": {1}, "study-2": {1}}


def test_a_study_of_the_same_id_at_another_service_is_another_study(journal: Journal) -> None:
    here, there = journal.at("https://here"), journal.at("https://there")
    there.record(replace(VECTOR, variance=9.0))
    there.decide_to_join("study-2", 1, PLAN, lambda: False)
    assert here.rounds_by_study() == {}
    assert not here.noise_spent("study-1")
    assert not here.has_join_decision("study-2", 1)
    assert here.decide_to_join("study-2", 1, PLAN, lambda: True)
    here.record(vector(b"another"))
    with pytest.raises(PolicyError, match="masked-input number 2"):
        here.record(VECTOR)


@pytest.mark.parametrize("field", ["service", "collection", "time", "exact", "epsilon", "rho"])
def test_an_entry_of_another_version_stops_everything(path: Path, field: str) -> None:
    # Another version may have other rules of what counts, so the device does not guess.
    FileJournal(path).record(VECTOR)
    line = json.loads(path.read_text())
    if field in line:
        del line[field]
    else:
        line[field] = 1
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(JournalError, match="line 1: an entry of another version of blindtally"):
        FileJournal(path).rounds_by_study()


def test_a_study_of_many_rounds_has_one_of_a_kind_in_each(journal: Journal) -> None:
    for number in (1, 2, 3):
        entry = vector(b"of round %d" % number, number)
        journal.record(entry, 4, max_per_round=1)
        journal.record(entry, 4, max_per_round=1)  # the same bytes again
        for cohort, body in ((0, b"another"), (1, b"another"), (1, b"of round %d" % number)):
            other = vector(body, number, cohort)
            with pytest.raises(
                PolicyError, match=f"another masked-input in round {number}"
            ) as refused:
                journal.record(other, 4, max_per_round=1)
            assert refused.value.limit == "once per round"
    assert journal.rounds_by_study() == {"study-1": {1, 2, 3}}


def test_the_noise_of_vectors_is_counted_in_their_study(journal: Journal) -> None:
    assert journal.noise_spent("study-1") == {}
    spent: list[NoisyCounts] = []
    for number, variance in enumerate((9.0, 4.0, 9.0), start=1):
        entry = replace(vector(b"%d" % number, number), variance=variance, votes=5)
        journal.record(entry, 4, max_per_round=1, check_noise=spent.append)
        journal.record(replace(CONFIRMATION, round=number), 4, max_per_round=1)
    assert spent == [{}, {CountNoise(9.0): 5}, {CountNoise(9.0): 5, CountNoise(4.0): 5}]
    assert journal.noise_spent("study-1") == {CountNoise(9.0): 10, CountNoise(4.0): 5}
    assert journal.noise_spent("study-2") == {}
    journal.record(vector(b"in no noise", 4), 4, max_per_round=1)
    assert noise_epsilon(journal.noise_spent("study-1"), 1e-5) == math.inf


def test_what_noise_hides_no_longer_is_not_recorded(journal: Journal) -> None:
    def refuse(spent: NoisyCounts) -> None:
        raise PolicyError("max_epsilon", f"spent {sum(spent.values())}")

    with pytest.raises(PolicyError, match="spent 0"):
        journal.record(VECTOR, check_noise=refuse)
    assert journal.rounds_by_study() == {}


def test_a_study_of_many_rounds_ends_at_the_most(journal: Journal) -> None:
    for number in (1, 2):
        entry = vector(b"%d" % number, number)
        journal.record(entry, 2, max_per_round=1)
    for _ in range(2):
        third = vector(b"3", 3)
        with refused_for("max_rounds", "masked-input number 3 in study study-1"):
            journal.record(third, 2, max_per_round=1)
    journal.record(vector(b"3", 3, study="study-2"), 2, max_per_round=1)
    assert journal.rounds_by_study() == {"study-1": {1, 2}, "study-2": {3}}


def test_rounds_are_those_that_got_a_vector_or_a_report(path: Path) -> None:
    FileJournal(path).record(JournalEntry.of("study-1", 7, 0, MessageKind.KEY_SHARES, b"keys"), 64)
    FileJournal(path).record(replace(CONFIRMATION, study="study-2"))
    assert FileJournal(path).rounds_by_study() == {}
    FileJournal(path).record(VECTOR)
    FileJournal(path).record(replace(VECTOR, study="study-3", round=5, kind=MessageKind.REPORT))
    assert FileJournal(path).rounds_by_study() == {"study-1": {1}, "study-3": {5}}


def test_a_record_is_a_line_of_json_without_what_was_given(path: Path) -> None:
    FileJournal(path).record(REVEAL)
    (line,) = path.read_text().splitlines()
    assert json.loads(line) == {
        "study": "study-1",
        "round": 1,
        "cohort": 0,
        "kind": "unmasking-shares",
        "digest": sha256(b"one half").hexdigest(),
        "epsilon": 0.0,
        "variance": None,
        "probability": 1.0,
        "votes": 1,
        "joins": None,
        "service": "",
        "collection": "",
        "time": None,
        "exact": None,
    }


PLAN = "5a" * 32


@pytest.mark.parametrize("fell", [False, True])
def test_a_coin_is_flipped_once(path: Path, fell: bool) -> None:
    flipped: list[bool] = []

    def flip() -> bool:
        flipped.append(fell)
        return fell

    joined = {FileJournal(path).decide_to_join("study-1", 1, PLAN, flip) for _ in range(100)}
    assert joined == {fell}
    assert flipped == [fell]
    assert FileJournal(path).rounds_by_study() == {}  # joining is not a contribution
    FileJournal(path).record(VECTOR)
    assert FileJournal(path).decide_to_join("study-1", 1, PLAN, flip) is fell
    for study, number in (("study-1", 2), ("study-2", 1)):
        assert FileJournal(path).decide_to_join(study, number, PLAN, flip) is fell
    assert len(flipped) == 3


@pytest.mark.parametrize("kind", [MessageKind.KEY_SHARES, MessageKind.MASKED_INPUT])
def test_a_device_in_a_round_without_a_coin_does_not_join(
    journal: Journal, kind: MessageKind
) -> None:
    journal.record(replace(VECTOR, kind=kind))
    assert not journal.decide_to_join("study-1", 1, PLAN, lambda: True)
    assert not journal.decide_to_join("study-1", 1, PLAN, lambda: True)
    assert journal.decide_to_join("study-1", 2, PLAN, lambda: True)


def test_heads_that_fell_for_another_plan_are_none(journal: Journal) -> None:
    assert journal.decide_to_join("study-1", 1, PLAN, lambda: True)
    assert not journal.decide_to_join("study-1", 1, "a5" * 32, lambda: True)
    assert journal.decide_to_join("study-1", 1, PLAN, lambda: False)


@pytest.mark.parametrize(
    "change",
    [
        *({"study": []}, {"round": "1"}, {"cohort": None}, {"digest": 7}, {"service": {}}),
        *({"kind": "key"}, {"collection": None}, {"exact": 1}),
        *({"time": time} for time in (-1, 2**40, 1.5)),
        *({"epsilon": cost} for cost in (math.nan, math.inf, -1.0, "1", None)),
        *({"variance": variance} for variance in (math.nan, math.inf, -1.0, "1")),
        *({"probability": probability} for probability in (0.0, 1.1, math.nan, "1")),
        *({"votes": votes} for votes in (0, -1, 1.5, "1")),
        *({"kind": "invitation", "joins": joins} for joins in (None, 1, "yes")),
        {"joins": True},
    ],
    ids=str,
)
def test_a_line_with_a_wrong_value_stops_everything(path: Path, change: dict[str, Any]) -> None:
    journal = FileJournal(path)
    journal.record(VECTOR)
    path.write_text(json.dumps(json.loads(path.read_text()) | change) + "\n")
    with pytest.raises(JournalError, match="line 1: not an entry"):
        journal.rounds_by_study()


def test_of_many_threads_one_flips(journal: Journal) -> None:
    fell = iter((True, False, True, False) * 10)
    with ThreadPoolExecutor(8) as pool:
        futures = [
            pool.submit(journal.decide_to_join, "study-1", 1, PLAN, lambda: next(fell))
            for _ in range(40)
        ]
        assert {future.result() for future in futures} == {True}


def test_what_reports_cost_adds_up_over_services_studies_and_lives(path: Path) -> None:
    entry = replace(REVEAL, kind=MessageKind.REPORT, epsilon=0.5)
    spent: list[float] = []
    for number in range(3):
        report = replace(entry, study=f"study-{number}")
        journal = FileJournal(path).at(f"https://service-{number}")
        journal.record(report, check_epsilon=spent.append)
        journal.record(report, check_epsilon=spent.append)  # again: it costs nothing
        assert journal.rounds_by_study().keys() == {f"study-{number}"}
    assert spent == [0.0, 0.5, 1.0]


@given(
    study=st.text(min_size=1, max_size=64),
    number=st.integers(1, 10**30),
    kind=st.sampled_from(MessageKind),
    epsilon=st.floats(),
    variance=st.none() | st.floats(),
    probability=st.floats(),
    votes=st.integers(-1, 10**30),
    joins=st.none() | st.booleans(),
    service=st.text(),
    collection=st.text(),
    time=st.none() | st.integers(-1, 2**40),
    exact=st.none() | st.booleans(),
)
def test_each_entry_that_is_recorded_is_read_back(study: str, number: int, **rest: Any) -> None:
    try:
        entry = JournalEntry(study, number, 0, digest=PLAN, **rest)
    except ValueError:
        return
    with TemporaryDirectory() as folder:
        FileJournal(Path(folder) / "journal").at(entry.service).record(entry)
        with FileJournal(Path(folder) / "journal")._locked_entries() as entries:
            assert [asdict(read) for read in entries] == [asdict(entry)]


def test_vectors_are_those_of_a_collection_at_all_services(journal: Journal) -> None:
    here, there = journal.at("https://here"), journal.at("https://there")
    words, urls = (replace(VECTOR, collection=name) for name in ("words", "urls"))
    here.record(words)
    here.record(replace(CONFIRMATION, collection="words"))
    there.record(words)
    there.record(replace(urls, study="study-2"))
    studies = [(entry.service, entry.study) for entry in here.vectors("words")]
    assert studies == [("https://here", "study-1"), ("https://there", "study-1")]
    assert [entry.study for entry in here.vectors("urls")] == ["study-2"]


def test_what_is_exact_is_decided_with_all_vectors_and_kept(path: Path) -> None:
    """A vector that is sent again is decided once, also if its time differs."""
    decisions: list[int] = []

    def decide(vectors: Sequence[JournalEntry]) -> bool:
        decisions.append(len(vectors))
        return not vectors

    for number in (1, 2):
        entry = vector(b"%d" % number, study=f"study-{number}")
        for time in (number, 9):
            entry = replace(entry, variance=9.0, time=time)
            FileJournal(path).record(entry, check_exact=decide)
    assert decisions == [0, 1]
    kept = FileJournal(path).vectors("words")
    assert [(entry.time, entry.is_exact) for entry in kept] == [(1, True), (2, False)]


def test_a_vector_is_exact_unless_the_journal_decided_otherwise() -> None:
    assert VECTOR.is_exact
    assert replace(VECTOR, variance=9.0).is_exact
    assert not replace(VECTOR, variance=9.0, exact=False).is_exact


def test_a_vector_without_a_time_is_none() -> None:
    with pytest.raises(ValueError, match="needs the time"):
        JournalEntry.of("study-1", 1, 0, MessageKind.MASKED_INPUT, b"masked")


def test_a_journal_is_its_owners_alone(path: Path) -> None:
    before = os.umask(0)
    try:
        FileJournal(path).record(VECTOR)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("torn", [b'{"study": "study-2", "rou', b"{", b"\0" * 40])
def test_a_torn_last_line_was_never_sent_and_is_dropped(path: Path, torn: bytes) -> None:
    journal = FileJournal(path)
    journal.record(VECTOR)
    whole = path.read_bytes()
    path.write_bytes(torn)
    assert journal.rounds_by_study() == {}
    path.write_bytes(whole + torn)
    assert journal.rounds_by_study() == {"study-1": {1}}
    journal.record(CONFIRMATION)
    assert path.read_bytes().startswith(whole)
    assert FileJournal(path).rounds_by_study() == {"study-1": {1}}
    with pytest.raises(PolicyError):
        journal.record(replace(CONFIRMATION, digest="00" * 32))


@pytest.mark.parametrize(
    "line", [b"not json", b"[]", b"{}", b"", b'{"kind": "masked-input"}', b"[" * 100_000], ids=repr
)
def test_a_line_that_nobody_tore_stops_everything(path: Path, line: bytes) -> None:
    journal = FileJournal(path)
    journal.record(VECTOR)
    path.write_bytes(path.read_bytes() + line + b"\n")
    for act in (journal.rounds_by_study, lambda: journal.record(CONFIRMATION)):
        with pytest.raises(JournalError, match="line 2"):
            act()


@pytest.mark.parametrize("wrong", ["missing/journal", "."])
def test_what_cannot_be_recorded_is_not_acknowledged(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(JournalError, match=wrong):
        FileJournal(tmp_path / wrong).record(VECTOR)


def test_a_record_is_on_disk_before_it_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []

    def fsync(file: int) -> None:
        synced.append((os.fstat(file).st_ino, path.read_bytes().count(b"\n")))

    monkeypatch.setattr(os, "fsync", fsync)
    FileJournal(path).record(VECTOR)
    assert synced == [(path.stat().st_ino, 1), (path.parent.stat().st_ino, 1)]


def test_a_disk_that_fails_stops_the_device(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(JournalError, match="No space left"):
        FileJournal(path).record(VECTOR)


def contenders(journals: Callable[[], Journal], count: int) -> int:
    """Return the number of those among `count` devices with one journal that send a vector."""

    def give(number: int) -> int:
        with suppress(PolicyError):
            journals().record(vector(b"%d" % number, number, study="study"))
            return 1
        return 0

    with ThreadPoolExecutor(count) as threads:
        return sum(threads.map(give, range(count)))


def test_of_many_threads_one_gives_its_vector(journal: Journal, tmp_path: Path) -> None:
    assert contenders(lambda: journal, 8) == 1
    assert contenders(lambda: FileJournal(tmp_path / "shared"), 8) == 1


def test_of_many_studies_at_once_one_gets_an_exact_sum(journal: Journal) -> None:
    def give(number: int) -> int:
        with suppress(PolicyError):
            entry = vector(b"%d" % number, study=f"study-{number}")
            journal.record(entry, check_exact=at_most_one)
            return 1
        return 0

    def at_most_one(vectors: Sequence[JournalEntry]) -> bool:
        if vectors:
            raise PolicyError("max_exact_studies", "spent")
        return True

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(give, range(8))) == 1


def test_of_many_processes_one_gives_its_vector(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FileJournal._read

    def slow_read(journal: FileJournal) -> Any:
        lines = read(journal)
        sleep(0.1)  # without the lock, all four have read before one writes
        return lines

    def give(number: int) -> None:
        at_once.wait()
        try:
            FileJournal(path).record(vector(b"%d" % number, number, study="study"))
        except PolicyError:
            os._exit(7)
        os._exit(0)

    monkeypatch.setattr(FileJournal, "_read", slow_read)
    processes = multiprocessing.get_context("fork")  # without the seconds of imports
    at_once = processes.Barrier(4)
    devices = [processes.Process(target=give, args=(number,)) for number in range(4)]
    for device in devices:
        device.start()
    for device in devices:
        device.join(60)
    assert sorted(device.exitcode or 0 for device in devices) == [0, 7, 7, 7]
    assert len(path.read_text().splitlines()) == 1


def test_a_coin_costs_no_epsilon(path: Path) -> None:
    journal = FileJournal(path)
    journal.decide_to_join("study-1", 1, PLAN, lambda: True)
    assert journal.epsilon_spent() == 0


async def test_what_may_wait_for_a_disk_runs_in_a_thread(path: Path) -> None:
    assert await FileJournal(path).run(get_ident) != get_ident()
    assert await MemoryJournal().run(get_ident) == get_ident()


def test_entries_leave_no_file_open(path: Path) -> None:
    journal, open_files = FileJournal(path), Path("/proc/self/fd")
    before = len(list(open_files.iterdir()))
    journal.record(VECTOR)
    assert len(list(open_files.iterdir())) == before
