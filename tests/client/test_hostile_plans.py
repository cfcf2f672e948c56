"""A hostile plan costs a device next to no memory, and is refused before anything is sent.

A device may use 50 MB for a plan that it refuses. Times are not measured: what takes long takes
memory as well, or a search that `tests/secagg/test_parameters.py` bounds.
"""

import asyncio
import json
import tracemalloc
from collections.abc import Callable
from random import Random
from threading import current_thread, get_ident, main_thread
from typing import Any

import httpx
import pytest

from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.encoding import Contribution
from client.device.journal import MemoryJournal
from client.device.take_part import take_part
from protocol.device_policy.policy import Policy
from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import MECHANISMS, parse_plan
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from secagg.session import Registry
from tests.client.mock_transport import MockTransport
from tests.support.policies import trusting_policy
from tests.support.views import round_document

MAX_BYTES = 50e6
STUDY = "study-1"
DOMAIN = Hashed(max_bytes=4096)
QUESTION = TrackedQuestion(threshold=50, contribution=3, domain=DOMAIN, message_bytes=266_528)
TERMS = Terms(cohort_size=100, minimum=80, corrupt=0.1, dropout=0.2)
PLAN = MECHANISMS["tracked"].first_plan(QUESTION, TERMS, STUDY, 9, Random(1)).model_dump()
ROOMY = QUESTION.model_dump() | {"message_bytes": 134_217_728}
NAMES = [f"#{number:010x}" for number in range(60_000)]


def terms(**changes: object) -> dict[str, object]:
    return {"terms": TERMS.model_dump() | changes}


def fetches(count: int) -> dict[str, object]:
    pieces = [(row, 0, 9) for row in range(count)]
    groups = [{"bits": 1, "items": NAMES[:count]}]
    return {"round": 2, "question": ROOMY, "counter_groups": groups, "string_pieces": pieces}


# Changes of the plan, and part of the reason of its refusal.
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "cells": ({"cells": 2**40}, "malformed"),
    "cells within the limit": ({"cells": 3 * 2**22, "question": ROOMY}, "max_upload_bytes"),
    "fetches": (fetches(2_000), "items can be heavy"),
    "more fetches": (fetches(20_000), "items can be heavy"),
    "tracked items": (
        {"counter_groups": [{"bits": 40, "items": NAMES}], "question": ROOMY},
        "tracks items in the first round",
    ),
    "300,000 items": (
        {"counter_groups": [{"bits": 1, "items": ["#"] * 300_000}]},
        "more than 131,072 values",
    ),
    "a long salt": ({"question": ROOMY | {"salt": "x" * 10**6}}, "malformed"),
    "a long name": ({"study": "s" * 10**6}, "malformed"),
    "a huge round": ({"round": 10**4000}, "malformed"),
    "a huge number": ({"rounds": 10**400}, "malformed"),
    "not a number": ({"t": float("nan")}, "malformed"),
    "infinite": ({"t": float("inf")}, "malformed"),
    "negative": ({"t": -1.0}, "malformed"),
    "a huge contribution": ({"question": ROOMY | {"contribution": 10**4}}, "max_contribution"),
    "a huge cohort": (terms(cohort_size=10**9), "malformed"),
    "a huge exponent": (terms(sigma=10**9), "malformed"),
    "the largest cohort": (terms(cohort_size=10**5, sigma=128, eta=128, dropout=0.6), "malformed"),
    "an unknown field": ({"extra": 1}, "malformed"),
}


def show(plan: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a service show `plan`; return the list of the methods of all requests to it."""
    body = json.dumps(round_document(plan, number=plan["round"])).encode()
    methods: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        return httpx.Response(200, content=body)

    connect_to(answer, monkeypatch)
    return methods


def connect_to(
    answer: Callable[[httpx.Request], httpx.Response], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "client.device.take_part.http_client",
        lambda url: httpx.AsyncClient(transport=MockTransport(answer), base_url=url),
    )


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_plan_is_refused_and_costs_next_to_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes, reason = HOSTILE[name]
    plan = json.loads(json.dumps(PLAN)) | changes
    methods = show(plan, monkeypatch)
    state = DeviceState.in_memory()
    tracemalloc.start()
    (outcome,) = await take_part(
        "http://service", ["x"], trusting_policy(), study=STUDY, device_state=state
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome.state is EndState.DECLINED, outcome.error
    assert reason in outcome.error
    assert methods == ["GET"]
    assert isinstance(state.journal, MemoryJournal)
    assert state.journal.entries == ()
    assert peak < MAX_BYTES


REGISTRAR = Identity.of(bytes(range(32))).public


@pytest.mark.parametrize(
    ("study", "policy", "signatures"),
    [
        (STUDY, Policy(registrar=REGISTRAR), 1),
        ("other", Policy(registrar=REGISTRAR), 0),
        (STUDY, Policy(), 0),
    ],
)
async def test_a_device_uses_its_items_and_its_registrar_only_for_a_plan_that_its_policy_accepts(
    study: str, policy: Policy, signatures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Registry] = []

    async def sign(registry: Registry, _identity: bytes) -> bytes:
        asked.append(registry)
        return bytes(64)

    def noted(*_parts: object) -> Contribution:
        used.append(get_ident())
        return Contribution({})

    used: list[int] = []
    monkeypatch.setattr("client.device.take_part.make_contribution", noted)
    document = PLAN | {"study": study} | terms(registrar=REGISTRAR.hex())
    show(document, monkeypatch)
    state = DeviceState.in_memory()
    (outcome,) = await take_part(
        "http://service", ["x"], policy, study=STUDY, device_state=state, enrolment_signer=sign
    )
    assert (outcome.state, outcome.round) == (EndState.DECLINED, 1)
    assert asked == [parse_plan(document).registry] * signatures
    assert len(used) == signatures
    assert get_ident() not in used  # many items would stop the event loop


@pytest.mark.parametrize("step", [1, 0])
async def test_a_service_that_refuses_each_join_cannot_hurry_a_device(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service shows round after round, or the same one again."""
    pauses, joins = [], []
    real_sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        is_ours = current_thread() is main_thread()  # servers of other tests have threads
        pauses.extend([seconds] * is_ours)
        await real_sleep(0 if is_ours else seconds)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            joins.append(request.url.path)
            if len(joins) == 4:
                return httpx.Response(404, json={})
            return httpx.Response(409, json=REFUSAL)
        number = max(1, int(request.url.params["after"]) + step)
        plan = json.loads(json.dumps(PLAN)) | {"round": number}
        return httpx.Response(200, json=round_document(plan, number=number))

    connect_to(answer, monkeypatch)
    monkeypatch.setattr("client.device.take_part.asyncio.sleep", noted)
    (outcome,) = await take_part(
        "http://service",
        ["x"],
        trusting_policy(),
        study=STUDY,
        device_state=DeviceState.in_memory(),
        wait=3600,
    )
    if step:
        assert (outcome.state, len(joins)) == (EndState.REJECTED, 4)
        assert [seconds for seconds in pauses if seconds] == [0.2, 0.4, 0.8]
    else:
        assert (outcome.state, len(joins)) == (EndState.DECLINED, 1)
        assert "shows round 1 as one after round 1" in outcome.error


REFUSAL = {"type": "urn:blindtally:problem:no-round", "title": "x", "status": 409, "detail": "full"}
