"""What a device gave, written down before it is sent: what may be had once is given once.

A vector is hidden by masks that only its device's holders can take off. Nobody gains by asking
once; by asking again one might:

    another vector          the difference of the two tells what is in them
    another confirmation    two sets of survivors: each secret could be had for one of them
    another reveal          both secrets of one device: its vector could be read
    other shares            nothing by itself, but other holders, picked anew: who may ask for
                            them a billion times meets some that are its own

    another report          private by its own chance only, and each costs epsilon again

So of the first three a device gives one in a study, ever; or, if the study is one in which
devices take part in every round and noise hides what its sums differ in, one in each of some
rounds. And it draws holders a few times (a
draw is recorded as the digest of its keys, since it counts even if nothing is sent for it). It
records the digest of what it is about to send, durably, and only then sends it. The same bytes
may be sent as often as the network asks for; others are refused, in this round or a later one,
by this process or the next. That holds even if the first cohort failed: the server may have
read its sum and said otherwise.

No secret is ever written. Keys, seeds and shares live in memory only, so after a restart there
is nothing left of a round that could be given; what the journal adds then is that no other
round begins. A crash between record and send costs a device its part in one study, and
nothing worse.

A coin by which a device joins a round, or stays away, is flipped once: whoever could have it
flipped again would ask until it falls heads. So it is recorded before anything is done about it.

Of reports it also records what each costs, and so what a device has spent: that holds for all
studies together. Of vectors it records what the noise of their sums lets through: each plan says
how much noise its own round has, so what a device told in a study is known from all it gave.
"""

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from threading import Lock
from types import NoneType
from typing import Self

from client.policy import PolicyError


class What(StrEnum):
    """The messages of a participant that it does not give as often as it is asked."""

    SHARES = "shares"
    VECTOR = "vector"
    CONFIRMATION = "confirmation"
    REVEAL = "reveal"
    REPORT = "report"
    INVITATION = "invitation"  # said to nobody: how the coin fell by which it joins a round


@dataclass(frozen=True, slots=True)
class Given:
    """That a device gave a message of SHA-256 `digest`, in hexadecimal, to a study's cohort.

    `epsilon` is what it cost; `rho` what a sum with noise tells of a vector, None if it has none.
    Of an invitation, `digest` is that of the plan and `joins` says how the coin fell.
    """

    study: str
    round: int
    cohort: int
    what: What
    digest: str
    epsilon: float = 0.0
    rho: float | None = None
    joins: bool | None = None

    @classmethod
    def of(
        cls, study: str, number: int, cohort: int, what: What, body: bytes, epsilon: float = 0.0
    ) -> Self:
        """Return the record of `body`."""
        return cls(study, number, cohort, what, sha256(body).hexdigest(), epsilon)


class JournalError(RuntimeError):
    """The journal cannot be read or written, so nothing may be sent."""


class Journal(ABC):
    """What one device gave, in all its studies."""

    def record(
        self,
        given: Given,
        most: int = 1,
        *,
        a_round: int | None = None,
        allow: Callable[[float], None] | None = None,
        hidden: Callable[[float], None] | None = None,
    ) -> None:
        """Record what is about to be sent; once this returns it may be.

        `allow` is asked first whether it may be spent, by the epsilon that was spent before, and
        `hidden` whether noise still hides it, by the rho that was told in this study (`told`).

        Raises:
            PolicyError: if the device gave `most` other messages of this kind in this study, or
                `a_round` in this round, or `allow` or `hidden` raises it.
            JournalError: if it cannot be recorded.
        """
        with self._exclusive() as known:
            alike = [one for one in known if (one.study, one.what) == (given.study, given.what)]
            if given in alike:
                return
            here = sum(one.round == given.round for one in alike)
            if len(alike) >= most:
                limit = "max_sharings" if given.what is What.SHARES else "max_rounds"
                asked = f"asked for {given.what} number {most + 1} in study {given.study}"
                raise PolicyError("once per study" if most == 1 else limit, asked)
            if a_round is not None and here >= a_round:
                where = f"round {given.round} of study {given.study}"
                raise PolicyError("once per round", f"asked for another {given.what} in {where}")
            if allow is not None:
                allow(math.fsum(one.epsilon for one in known))
            if hidden is not None:
                hidden(_told(known, given.study))
            self._append(given)

    def invited(self, study: str, number: int, plan: str, flip: Callable[[], bool]) -> bool:
        """Return whether the device joins round `number` of `study`: `flip`, the first time.

        `plan` is the digest of what the coin was flipped for. Shown another plan of that round,
        where the same heads may be worth more, a device stays away; and also if it did something
        there before its coin was flipped, so that it is not there by its coin.

        Raises:
            JournalError: if the coin cannot be recorded.
        """
        with self._exclusive() as known:
            here = [one for one in known if (one.study, one.round) == (study, number)]
            for one in here:
                if one.joins is not None:
                    return one.joins and one.digest == plan
            joins = not here and flip()
            self._append(Given(study, number, -1, What.INVITATION, plan, joins=joins))
            return joins

    def has_coin(self, study: str, number: int) -> bool:
        """Return whether a coin fell for a plan of round `number` of `study`, whichever way.

        Raises:
            JournalError: if the journal cannot be read.
        """
        with self._exclusive() as known:
            return (study, number) in {
                (one.study, one.round) for one in known if one.joins is not None
            }

    def studies(self) -> frozenset[str]:
        """Return the studies that the device gave to.

        Raises:
            JournalError: if the journal cannot be read.
        """
        return frozenset(self.rounds())

    def rounds(self) -> Mapping[str, frozenset[int]]:
        """Return the rounds of each study that the device gave to: it gives to none again.

        Raises:
            JournalError: if the journal cannot be read.
        """
        rounds: dict[str, frozenset[int]] = {}
        with self._exclusive() as known:
            for one in known:
                if one.what in (What.VECTOR, What.REPORT):
                    rounds[one.study] = rounds.get(one.study, frozenset()) | {one.round}
        return rounds

    def spent(self) -> float:
        """Return the epsilon of all reports.

        Raises:
            JournalError: if the journal cannot be read.
        """
        with self._exclusive() as known:
            return math.fsum(one.epsilon for one in known)

    def told(self, study: str) -> float:
        """Return the rho of all vectors given to `study`, infinite if one was in no noise.

        Raises:
            JournalError: if the journal cannot be read.
        """
        with self._exclusive() as known:
            return _told(known, study)

    @abstractmethod
    @contextmanager
    def _exclusive(self) -> Iterator[list[Given]]:
        """Yield all records while nobody else reads or appends."""

    @abstractmethod
    def _append(self, given: Given) -> None:
        """Append a record, within `_exclusive`."""


def _told(known: list[Given], study: str) -> float:
    mine = (one for one in known if (one.study, one.what) == (study, What.VECTOR))
    return math.fsum(math.inf if one.rho is None else one.rho for one in mine)


class MemoryJournal(Journal):
    """A journal that ends with its process; for devices that do as well."""

    def __init__(self, known: Iterable[Given] = ()) -> None:
        self._known = list(known)
        self._lock = Lock()

    @property
    def known(self) -> tuple[Given, ...]:
        """Return all records."""
        return tuple(self._known)

    @contextmanager
    def _exclusive(self) -> Iterator[list[Given]]:
        with self._lock:
            yield list(self._known)

    def _append(self, given: Given) -> None:
        self._known.append(given)


class FileJournal(Journal):
    """A journal in the file at `path`: a line of JSON a record, on the disk before it counts.

    Processes take turns by a lock on the file (POSIX). The file is for its owner's eyes only:
    it holds no secret, but it tells which studies a device took part in. Keep it beside the
    device's identities: without it they are good for no study that they were used in.

    A record is cut off if the machine stops while it is written. It did not count yet, and
    nothing was sent: a last line without its end is dropped. Any other line that cannot be
    read means that something else wrote here, and the device takes part in nothing until
    somebody has looked.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()  # that of the file does not tell this process's threads apart
        self._file = -1

    @contextmanager
    def _exclusive(self) -> Iterator[list[Given]]:
        import fcntl  # noqa: PLC0415 - POSIX only, and whoever keeps no file needs none

        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with self._lock:
            try:
                self._file = os.open(self._path, flags, 0o600)
                try:
                    fcntl.flock(self._file, fcntl.LOCK_EX)
                    yield self._read()
                finally:
                    os.close(self._file)  # the lock goes with it
            except OSError as error:
                raise JournalError(f"{self._path}: {error.strerror}") from error

    def _read(self) -> list[Given]:
        with open(self._file, "rb", closefd=False) as file:
            said = file.read()
        whole = said[: said.rfind(b"\n") + 1]
        if len(whole) < len(said):
            os.ftruncate(self._file, len(whole))
        lines = whole.split(b"\n")[:-1]
        return [self._parsed(number, line) for number, line in enumerate(lines, start=1)]

    def _parsed(self, number: int, line: bytes) -> Given:
        try:
            said = json.loads(line)
            given = Given(**(said | {"what": What(said["what"])}))
            is_cost = all(0 <= cost < math.inf for cost in (given.epsilon, given.rho or 0.0))
            is_cost &= type(given.joins) is (bool if given.what is What.INVITATION else NoneType)
        except (ValueError, TypeError, KeyError):
            is_cost = False
        if not is_cost:
            what = "is no record: something else wrote here, so nothing more is given"
            raise JournalError(f"{self._path}, line {number}: {what}")
        return given

    def _append(self, given: Given) -> None:
        with open(self._file, "ab", closefd=False) as file:
            file.write(json.dumps(asdict(given)).encode() + b"\n")
        os.fsync(self._file)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the file may be new: its name must be on the disk as well
        finally:
            os.close(folder)
