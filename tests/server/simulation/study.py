"""A study with simulated devices and servers, and the laws that hold after every operation.

After every operation: no cohort goes back or changes once it is over; a sum that is published has
a 1 for each of its survivors and a 0 for all others, so no device is in it twice (2), and no device
whose vector was acknowledged is missing (0); it was written by one transaction, of a server that
had claimed it, however many tried; a failed cohort shows nothing; the service logs no
internal error. At the end, when enough time has passed: the study is over, nobody is in two
rounds, what was acknowledged is accepted again, the answer is that of the published sums and of
each once, and no message is kept.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import numpy as np
import structlog

from protocol.api.messages import CohortView, RoundView
from protocol.api.phases import Phase
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.study_state import EMPTY_STATE
from tests.server.harness import study_request
from tests.server.simulation.device import SimulatedDevice, verdict
from tests.server.simulation.loop import Loop
from tests.server.simulation.server import NoResponseError, SimulatedServer, application

_TURN = 0.5  # seconds in which all devices take a step
_TURNS = 6  # that devices have once trouble is over
_MAX_JUMPS = 40  # jumps of `_JUMP` seconds after which nothing may wait any more
_LEASE = 16.0  # longer than one lasts whose holder died
_JUMP = 31.0  # longer than a phase lasts
_ORDER = list(Phase)
_FIGURES = ("acknowledged", "included", "summed", "failed", "kills", "claims", "taken_over")


@dataclass(frozen=True, slots=True)
class StudySize:
    """Size of a study. Half of the devices find no seat at first."""

    size: int = 6
    cohorts: int = 1
    rounds: int = 3
    servers: int = 1

    @property
    def devices(self) -> int:
        return self.size * self.cohorts * 3 // 2

    def request(self) -> dict[str, Any]:
        """Return the study: one row of cells, one for each device."""
        question = {
            "mechanism": "count-median",
            "threshold": 1,
            "contribution": 1,
            "domain": {"kind": "alphabet", "characters": "ab", "length": 2},
            "message_bytes": 10_000,
            "rows": 1,
        }
        terms: dict[str, float] = {"cohort_size": self.size, "minimum": 3, "cohorts": self.cohorts}
        terms |= {"corrupt": 0.17, "dropout": 0.34}  # one, and two of six
        timeouts = dict.fromkeys(("sharing", "checking", "masking", "confirming", "unmasking"), 30)
        timeouts |= {"enrolling": 60, "idle": 5}
        return study_request(question=question, terms=terms, rounds=self.rounds, timeouts=timeouts)


@dataclass
class RunFigures:
    """Figures of a run, for the summary of many."""

    operations: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    included: int = 0
    summed: int = 0
    failed: int = 0
    kills: int = 0
    claims: int = 0  # of sums
    taken_over: int = 0  # sums of which another server began to make one before
    rows_stored: int = 0  # in the databases at the end of their studies
    rows_without_devices: int = 0
    rows_after_retention: int = 0  # after the deletion of the studies

    def add_rows(self, stored: int, without_devices: int, after_retention: int) -> None:
        self.rows_stored += stored
        self.rows_without_devices += without_devices
        self.rows_after_retention += after_retention

    def add(self, other: "RunFigures") -> None:
        self.operations += other.operations
        for name in _FIGURES:
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass
class SimulatedStudy:
    """One study, its devices and its servers."""

    loop: Loop
    url: str
    size: StudySize
    rng: Random
    devices: list[SimulatedDevice] = field(default_factory=list)
    published: dict[tuple[int, int], bytes] = field(default_factory=dict)
    figures: RunFigures = field(default_factory=RunFigures)
    _servers: dict[int, SimulatedServer] = field(default_factory=dict)
    _seen: dict[tuple[int, int], CohortView] = field(default_factory=dict)
    _rounds: dict[int, RoundView] = field(default_factory=dict)
    _faults: list[MutableMapping[str, Any]] = field(default_factory=list)

    async def open(self) -> None:
        """Start all servers and the study."""
        for place in range(self.size.servers):
            await self.start(place)
        answer = await self.ask("POST", "/v1/studies", json=self.size.request())
        assert answer.status_code == 201, answer.text
        study = str(answer.json()["id"])
        self.devices = [
            SimulatedDevice(
                index, study, self.ask, self.loop.time, Random(self.rng.getrandbits(64))
            )
            for index in range(self.size.devices)
        ]

    @property
    def path(self) -> str:
        return f"/v1/studies/{self.devices[0].study}"

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Record the errors that the service logs."""

        def record(_logger: object, level: str, entry: MutableMapping[str, Any]) -> Any:
            if level in ("error", "critical", "exception"):
                self._faults.append(entry)
            raise structlog.DropEvent

        before = structlog.get_config()["processors"]
        structlog.configure(processors=[structlog.processors.format_exc_info, record])
        try:
            yield
        finally:
            structlog.configure(processors=before)

    async def start(self, place: int) -> None:
        """Start the server in `place`, if it is dead."""
        if place in self._servers and not self._servers[place].process.is_dead:
            return
        server = SimulatedServer(self.loop, application(self.url, place), self.rng.getrandbits(64))
        self._servers[place] = server
        await server.start()

    @property
    def servers(self) -> list[SimulatedServer]:
        """Return the servers, dead ones too, by place."""
        return list(self._servers.values())

    async def ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        """Ask a server that is up, an awake one if possible; NoResponseError if none answers."""
        up = [server for server in self.servers if server.is_up]
        if not up:
            raise NoResponseError
        awake = [server for server in up if server.is_awake]
        answer = await self.rng.choice(awake or up).ask(method, path, **what)
        assert answer.status_code != 500, answer.text
        return answer

    async def step_all(self) -> None:
        """Let all present devices take their next step at the same time."""
        self.loop.advance(_TURN)
        here = [device for device in self.devices if not device.is_away]
        await asyncio.gather(*(device.step() for device in here))

    # What must be true

    async def check(self) -> None:
        """Check all that can be seen now; nothing if nobody is up to show it."""
        await self.loop.rest()
        assert not self._faults, self._faults
        self._check_publications()
        with suppress(NoResponseError):
            await self._look()

    async def _look(self) -> None:
        page = await self.ask("GET", f"{self.path}/rounds", params={"limit": 100})
        if page.status_code == 503:
            return
        for document in page.json()["rounds"]:
            view = RoundView.model_validate(document)
            before = self._rounds.get(view.number)
            assert before is None or before.state in ("running", view.state)
            self._rounds[view.number] = view
            for cohort in view.cohorts:
                await self._look_at(view, cohort)
            if view.state != "running":
                self._check_round(view)

    async def _look_at(self, view: RoundView, cohort: CohortView) -> None:
        key = (view.number, cohort.number)
        before = self._seen.get(key)
        self._seen[key] = cohort
        if before is not None:
            assert _ORDER.index(before.phase) <= _ORDER.index(cohort.phase), "it went back"
            assert not before.phase.is_over or before == cohort, "it changed when it was over"
            if before.phase.is_over:
                return
        assert not cohort.blamed, "an honest device is blamed"
        if not cohort.phase.is_over:
            return
        path = f"{self.path}/rounds/{view.number}/cohorts/{cohort.number}/sum"
        answer = await self.ask("GET", path)
        if answer.status_code == 503:
            del self._seen[key]
        elif cohort.phase is Phase.FAILED:
            assert verdict(answer) == (410, "cohort-failed"), answer.text
            self.figures.failed += 1
        else:
            assert answer.status_code == 200, answer.text
            self._check_sum(view, cohort, answer.content)

    def _check_publications(self) -> None:
        """Check that no sum was written twice, and each by the last who had claimed it."""
        writers = self.loop.commit_log.sums
        assert len({summed for summed, _ in writers}) == len(writers), "a sum was written twice"
        for summed, writer in writers:
            claimants = [who for work, who in self.loop.commit_log.claims if work == summed.work]
            assert claimants, "a sum was written without a lease"
            assert claimants[-1] is writer, "a sum was written under a stale lease"

    def _check_sum(self, view: RoundView, cohort: CohortView, packed: bytes) -> None:
        """Compare a published sum with its survivors, and with the acknowledged vectors."""
        (cells,) = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan).unpack(packed)
        summed = {index: int(count) for index, count in enumerate(cells) if count}
        seats = {
            seat.seat.slot: seat
            for device in self.devices
            for seat in device.seats
            if seat.view.number == view.number and seat.seat and seat.seat.cohort == cohort.number
        }
        counted = [seats[slot] for slot in cohort.survivors if slot in seats]
        assert len(counted) == len(cohort.survivors), "a device that never joined is counted"
        assert summed == {seat.index: 1 for seat in counted}, "the sum is not that of its devices"
        assert all("masked-input" in seat.sent for seat in counted)
        kept = {slot for slot, seat in seats.items() if "masked-input" in seat.accepted}
        assert kept <= set(cohort.survivors), "an acknowledged vector is missing"
        written = [(summed.round, summed.number) for summed, _ in self.loop.commit_log.sums]
        key = (view.number, cohort.number)
        assert key in written, "nobody wrote this sum"
        assert self.published.setdefault(key, packed) == packed, "a published sum changed"
        self.figures.summed += 1
        self.figures.included += len(counted)

    def _check_round(self, view: RoundView) -> None:
        """Check that a round counts the devices of its sums, and is decoded if it has a sum."""
        summed = [c for c in view.cohorts if c.phase is Phase.SUMMED]
        if view.participants is not None:
            assert view.participants == sum(len(c.survivors) for c in summed)
            assert view.state == ("decoded" if summed else "failed")

    # The end

    async def finish(self) -> None:
        """Let devices continue, then time pass until the study ends; check everything once more."""
        self.loop.outage, self.loop.interruption = (0, "before the commit"), None
        for place, server in enumerate(self.servers):
            server.process.jobs_before_death, server.process.frozen = None, 0.0
            await self.start(place)
        assert all(server.is_up for server in self.servers), "a server does not come up"
        for turn in range(_MAX_JUMPS):
            if turn < _TURNS:
                await self.step_all()
            await self.check()
            state = (await self.ask("GET", self.path)).json()["state"]
            if state in ("finished", "stopped"):
                break
            self.loop.advance(_JUMP if turn >= _TURNS else 0)
        else:
            raise AssertionError(f"the study is stuck: {self._rounds}")
        self._seen.clear()
        self.figures.included = self.figures.summed = self.figures.failed = 0
        await self.check()
        await self._check_repetitions()
        await self._check_commit_log(state)

    async def _check_repetitions(self) -> None:
        """Check that all acknowledged messages are accepted again without effect."""
        for device in self.devices:
            for seat, kind, body in device.sent_messages():
                await seat.send(kind, body)
            for seat in device.seats:
                if seat.seat is not None:
                    await seat.request_seat(None)
                self.figures.acknowledged += len(seat.accepted)

    async def _check_commit_log(self, state: str) -> None:
        sums, commit_log = Counter[int](), self.loop.commit_log
        assert {(s.round, s.number) for s, _ in commit_log.sums} == self.published.keys()
        self.figures.claims = sum(work.startswith("sum-cohort ") for work, _ in commit_log.claims)
        for summed, writer in commit_log.sums:
            first = next(who for work, who in commit_log.claims if work == summed.work)
            self.figures.taken_over += first is not writer
        store = next(server for server in self.servers if server.is_up).app.state.service.store
        study_state = EMPTY_STATE
        for number, view in sorted(self._rounds.items()):
            assert view.state != "running", "a round of a study that is over is not"
            mechanism, plan = SUM_MECHANISMS[view.plan.mechanism], view.plan
            ring, total = mechanism.ring(plan), mechanism.ring(plan).zero()
            for (of, _), packed in self.published.items():
                if of == number:
                    ring.add_packed(total, packed)
            sums.update({i: int(count) for i, count in enumerate(total[0]) if count})
            if view.state == "decoded":
                study_state = mechanism.decode(
                    plan, total, view.participants or 0, study_state
                ).state
        assert all(count == 1 for count in sums.values()), "a device is in two rounds"
        kept = await store.answers.study_state(self.devices[0].study)
        assert kept.arrays.keys() == study_state.arrays.keys(), state
        for name, array in study_state.arrays.items():
            assert np.array_equal(kept.arrays[name], array), "a round's answer is not in once"
        self.loop.advance(_LEASE)
        await self.loop.rest()
        assert not await store.cohorts.finished_with_bodies(), (
            "messages of a cohort that is over are kept"
        )

    async def close(self) -> None:
        for server in self.servers:
            server.kill()
        await self.loop.rest()
