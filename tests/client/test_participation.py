"""Devices take part in a real round, through ASGI; and in one of a service that cheats."""

import asyncio
from collections.abc import Callable
from random import SystemRandom

import httpx
import numpy as np
import pytest

from client.encoding import Contribution
from client.fleet import Connect
from client.participation import Device, Participation, Step, new_ticket
from client.policy import Policy, PolicyError
from client.transport import Transport
from protocol.messages import Join, RoundView, Seat, StudyView
from secagg.errors import RefusedError

POLICY = Policy(min_cohort=5)
N = 10


async def open_round(http: httpx.AsyncClient, study: StudyView) -> RoundView:
    answer = await http.get(f"/studies/{study.id}/rounds/open", params={"wait": 5})
    return RoundView.model_validate_json(answer.content)


def participation(
    http: httpx.AsyncClient, view: RoundView, index: int = 0, policy: Policy = POLICY
) -> Participation:
    device = Device(f"device-{index:04d}", Contribution({"word": 1}, 0, 0))
    chance = np.random.default_rng(index)
    return Participation(
        Transport(http, patience=5),
        view,
        device,
        policy=policy,
        secrets=SystemRandom(),
        chance=chance,
    )


async def test_a_device_takes_its_steps_one_by_one(connect: Connect, study: StudyView) -> None:
    async def take_part(index: int) -> list[Step]:
        async with connect() as http:
            part = participation(http, await open_round(http, study), index)
            return [step async for step in part.steps(study.id)]

    taken = await asyncio.gather(*(take_part(index) for index in range(N)))
    assert taken == [list(Step)] * N


async def test_whoever_drives_a_device_may_stop_after_any_step(
    connect: Connect, study: StudyView
) -> None:
    async with connect() as http:
        part = participation(http, await open_round(http, study))
        steps = part.steps(study.id)
        assert await anext(steps) is Step.JOINED
        await steps.aclose()
        assert part.seat is not None
        assert part.vector is None


async def test_a_plan_beyond_the_policy_is_refused_before_anything_is_sent(
    connect: Connect, study: StudyView
) -> None:
    async with connect() as http:
        view = await open_round(http, study)
    silent = httpx.AsyncClient(transport=httpx.MockTransport(_not_a_word), base_url="http://x")
    async with silent as http:
        part = participation(http, view, policy=Policy(min_cohort=9))
        with pytest.raises(PolicyError, match="min_cohort"):
            await anext(part.steps(study.id))


def _not_a_word(request: httpx.Request) -> httpx.Response:
    raise AssertionError(f"{request.method} {request.url} was sent")


@pytest.mark.parametrize(
    ("roster", "why"),
    [
        (b"{}", "cannot be read"),
        (b"not json", "cannot be read"),
        ({"slot": 1}, "moved me"),
        ({"n": 7}, "cohort of 7"),
        ({"threshold": 1}, "threshold 1"),
        ({"neighbours": ()}, "neighbours in the graph"),
    ],
)
async def test_a_device_leaves_a_service_that_cheats_on_the_roster(
    connect: Connect, study: StudyView, roster: bytes | dict[str, object], why: str
) -> None:
    async with connect() as http:
        view = await open_round(http, study)
    cheat = httpx.MockTransport(_service_with(roster))
    async with httpx.AsyncClient(transport=cheat, base_url="http://x") as http:
        steps = participation(http, view).steps(study.id)
        assert await anext(steps) is Step.JOINED
        with pytest.raises(RefusedError, match=why):
            await anext(steps)


def _service_with(
    roster: bytes | dict[str, object],
) -> Callable[[httpx.Request], httpx.Response]:
    """Return a service that gives seat 0 of a cohort of 9, and then this roster."""
    honest = {
        "slot": 0,
        "n": 9,
        "degree": 4,
        "threshold": 2,
        "seed": "00" * 32,
        "digest": "00" * 32,
        "neighbours": (),
    }

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            Join.model_validate_json(request.content)
            seat = {"participant": "p", "cohort": 0, "slot": 0, "deadline": "2030-01-01T00:00:00Z"}
            return httpx.Response(201, content=Seat.model_validate(seat).model_dump_json())
        if isinstance(roster, bytes):
            return httpx.Response(200, content=roster)
        return httpx.Response(200, json=honest | roster)

    return answer


def test_a_ticket_is_32_fresh_bytes_in_43_characters() -> None:
    tickets = {new_ticket(SystemRandom()) for _ in range(10)}
    assert len(tickets) == 10
    assert {len(ticket) for ticket in tickets} == {43}
