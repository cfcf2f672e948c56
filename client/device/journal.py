"""Journal of what a device has sent: each message is recorded before it is sent.

A vector is hidden by masks that only its device's holders can remove. A server gains nothing by
asking for a message once. It may gain by asking again:

    another vector              the difference of the two reveals part of their contents
    another confirmation        two sets of survivors: each secret could be recovered for one set
    other unmasking shares      both secrets of one device: its vector could be read
    other key shares            nothing alone, but each draw selects other holders: after a billion
                                draws the holders may be the server's own devices
    another report              is private by its own randomness only: each costs epsilon again

So a device sends each of the first three once per study. If the study asks the same devices in
every round, and noise hides the differences of its sums, it sends them once per round, in a
limited number of rounds. It draws holders a few times; a draw is recorded as the digest of its
keys, because it counts even if nothing is sent for it. The device records the digest of a message
durably before it sends the message. It may send the same bytes any number of times; it sends no
other bytes, in this round or a later one, from this process or the next. That holds even if the
first cohort failed, because the server may have read its sum and claimed otherwise.

The journal contains no secret. Keys, seeds and shares exist in memory only, so after a restart
nothing is left of a round that could be sent; the journal then prevents another round. A crash
between record and send costs the device its part in one study, and nothing worse.

A coin that decides whether a device joins a round is flipped once: a server that could have it
flipped again would ask until it shows heads. So the result is recorded before it takes effect.

For reports the journal also records epsilon, and so the epsilon spent in all studies together. For
vectors it records the noise on their counts, from which the privacy loss of any vectors together is
computed (`protocol/privacy/noise_loss.py`). Each plan states the noise in its round, so the loss in
a study is known from the vectors that were sent. A vector's time, collection and `exact` limit the
exact sums of all studies (`client.device.vector_participation`).

Once a day the journal also stores a reading of the clock (`client.device.clock`).
"""

import asyncio
import json
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import NoneType
from typing import Final, Literal, ParamSpec, Self, TypeAlias, TypeVar

from filelock import lock_descriptor

from client.device.clock import MAX_TIME, DeviceClock, is_credible
from client.process_files import open_private_file, sync_folder
from protocol.api.phases import MessageKind
from protocol.clock_readings import ClockReadings
from protocol.device_policy.policy import PolicyError
from protocol.privacy.noise_loss import CountNoise, NoisyCounts

_JOIN_DECISION: Final = "invitation"  # the result of the coin that decides to join a round
_LOCK_POLL_SECONDS: Final = 0.01
_EntryKind: TypeAlias = MessageKind | Literal["invitation"]

P = ParamSpec("P")
T = TypeVar("T")
_OTHER_PROGRAM_REASON: Final = (
    "not an entry; another program wrote here, so the device sends nothing more"
)
_OTHER_VERSION_REASON: Final = (
    "an entry of another version of blindtally: use that version. A device in another folder is a "
    "new one, which does not know what this one has spent"
)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A message that a device sent to a study's cohort.

    Attributes:
        digest: SHA-256 of the message in hexadecimal; of an invitation, the digest of the plan.
        epsilon: the privacy loss of a report.
        variance: the variance of the noise on each count of a vector's sum, None without noise.
        probability: the probability of the device's secret coin for a vote.
        votes: the number of counts to which the device may add in the sum.
        joins: the result of an invitation's coin.
        service: the URL of the service, set by the journal.
        collection: the name of the collection that a vector's items come from.
        time: seconds since 1970 at which a vector was recorded.
        exact: whether a vector spends an exact study, set by the journal.
    """

    study: str
    round: int
    cohort: int
    kind: _EntryKind
    digest: str
    epsilon: float = 0.0
    variance: float | None = None
    probability: float = 1.0
    votes: int = 1
    joins: bool | None = None
    service: str = ""
    collection: str = ""
    time: int | None = field(default=None, compare=False)  # the same bytes may be sent later
    exact: bool | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Refuse what a journal could not be read with; raises ValueError."""
        if not all(isinstance(text, str) for text in (self.study, self.digest, self.service)):
            raise ValueError("a study, a digest and a service are text")
        if not all(type(number) is int for number in (self.round, self.cohort)):
            raise ValueError(f"{self.round!r} or {self.cohort!r} is not an integer")
        if self.time is not None and not (type(self.time) is int and 0 <= self.time < MAX_TIME):
            raise ValueError(f"{self.time!r} is not a time in seconds since 1970")
        if self.kind is MessageKind.MASKED_INPUT and self.time is None:
            raise ValueError("a vector needs the time at which it was recorded")
        if type(self.exact) not in (bool, NoneType) or not isinstance(self.collection, str):
            raise ValueError(f"{self.exact!r} or {self.collection!r} is not of a vector")
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon {self.epsilon} is not a privacy loss")
        if type(self.votes) is not int or self.votes < 1 or self.noise.variance < 0:
            raise ValueError(f"{self.votes!r} is not a number of counts")
        if type(self.joins) is not (bool if self.kind == _JOIN_DECISION else NoneType):
            raise ValueError(f"{self.joins!r} is not the result of a coin for {self.kind}")

    @classmethod
    def of(
        cls,
        study: str,
        number: int,
        cohort: int,
        kind: MessageKind,
        body: bytes,
        time: int | None = None,
    ) -> Self:
        """Return the entry of the message `body` in round `number`; a vector has a `time`."""
        return cls(study, number, cohort, kind, sha256(body).hexdigest(), time=time)

    @property
    def is_exact(self) -> bool:
        """Return whether a vector spends an exact study: always, unless the journal has decided."""
        return self.exact is not False

    @property
    def noise(self) -> CountNoise:
        """Return the noise on each count of a vector's sum."""
        return CountNoise(self.variance or 0.0, self.probability)


JournalLine: TypeAlias = JournalEntry | ClockReadings
_ENTRY_FIELDS: Final = frozenset(JournalEntry.__dataclass_fields__)


class JournalError(RuntimeError):
    """The journal cannot be read or written, so nothing may be sent."""


class Journal(ABC):
    """The messages that one device has sent to `service`; the epsilon is that of all services.

    Two services may have studies of the same id. Every method raises JournalError if the journal
    cannot be read or written.
    """

    service = ""

    def at(self, service: str) -> Self:
        """Return the same journal for the studies of the service at a URL."""
        journal = copy(self)
        journal.service = service
        return journal

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function that uses this journal, in a thread if it may wait."""
        return await asyncio.to_thread(function, *args, **kwargs)

    def record(
        self,
        entry: JournalEntry,
        max_per_study: int = 1,
        *,
        max_per_round: int | None = None,
        check_epsilon: Callable[[float], None] | None = None,
        check_noise: Callable[[NoisyCounts], None] | None = None,
        check_exact: Callable[[Sequence[JournalEntry]], bool] | None = None,
    ) -> None:
        """Record a message, which may be sent as soon as this function has returned.

        `check_epsilon` receives the epsilon spent so far, and `check_noise` the counts to which the
        device added in this study. `check_exact` receives the vectors of the entry's collection and
        returns whether this one spends an exact study. Each may refuse the message.

        Raises:
            PolicyError: if the device has sent `max_per_study` other messages of this kind in this
                study, or `max_per_round` in this round, or if a check raises it.
        """
        entry = replace(entry, service=self.service)
        with self._locked_entries() as entries:
            here = self._of_service(entries)
            same_kind = _of_kind(here, entry.study, entry.kind)
            if entry in same_kind:
                return
            in_round = sum(other.round == entry.round for other in same_kind)
            _check_count(same_kind, entry.study, entry.kind, max_per_study)
            if max_per_round is not None and in_round >= max_per_round:
                where = f"round {entry.round} of study {entry.study}"
                raise PolicyError("once per round", f"asks for another {entry.kind} in {where}")
            if check_epsilon is not None:
                check_epsilon(_epsilon_spent(entries))
            if check_noise is not None:
                check_noise(_noise_spent(here, entry.study))
            if check_exact is not None:
                entry = replace(entry, exact=check_exact(_vectors(entries, entry.collection)))
            self._append(entry)

    def check_sharings(self, study: str, max_sharings: int) -> None:
        """Check that the device may share keys again in `study`.

        Raises:
            PolicyError: if the device has shared keys `max_sharings` times in this study.
        """
        kind = MessageKind.KEY_SHARES
        with self._locked_entries() as entries:
            sharings = _of_kind(self._of_service(entries), study, kind)
        _check_count(sharings, study, kind, max_sharings)

    def decide_to_join(self, study: str, number: int, plan: str, flip: Callable[[], bool]) -> bool:
        """Return whether the device joins round `number` of `study`, by one `flip` of its coin.

        `plan` is the digest of the plan for which the coin is flipped. The device does not join by
        another plan of that round, where the same result may be worth more. It also does not join
        if it sent a message in the round before its coin was flipped.
        """
        with self._locked_entries() as entries:
            here = self._of_service(entries)
            in_round = [entry for entry in here if (entry.study, entry.round) == (study, number)]
            for entry in in_round:
                if entry.joins is not None:
                    return entry.joins and entry.digest == plan
            joins = not in_round and flip()
            decision = JournalEntry(
                study, number, -1, _JOIN_DECISION, plan, joins=joins, service=self.service
            )
            self._append(decision)
            return joins

    def has_join_decision(self, study: str, number: int) -> bool:
        """Return whether a coin was flipped for a plan of round `number` of `study`."""
        with self._locked_entries() as entries:
            return any(
                (entry.study, entry.round) == (study, number) and entry.joins is not None
                for entry in self._of_service(entries)
            )

    def rounds_by_study(self) -> Mapping[str, frozenset[int]]:
        """Return the rounds of each study to which the device sent a vector or a report."""
        rounds: dict[str, frozenset[int]] = {}
        with self._locked_entries() as entries:
            for entry in self._of_service(entries):
                if entry.kind in (MessageKind.MASKED_INPUT, MessageKind.REPORT):
                    rounds[entry.study] = rounds.get(entry.study, frozenset()) | {entry.round}
        return rounds

    def epsilon_spent(self) -> float:
        """Return the epsilon of all reports, to all services."""
        with self._locked_entries() as entries:
            return _epsilon_spent(entries)

    def noise_spent(self, study: str) -> NoisyCounts:
        """Return the number of counts to which the device added in `study`, by their noise."""
        with self._locked_entries() as entries:
            return _noise_spent(self._of_service(entries), study)

    def vectors(self, collection: str) -> list[JournalEntry]:
        """Return the vectors sent to all services with items of `collection`."""
        with self._locked_entries() as entries:
            return _vectors(entries, collection)

    def read_clock(self, now: float) -> DeviceClock:
        """Return the clock at `now`, in seconds since 1970, and store a reading once a day."""
        with self._locked_lines() as lines:
            readings = [line for line in lines if isinstance(line, ClockReadings)]
            if is_credible(now):
                after = readings[-1].after(now) if readings else ClockReadings(now, 0.0)
                if after not in readings[-1:]:
                    self._append(after)
                    readings.append(after)
        if not readings:
            return DeviceClock(now, ClockReadings(0.0, 0.0))
        set_back = readings[-2].latest - readings[-1].latest if readings[1:] else 0.0
        return DeviceClock(now, readings[-1], set_back)

    def _of_service(self, entries: Iterable[JournalEntry]) -> list[JournalEntry]:
        return [entry for entry in entries if entry.service == self.service]

    @contextmanager
    def _locked_entries(self) -> Iterator[list[JournalEntry]]:
        with self._locked_lines() as lines:
            yield [line for line in lines if isinstance(line, JournalEntry)]

    @abstractmethod
    @contextmanager
    def _locked_lines(self) -> Iterator[list[JournalLine]]:
        """Yield all lines while no other thread or process reads or appends."""

    @abstractmethod
    def _append(self, line: JournalLine) -> None:
        """Append a line, within `_locked_lines`."""


def _of_kind(entries: list[JournalEntry], study: str, kind: _EntryKind) -> list[JournalEntry]:
    return [entry for entry in entries if (entry.study, entry.kind) == (study, kind)]


def _check_count(
    same_kind: Sequence[JournalEntry], study: str, kind: _EntryKind, max_per_study: int
) -> None:
    """Raise PolicyError if the device has sent `max_per_study` messages of this kind in a study."""
    if len(same_kind) < max_per_study:
        return
    limit = "once per study" if max_per_study == 1 else "max_rounds"
    if kind is MessageKind.KEY_SHARES:
        limit = "max_sharings"
    raise PolicyError(limit, f"asks for {kind} number {max_per_study + 1} in study {study}")


def _epsilon_spent(entries: list[JournalEntry]) -> float:
    return math.fsum(entry.epsilon for entry in entries)


def _vectors(entries: list[JournalEntry], collection: str) -> list[JournalEntry]:
    kind = MessageKind.MASKED_INPUT
    return [entry for entry in entries if (entry.kind, entry.collection) == (kind, collection)]


def _noise_spent(entries: list[JournalEntry], study: str) -> NoisyCounts:
    return noisy_counts_of(_of_kind(entries, study, MessageKind.MASKED_INPUT))


def noisy_counts_of(vectors: Iterable[JournalEntry]) -> Counter[CountNoise]:
    """Return the number of counts to which the device added by these vectors, by their noise."""
    counts = Counter[CountNoise]()
    for each in vectors:
        counts[each.noise] += each.votes
    return counts


class MemoryJournal(Journal):
    """A journal that ends with its process, for devices that also do."""

    def __init__(self, entries: Iterable[JournalEntry] = ()) -> None:
        self._lines: list[JournalLine] = list(entries)
        self._lock = Lock()

    @property
    def entries(self) -> tuple[JournalEntry, ...]:
        return tuple(line for line in self._lines if isinstance(line, JournalEntry))

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    @contextmanager
    def _locked_lines(self) -> Iterator[list[JournalLine]]:
        with self._lock:
            yield list(self._lines)

    def _append(self, line: JournalLine) -> None:
        self._lines.append(line)


class FileJournal(Journal):
    """A journal in the file at `path`, with one line of JSON per entry or reading of a clock.

    Processes take turns by a lock on the file. On POSIX only its owner can read the file: it
    contains no secret, but it shows in which studies the device took part. Keep it next to the
    device's secret: without the journal, its identities must not be used again.

    If the machine stops while an entry is written, the entry is incomplete. It did not count yet,
    and nothing was sent, so a last line without its end is dropped. Any other line that cannot be
    read means that another program wrote to the file. The device then takes part in nothing until
    a person has checked the file.

    `after_append` is called with each new entry on the disk, before its message may be sent.
    """

    def __init__(self, path: Path, after_append: Callable[[], None] | None = None) -> None:
        self._path = path
        self._after_append = after_append
        self._lock = Lock()  # the file's lock does not separate the threads of a process
        self._file = -1

    @contextmanager
    def _locked_lines(self) -> Iterator[list[JournalLine]]:
        with self._lock:
            try:
                self._file = open_private_file(self._path, os.O_APPEND)
                try:
                    lock_descriptor(self._file, poll_interval=_LOCK_POLL_SECONDS)
                    yield self._read()
                finally:
                    os.close(self._file)  # releases the lock
            except OSError as error:
                raise JournalError(f"{self._path}: {error.strerror}") from error

    def _read(self) -> list[JournalLine]:
        with open(self._file, "rb", closefd=False) as file:
            content = file.read()
        complete = complete_lines(content)
        if len(complete) < len(content):
            os.ftruncate(self._file, len(complete))
        lines = complete.split(b"\n")[:-1]
        return [self._parse_line(number, line) for number, line in enumerate(lines, start=1)]

    def _parse_line(self, number: int, line: bytes) -> JournalLine:
        try:
            fields = json.loads(line)
            if "latest" in fields:
                return _checked_readings(ClockReadings(**fields))
            if {"study", "kind"} <= fields.keys() != _ENTRY_FIELDS:
                raise self._refusal(number, _OTHER_VERSION_REASON)
            kind = fields["kind"]
            if kind != _JOIN_DECISION:
                kind = MessageKind(kind)
            return JournalEntry(**(fields | {"kind": kind}))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise self._refusal(number, _OTHER_PROGRAM_REASON) from None

    def _refusal(self, number: int, reason: str) -> JournalError:
        return JournalError(f"{self._path}, line {number}: {reason}")

    def _append(self, line: JournalLine) -> None:
        with open(self._file, "ab", closefd=False) as file:
            file.write(json.dumps(asdict(line)).encode() + b"\n")
        os.fsync(self._file)
        sync_folder(self._path.parent)  # the file may be new: its name must be on the disk as well
        if self._after_append is not None:
            self._after_append()


def _checked_readings(readings: ClockReadings) -> ClockReadings:
    """Return readings of the clock that can be compared; raises ValueError for others."""
    times = (readings.confirmed, readings.latest)
    if not all(type(time) in (int, float) for time in times) or not 0 <= times[0] <= times[1]:
        raise ValueError(f"{readings} are not readings of a clock")
    if not is_credible(readings.latest):
        raise ValueError(f"{readings.latest!r} is not a time in seconds since 2024")
    return readings


def complete_lines(content: bytes) -> bytes:
    """Return the lines of a journal without an incomplete last one, which does not count."""
    return content[: content.rfind(b"\n") + 1]
