"""Rounds whose committee the registrar draws from devices that volunteer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from protocol.api.phases import Phase
from protocol.device_policy.plan_check import plan_violations
from protocol.device_policy.policy import Policy
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served
from tests.server.one_shot.rounds import MINIMUM, PINNED, TIMEOUTS, open_sum, send, sum_of_vectors
from tests.server.one_shot.volunteer_rounds import (
    POLICY,
    SIZE,
    TERMS,
    VOLUNTEERS,
    Volunteers,
    convene_volunteers,
    create_drawn,
    devices,
    draw,
)
from tests.server.test_invited import WORDS

SECRET_COUNTS = WORDS | {"join_probability": 0.9}


async def test_volunteers_open_the_sum_of_all_devices_and_of_themselves(
    each_served: Served,
) -> None:
    served = each_served
    study = await create_drawn(served)
    volunteers = Volunteers.of(study)
    view = await convene_volunteers(served, study, volunteers)
    drawn = volunteers.numbers_in(view)
    assert len(set(drawn)) == SIZE
    vectors = [await send(served, view, each, POLICY) for each in devices(view, range(7))]
    volunteers.away.add(drawn[0])  # it drops out
    closed = await open_sum(served, study, volunteers)
    assert volunteers.refusals == []
    assert (closed.state, closed.participants) == ("decoded", 7)
    assert await served.read_sum(study) == sum_of_vectors(view, vectors)
    history = [(record.phase, record.received) for record in closed.cohorts[0].history[:-1]]
    assert history == [
        ("convening", VOLUNTEERS),
        ("drawing", 1),
        ("collecting", 7),
        ("checking", SIZE - 1),
        ("agreeing", SIZE - 1),
        ("releasing", SIZE - 1),
    ]


async def test_a_server_that_starts_again_in_every_phase_finishes_the_round(
    serve: Serve, sqlite_url: str
) -> None:
    async with serve(sqlite_url) as served:
        study = await create_drawn(served)
        volunteers = Volunteers.of(study)
        volunteers.away = {0, 1, 2}
        await volunteers.act(served)
    volunteers.away = set()
    async with serve(sqlite_url) as served:
        await volunteers.act(served)
        await served.until_phase(study, "drawing")
    async with serve(sqlite_url) as served:
        assert await draw(served) == []
    async with serve(sqlite_url) as served:
        view = await served.open_round(study)
        vectors = [await send(served, view, each, POLICY) for each in devices(view, range(5))]
        await served.pass_phase(study)
    async with serve(sqlite_url) as served:
        assert (await open_sum(served, study, volunteers)).state == "decoded"
        assert await served.read_sum(study) == sum_of_vectors(view, vectors)


async def test_a_round_waits_for_all_volunteers_and_for_its_registrar(served: Served) -> None:
    """No device has sent anything when a round fails because of either."""
    study = await create_drawn(served, rounds=3)
    volunteers = Volunteers.of(study)
    volunteers.away = {3}
    await volunteers.act(served)
    assert await served.pass_phase(study) is Phase.FAILED
    failed = (await served.until_closed(study)).cohorts[0]
    assert f"11 of {VOLUNTEERS} registered keys for the committee" in (failed.failure or "")
    volunteers.away = set()
    await volunteers.act(served)
    await served.until_phase(study, "drawing", 2)
    assert await served.pass_phase(study, 2) is Phase.FAILED
    failed = (await served.until_closed(study, 2)).cohorts[0]
    assert "did not draw the committee from the volunteers in time" in (failed.failure or "")
    assert failed.enrolled == 0
    view = await convene_volunteers(served, study, volunteers, 3)
    vectors = [await send(served, view, each, POLICY) for each in devices(view, range(5))]
    await open_sum(served, study, volunteers, 3)
    assert await served.read_sum(study, 3) == sum_of_vectors(view, vectors)


POLICIES: Sequence[tuple[Policy, dict[str, Any], str]] = [
    (replace(POLICY, min_volunteers=None), {}, "min_volunteers"),
    (replace(POLICY, min_volunteers=VOLUNTEERS + 1), {}, "min_volunteers"),
    (replace(POLICY, registrar=None, trust_server_identities=True), {}, "min_volunteers"),
    (replace(POLICY, min_committee=SIZE + 1), {}, "min_committee"),
    (POLICY, {"corrupt": 0.09, "volunteers": 12}, "min_corrupt"),
    (POLICY, {"sigma": 39}, "min_sigma"),
]


@pytest.mark.parametrize(("policy", "changes", "limit"), POLICIES)
async def test_a_device_refuses_committees_beyond_its_policy(
    served: Served, policy: Policy, changes: dict[str, Any], limit: str
) -> None:
    """Guards: `Policy._volunteer_violations`; by default a device accepts no volunteers."""
    committee = {"volunteers": 2 * VOLUNTEERS, "size": SIZE, "corrupt": 0.1} | changes
    if not changes:
        committee = {"volunteers": VOLUNTEERS, "size": SIZE}
    study = await served.create(
        terms=TERMS | {"committee": committee, "minimum": MINIMUM}, timeouts=TIMEOUTS
    )
    view = await served.show_round(study)
    limits = [violation.limit for violation in plan_violations(policy, view.plan, study, 1)]
    assert limits == [limit]
    assert not [*plan_violations(replace(POLICY), view.plan, study, 1)] or changes


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"registrar": None}, "needs a registrar, which draws it"),
        ({"committee": {"volunteers": 8, "size": 9}}, "cannot be drawn from a population of 8"),
        ({"committee": {"volunteers": 9, "size": 9}}, "lets none of 9 members collude"),
        ({"committee": {"volunteers": 12, "size": 9, "dropout": 0.4}}, "cannot agree"),
    ],
)
async def test_a_committee_that_cannot_be_safe_is_refused(
    served: Served, changes: dict[str, Any], fault: str
) -> None:
    request = {"name": "n", "question": (await question(served)), "rounds": 1}
    answer = await served.client.post("/v1/studies", json=request | {"terms": TERMS | changes})
    assert fault in refused(answer, 422, "malformed")


async def test_volunteers_are_not_asked_where_the_number_of_devices_is_secret(
    served: Served,
) -> None:
    """Guards: `hides_device_counts` in `server.first_plan`; members see the set of messages."""
    asked = {"name": "n", "question": SECRET_COUNTS, "rounds": 1, "terms": TERMS}
    answer = await served.client.post("/v1/studies", json=asked)
    assert "which this question keeps secret" in refused(answer, 422, "malformed")
    operators = TERMS | {"committee": {"members": PINNED}}
    answer = await served.client.post("/v1/studies", json=asked | {"terms": operators})
    assert answer.status_code == 201, answer.text


async def question(served: Served) -> dict[str, Any]:
    """Return the question of a small study."""
    study = await create_drawn(served)
    answer = await served.client.get(f"/v1/studies/{study}")
    asked: dict[str, Any] = answer.json()["question"]
    return asked
