"""Attacks on committees of volunteers: by a server that chooses them, and by clients.

`Guards:` names the check without which a test fails.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from client.committee.registrar import DrawRecord, Registrar
from protocol.api.messages import CommitteeView, RoundView
from protocol.api.phases import MemberMessageKind, Phase
from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.oneshot.committee import Committee, sign_committee
from secagg.oneshot.member import volunteer
from server.db.repositories.access.committees import MemberMessage
from server.errors import ProblemError
from server.principals import Permission
from tests.server.cohort import refused
from tests.server.credentials import book, enrolled, keyed, showing
from tests.server.harness import Served, study_request
from tests.server.one_shot.rounds import TIMEOUTS, one_shot_device, send
from tests.server.one_shot.test_attacks import OCTETS, Wire
from tests.server.one_shot.volunteer_rounds import (
    POLICY,
    REGISTRAR,
    SIZE,
    TERMS,
    VOLUNTEERS,
    Volunteers,
    committee_of,
    convene_volunteers,
    create_drawn,
    draw,
    enrolled_device,
    enrolment,
)


def with_committee(view: RoundView, committee: Committee) -> RoundView:
    """Return the round as a server shows it with another committee."""
    changes = {"committee": committee.pack().hex()}
    return view.model_copy(update={"cohorts": (view.cohorts[0].model_copy(update=changes),)})


def chosen_by_server(committee: Committee) -> Committee:
    """Return a committee of the server's processes, with the registrar's signature of another."""
    chosen = tuple(
        volunteer(Identity.of(bytes([n + 1]) * 32), Random(n)).register(committee.plan_digest, 0)
        for n in range(SIZE)
    )
    return replace(committee, entries=chosen)


FORGERIES: dict[str, Callable[[Committee], Committee]] = {
    "chosen by the server": chosen_by_server,
    "signed by the server": lambda true: sign_committee(
        chosen_by_server(true), Identity.of(b"server" + bytes(26))
    ),
    "without a signature": lambda true: replace(true, signature=b""),
    "in another order": lambda true: replace(true, entries=true.entries[::-1]),
}


def showing_committee(committee: Committee) -> dict[str, Callable[[bytes], bytes]]:
    """Return the cheat that shows a member another committee."""

    def cheat(body: bytes) -> bytes:
        shown = CommitteeView.model_validate_json(body)
        return (
            shown.model_copy(update={"committee": committee.pack().hex()})
            .model_dump_json()
            .encode()
        )

    return {"committee": cheat}


async def test_devices_and_members_refuse_a_committee_that_the_registrar_did_not_sign(
    served: Served,
) -> None:
    """Guards: `secagg.oneshot.committee.Registrar.fault`."""
    study = await create_drawn(served)
    volunteers = Volunteers.of(study)
    view = await convene_volunteers(served, study, volunteers)
    forged = {name: forgery(committee_of(view)) for name, forgery in FORGERIES.items()}
    reason = "a committee that the registrar did not sign"
    for committee in forged.values():
        with pytest.raises(UnsafeRequestError, match=reason):
            await send(served, with_committee(view, committee), enrolled_device(view, 30), POLICY)
    for number in range(5):
        await send(served, view, enrolled_device(view, number), POLICY)
    await served.pass_phase(study)
    for number, (name, committee) in enumerate(forged.items()):
        member = volunteers.members[volunteers.numbers_in(view)[number]]
        wire = Wire(served, showing_committee(committee))
        assert "that the registrar did not sign" in "".join(await wire.act(member)), name
        assert wire.sent == {}


async def test_devices_and_members_refuse_the_committee_of_an_older_round(served: Served) -> None:
    """Guards: the plan's digest in `OneShotRound.of`: the registrar signed this committee."""
    study = await create_drawn(served, rounds=2)
    volunteers = Volunteers.of(study)
    first = await convene_volunteers(served, study, volunteers)
    await send(served, first, enrolled_device(first, 20), POLICY)
    assert await served.pass_phase(study) is Phase.FAILED  # of one device
    await served.until_closed(study)
    second = await convene_volunteers(served, study, volunteers, 2)
    stale = with_committee(second, committee_of(first))
    with pytest.raises(UnsafeRequestError, match="a committee of another round"):
        await send(served, stale, enrolled_device(second, 30), POLICY)
    for number in range(5):
        await send(served, second, enrolled_device(second, number), POLICY)
    await served.pass_phase(study, 2)
    wire = Wire(served, showing_committee(committee_of(first)))
    member = volunteers.members[volunteers.numbers_in(second)[0]]
    assert "a committee of another round" in "".join(await wire.act(member))
    assert wire.sent == {}


ROW = 192  # bytes of a volunteer


async def seating(served: Served) -> tuple[str, RoundView, bytes]:
    """Return a study whose registrar must draw, its round, and the list of volunteers."""
    study = await create_drawn(served)
    await Volunteers.of(study).act(served)
    await served.until_phase(study, "drawing")
    keys = await served.store.volunteers.keys(study, 1)
    return study, await served.show_round(study), b"".join(keys)


def row(view: RoundView, number: int, *, digest: bytes | None = None) -> bytes:
    """Return the key and the enrolment of another device that volunteers."""
    identity = Identity.of(bytes([number]) * 32)
    state = volunteer(identity, Random(number))
    key = state.register(digest or view.plan.digest(), 0).pack()
    return key + enrolment(view.plan, identity.public)


LISTS: dict[str, tuple[Callable[[RoundView, bytes], bytes], str]] = {
    "a volunteer twice": (lambda _view, body: body[:ROW] + body[:-ROW], "is listed twice"),
    "too few volunteers": (lambda _view, body: body[ROW:], "promises 12 volunteers"),
    "too many volunteers": (lambda view, body: body + row(view, 9), "promises 12 volunteers"),
    "a device that is not enrolled": (
        lambda view, body: body[ROW:] + row(view, 9)[:-64] + bytes(64),
        "was never enrolled",
    ),
    "the key for another round": (
        lambda view, body: body[ROW:] + row(view, 9, digest=bytes(32)),
        "did not sign its key for this plan",
    ),
    "a key of another device": (
        lambda view, body: body[ROW:] + row(view, 9)[:32] + body[32:64] + row(view, 9)[64:],
        "did not sign its key for this plan",
    ),
}


async def test_the_registrar_draws_from_no_list_that_a_server_has_changed(served: Served) -> None:
    """Guards: the registrar's checks, each in one case, and those of `draw_members`."""
    _, view, _ = await seating(served)
    for name, (cheat, reason) in LISTS.items():
        wire = Wire(served, {"volunteers": lambda body, cheat=cheat: cheat(view, body)})
        assert reason in "".join(await seat_over(wire)), name
        assert wire.sent == {}


async def seat_over(wire: Wire, registrar: Registrar | None = None) -> list[str]:
    """Let a registrar act over a connection; return the reasons of its refusals."""
    registrar, reports = registrar or Registrar(REGISTRAR, DrawRecord()), list[str]()
    async with wire.transport() as transport:
        await registrar.act(transport, report=lambda _round, text: reports.append(text))
    return [text for text in reports if text]


async def test_the_registrar_draws_once_for_a_plan(served: Served) -> None:
    """Guards: `DrawRecord`: a server that may repeat a draw repeats it until its devices are in."""
    study, view, _ = await seating(served)
    registrar = Registrar(REGISTRAR, DrawRecord())
    page = await served.client.get(f"/v1/registrars/{REGISTRAR.public.hex()}/seatings")
    assert await draw(served, registrar) == []
    first = committee_of(await served.open_round(study))
    again = Wire(served, invented={"seatings": page.content})
    assert "other joiners were seated" in "".join(
        await seat_over(
            Wire(
                served,
                {"volunteers": lambda body: body[ROW:] + row(view, 9)},
                {"seatings": page.content},
            ),
            registrar,
        )
    )
    other_process = Registrar(REGISTRAR, registrar.draws)
    assert await seat_over(again, other_process) == []
    assert again.sent["committee"] == [first.pack()]


async def test_the_registrar_draws_a_volunteer_a_few_times_under_any_plans(served: Served) -> None:
    """Guards: `Plan.max_committee_draws`."""
    _, view, body = await seating(served)
    registrar, plan = Registrar(REGISTRAR, DrawRecord()), view.plan
    assert plan.registry is not None
    assert plan.max_committee_draws == 3 + plan.rounds
    for number in range(plan.max_committee_draws):
        registrar.draws.draw(plan.registry.scope, bytes([number]), [body[:32]], 100, Random(1))
    refusals = await draw(served, registrar)
    assert f"1 of {VOLUNTEERS} devices were seated {plan.max_committee_draws} times" in refusals[0]


async def test_the_service_takes_one_committee_of_its_volunteers(served: Served) -> None:
    study, view, _ = await seating(served)
    digest = view.plan.digest()
    path = f"/v1/studies/{study}/rounds/1/committee"
    await draw(served)
    true = committee_of(await served.open_round(study))
    other = await create_drawn(served)
    await Volunteers.of(other).act(served)
    await served.until_phase(other, "drawing")
    waiting = path.replace(study, other)
    for committee in (true, sign_committee(chosen_by_server(true), REGISTRAR)):
        answer = await served.client.put(waiting, content=committee.pack(), headers=OCTETS)
        assert "has not volunteered" in refused(answer, 422, "malformed")
    again = await served.client.put(path, content=true.pack(), headers=OCTETS)
    assert again.status_code == 204
    turned = sign_committee(replace(true, entries=true.entries[::-1]), REGISTRAR)
    answer = await served.client.put(path, content=turned.pack(), headers=OCTETS)
    assert "another committee before" in refused(answer, 409, "conflict")
    unsigned = replace(turned, signature=bytes(64))
    answer = await served.client.put(path, content=unsigned.pack(), headers=OCTETS)
    assert "did not sign" in refused(answer, 422, "malformed")
    assert committee_of(await served.open_round(study)).plan_digest == digest


async def test_the_service_lists_enrolled_volunteers_with_different_keys(served: Served) -> None:
    study = await create_drawn(served)
    view = await served.show_round(study)
    volunteers = Volunteers.of(study, VOLUNTEERS + 1)
    base = f"/v1/studies/{study}/rounds/1"

    async def put(body: bytes) -> Any:
        path = f"{base}/members/{body[:32].hex()}/key"
        return await served.client.put(path, content=body, headers=OCTETS)

    own = row(view, 9)
    assert (await put(own)).status_code == 204
    refused(await put(row(view, 8)[:-64] + bytes(64)), 403, "not-enrolled")
    refused(await put(row(view, 8)[:-64]), 422, "malformed")
    twin = Identity.of(bytes([8]) * 32)
    stolen = volunteer(twin, Random(9)).register(view.plan.digest(), 0)  # the key of 9
    answer = await put(stolen.pack() + enrolment(view.plan, twin.public))
    assert "another member has registered this key" in refused(answer, 409, "conflict")
    refused(await served.client.get(f"{base}/volunteers"), 409, "wrong-phase")
    await volunteers.act(served)  # one more than are needed
    assert volunteers.refusals == []
    assert len(await served.store.committees.bodies(1, MemberMessageKind.KEY)) == VOLUNTEERS
    listed = await served.client.get(f"/v1/members/{twin.public.hex()}/rounds")
    assert listed.json() == {"rounds": []}


async def test_a_device_acts_as_no_other_volunteer_and_not_as_the_registrar(closed: Served) -> None:
    """Guards: `_own_identity`, and the scopes of the routes of a draw."""
    writer = await keyed(closed, Permission.READ, Permission.WRITE)
    response = await closed.client.post(
        "/v1/studies", json=study_request(terms=TERMS, timeouts=TIMEOUTS), headers=writer
    )
    study = response.json()["id"]
    _, token = await book(closed).create_token("phones", 2, None)
    own, other = one_shot_device(1).identity, one_shot_device(2).identity
    device = showing(await enrolled(closed, token, own))
    base = f"/v1/studies/{study}/rounds/1"
    answer = await closed.client.get(f"{base}/committee", headers=device)
    plan = CommitteeView.model_validate_json(answer.content).plan
    for identity, status in ((other, 403), (own, 204)):
        path = f"/v1/members/{identity.public.hex()}/rounds"
        listed = await closed.client.get(path, headers=device, params={"study": study})
        assert listed.status_code == (200 if status == 204 else 403)
        key = volunteer(identity, Random(1)).register(plan.digest(), 0).pack()
        body = key + enrolment(plan, identity.public)
        path = f"{base}/members/{identity.public.hex()}/key"
        answer = await closed.client.put(path, content=body, headers=device | OCTETS)
        assert answer.status_code == status, answer.text
    columns = f"{base}/members/{other.public.hex()}/columns"
    refused(await closed.client.get(columns, headers=device), 403, "forbidden")
    refused(await closed.client.get(f"{base}/volunteers", headers=device), 403, "forbidden")
    answer = await closed.client.put(f"{base}/committee", content=b"", headers=device | OCTETS)
    refused(answer, 403, "forbidden")
    seats = await keyed(closed, Permission.SEAT)
    refused(await closed.client.get(f"{base}/volunteers", headers=seats), 409, "wrong-phase")


async def test_a_round_takes_one_key_for_each_volunteer_of_its_plan(served: Served) -> None:
    """Guards: `Arrival.max_messages`: the registrar draws from no longer list."""
    study = await create_drawn(served)
    view = await served.show_round(study)
    status = await served.store.committees.status(study, 1)
    for number in range(1, VOLUNTEERS + 2):
        body = row(view, number)
        upload = MemberMessage.of(
            status.cohort, MemberMessageKind.KEY, body[:32].hex(), body, VOLUNTEERS
        )
        if number <= VOLUNTEERS:
            await served.store.receive(upload)
        else:
            with pytest.raises(ProblemError, match="enough devices have volunteered"):
                await served.store.receive(upload)
