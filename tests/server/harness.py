"""A service in memory over ASGI, and rounds in which real devices use it."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import httpx
from fastapi import FastAPI

from protocol.api.messages import HeavyHitter, HeavyHitterPage, RoundView
from protocol.api.phases import Phase
from secagg.keys import Identity
from server.db.store import Store
from server.service import Service
from tests.server.device import Device

_PATIENCE = 60.0  # seconds: other tests run
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


class Clock:
    """A clock that stands still until `advance`."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass
class Served:
    """A running service, and what to ask it."""

    app: FastAPI
    client: httpx.AsyncClient
    clock: Clock

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def store(self) -> Store:
        return self.service.store

    async def pass_days(self, days: int) -> None:
        """Let days pass, in each of which the service reads its clock."""
        for _ in range(days):
            self.clock.advance(24 * 3600.0)
            await self.store.retention.read_clock()

    async def create(self, **changes: Any) -> str:
        """Create a small study with `changes`; return its id."""
        response = await self.client.post("/v1/studies", json=study_request(**changes))
        assert response.status_code == 201, response.text
        return str(response.json()["id"])

    async def open_round(self, study: str, after: int = 0) -> RoundView:
        """Return the round after `after` once it is open."""
        path = f"/v1/studies/{study}/rounds/open"
        response = await self.client.get(path, params={"after": after, "wait": 10})
        assert response.status_code == 200, response.text
        return RoundView.model_validate_json(response.content)

    async def show_round(self, study: str, number: int = 1) -> RoundView:
        response = await self.client.get(f"/v1/studies/{study}/rounds/{number}")
        assert response.status_code == 200, response.text
        return RoundView.model_validate_json(response.content)

    async def until_closed(self, study: str, number: int = 1) -> RoundView:
        """Return a round once it is over."""
        late = time.monotonic() + _PATIENCE
        while time.monotonic() < late:
            view = await self.show_round(study, number)
            if view.state != "running":
                return view
            await self.tick()
        raise AssertionError("the round did not close")

    async def until_phase(self, study: str, phase: str, number: int = 1) -> None:
        """Wait until the first cohort is in `phase`; no time passes."""
        for _ in range(1000):
            if (await self.show_round(study, number)).cohorts[0].phase == phase:
                return
            await self.tick()
        raise AssertionError(f"the cohort does not come to {phase}")

    async def put_while_blocked(
        self,
        first: Coroutine[Any, Any, httpx.Response],
        others: Iterable[Coroutine[Any, Any, httpx.Response]],
        seconds: float,
    ) -> set[int]:
        """Return the statuses of messages that wait for a commit while a deadline passes.

        Another write holds up the database. The `first` message waits alone, and the `others` form
        the next group. Then `seconds` pass, and the service looks at its cohorts.
        """
        gate = threading.Event()
        blocked = asyncio.create_task(self.store.database.write(lambda _: gate.wait(20)))
        await asyncio.sleep(0.1)
        puts = [asyncio.create_task(first)]
        await asyncio.sleep(0.2)
        puts += [asyncio.create_task(other) for other in others]
        await asyncio.sleep(0.2)
        self.clock.advance(seconds)
        poll = asyncio.create_task(self.service.orchestrator.poll())
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.gather(blocked, poll)
        return {(await put).status_code for put in puts}

    async def tick(self) -> None:
        """Let the service look at its cohorts now."""
        self.service.orchestrator.wake()
        await asyncio.sleep(0.01)

    async def pass_phase(self, study: str, number: int = 1, before: Phase | None = None) -> Phase:
        """Let time pass until phase `before`, or the present one, is over; return the next one."""
        before = before or (await self.show_round(study, number)).cohorts[0].phase
        if before.is_over:
            return before
        for _ in range(1000):  # looks are awaited: no time passes while one decides
            seconds = await self.service.orchestrator.poll()
            after = (await self.show_round(study, number)).cohorts[0].phase
            if after is not before:
                return after
            self.clock.advance(max(seconds or 0, 6))
        raise AssertionError(f"the cohort stays in {before}")

    async def read_sum(self, study: str, number: int = 1) -> bytes:
        path = f"/v1/studies/{study}/rounds/{number}/cohorts/0/sum"
        response = await self.client.get(path)
        assert response.status_code == 200, response.text
        return response.content

    async def heavy_hitters(self, study: str) -> tuple[HeavyHitter, ...]:
        """Return the heavy hitters of a study, on one page."""
        response = await self.client.get(f"/v1/studies/{study}/heavy-hitters")
        assert response.status_code == 200, response.text
        return HeavyHitterPage.model_validate_json(response.content).heavy_hitters

    async def join(
        self,
        study: str,
        count: int,
        after: int = 0,
        first: int = 0,
        registrar: Identity | None = None,
    ) -> list[Device]:
        """Let devices of numbers from `first` on join; the same number is the same device."""
        view = await self.open_round(study, after)
        devices = [
            Device(
                self.client,
                f"device-{after}-{number}",
                {"ab": 1, "abc"[: 1 + number % 3]: 1},
                Random(1000 * after + number),
                registrar,
            )
            for number in range(first, first + count)
        ]
        for device in devices:
            await device.join(study, view)
        return devices


@asynccontextmanager
async def serving(app: FastAPI, clock: Clock) -> AsyncIterator[Served]:
    """Run an application; yield the service."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            yield Served(app, client, clock)


def study_request(**changes: Any) -> dict[str, Any]:
    """Return a small study: of 6 one may be corrupt and 2 lost, and all hold shares of all."""
    request: dict[str, Any] = {
        "name": "letters",
        "question": {
            "mechanism": "adaptive-iblt",
            "threshold": 4,
            "contribution": 2,
            "domain": {"kind": "utf8", "max_bytes": 3},
            "message_bytes": 5784,
        },
        "terms": {"cohort_size": 6, "minimum": 3, "corrupt": 0.17, "dropout": 0.34},
        "rounds": 1,
        "start": True,
    }
    return request | changes


def histogram_request(high: float = 1) -> dict[str, Any]:
    """Return parts of a request for noisy numbers from 0 to `high` of 20 to 40 devices."""
    question = {
        "mechanism": "hierarchical-histogram",
        "threshold": 1,
        "domain": {"kind": "interval", "low": 0, "high": high, "alpha": 2, "length": 3},
        "message_bytes": 4000,
        "epsilon": 1,
        "delta": 1e-6,
    }
    terms = study_request()["terms"] | {"cohort_size": 40, "minimum": 20}
    return {"question": question, "terms": terms}


STEPS = ("share", "check", "mask", "confirm", "reveal")


async def together(devices: Sequence[Device], *steps: str) -> None:
    """Let the devices take steps, each step at the same time."""
    for step in steps:
        await asyncio.gather(*(getattr(device, step)() for device in devices))


async def play(
    served: Served,
    study: str,
    *,
    lost: Sequence[Sequence[int]] = ((), (), (), (), ()),
    after: int = 0,
    count: int = 6,
) -> list[Device]:
    """Play a round; return the devices whose vectors are in its sum.

    `lost` names, by slot, who leaves before each of `STEPS`.
    """
    devices = await served.join(study, count, after)
    everybody, masked = list(devices), devices
    for step, gone in zip(STEPS, lost, strict=True):
        devices = [device for device in devices if everybody.index(device) not in gone]
        tasks = [asyncio.create_task(getattr(device, step)()) for device in devices]
        if gone:  # the phase closes when its patience is over
            await asyncio.wait(tasks)
            await served.pass_phase(study, after + 1)
        await asyncio.gather(*tasks)
        masked = devices if step == "mask" else masked
    return masked


def sum_of(devices: Sequence[Device]) -> bytes:
    """Return the packed sum of the devices' own, unmasked vectors."""
    total = devices[0].ring.zero()
    for device in devices:
        device.ring.add(total, device.vector)
    return devices[0].ring.pack(total)


async def until_summed(
    served: Served, study: str, devices: Sequence[Device], number: int = 1
) -> RoundView:
    """Check that a round is decoded, with the exact sum of `devices`; return the round."""
    view = await served.until_closed(study, number)
    assert (view.state, view.participants) == ("decoded", len(devices))
    assert await served.read_sum(study, number) == sum_of(devices)
    return view
