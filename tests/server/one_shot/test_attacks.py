"""Attacks on one-shot rounds over HTTP: by the server on members and devices, and by clients.

`Guards:` names the check without which a test fails.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest

from client.committee.member import CommitteeMember, Volunteering, received_bytes
from client.committee.member_journal import MemberJournal
from client.errors import ServiceError
from client.http.transport import Transport
from protocol.api.messages import CommitteeRound, CommitteeRoundPage, CommitteeView, RoundView
from protocol.api.phases import MemberMessageKind, Phase
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.device_policy.policy import Policy, PolicyError
from protocol.mechanisms.registry import MECHANISMS, parse_question
from secagg.errors import UnsafeRequestError
from secagg.keys import Identity
from secagg.oneshot.committee import Committee
from secagg.oneshot.member import volunteer, volunteer_again
from secagg.oneshot.member_messages import unpack_digests
from secagg.ring import Vector
from server.db.repositories.access.committees import MemberMessage
from server.db.repositories.messages.one_shot_messages import OneShotMessageRepository
from server.errors import ProblemError
from tests.server.cohort import refused
from tests.server.harness import Served
from tests.server.one_shot.rounds import (
    MEMBER_POLICY,
    OPERATORS,
    PINNED,
    POLICY,
    TERMS,
    Operators,
    convene,
    create,
    one_shot_device,
    open_sum,
    phase_of,
    send,
    send_all,
    sum_of_vectors,
)

OCTETS = {"content-type": "application/octet-stream"}


@dataclass
class Wire(httpx.AsyncBaseTransport):
    """Connection to a service that records what a member sends, and may change the answers."""

    served: Served
    cheats: dict[str, Callable[[bytes], bytes]] = field(default_factory=dict)
    invented: dict[str, bytes] = field(default_factory=dict)  # answers in place of the service's
    sent: dict[str, list[bytes]] = field(default_factory=dict)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[-1]
        if request.method == "PUT":
            self.sent.setdefault(name, []).append(request.content)
        if name in self.invented:
            return httpx.Response(200, stream=httpx.ByteStream(self.invented[name]))
        answer = await httpx.ASGITransport(self.served.app).handle_async_request(request)
        if name not in self.cheats or answer.status_code != 200:
            return answer
        changed = self.cheats[name](await answer.aread())
        return httpx.Response(200, stream=httpx.ByteStream(changed))

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Transport]:
        async with httpx.AsyncClient(transport=self, base_url="http://test/v1") as http:
            yield Transport(http, 1)

    async def act(self, member: CommitteeMember) -> list[str]:
        """Let a member act; return the reasons of its refusals."""
        refusals: list[str] = []
        async with self.transport() as transport:
            await member.act(transport, report=lambda _round, reason: refusals.append(reason))
        return [reason for reason in refusals if reason]


def as_phase(phase: Phase) -> dict[str, Callable[[bytes], bytes]]:
    """Return the cheats that show a member another phase than the true one."""

    def view(body: bytes) -> bytes:
        shown = CommitteeView.model_validate_json(body)
        return shown.model_copy(update={"phase": phase}).model_dump_json().encode()

    return {"committee": view}


def waits_again(
    served: Served, study: str, phase: Phase = Phase.AGREEING
) -> dict[str, Callable[[bytes], bytes]]:
    """Return the cheat that lists the round, though the member has sent its message."""
    listed = CommitteeRound(study=study, round=1, phase=phase, deadline=served.clock.time)
    page = CommitteeRoundPage(rounds=(listed,)).model_dump_json().encode()
    return {"rounds": lambda _body: page}


async def collecting(
    served: Served, **changes: Any
) -> tuple[str, Operators, RoundView, Mapping[int, Vector]]:
    """Let six devices send their messages; return study, operators, round and vectors."""
    operators, study = Operators.of(), await create(served, **changes)
    view = await convene(served, study, operators)
    return study, operators, view, await send_all(served, view, range(6))


async def agreeing(served: Served) -> tuple[str, Operators]:
    """Bring a round of six devices to the point at which its members agree."""
    study, operators, *_ = await collecting(served)
    await served.pass_phase(study)
    await operators.act(served)
    await served.until_phase(study, "agreeing")
    return study, operators


async def test_a_member_signs_one_set_also_if_it_is_shown_two(served: Served) -> None:
    """Guards: the journal's `attempt` and `sign`."""
    study, operators = await agreeing(served)
    member = operators.members[0]
    wire = Wire(served, {"message-set": lambda body: body[32:]})  # without the first message
    assert "did not sign the set" in "".join(await wire.act(member))
    (signature,) = wire.sent["set-signature"]
    again = Wire(served, waits_again(served, study))
    restarted = CommitteeMember(OPERATORS[0], member.journal, MEMBER_POLICY)
    await again.act(restarted)
    assert set(again.sent["set-signature"]) == {signature}
    # The others go on without it, and it releases nothing for their set.
    operators.away.add(0)
    await operators.act(served)
    assert await served.pass_phase(study) is Phase.RELEASING
    cheats = waits_again(served, study) | as_phase(Phase.RELEASING)
    last = Wire(served, cheats)
    member = CommitteeMember(OPERATORS[0], member.journal, MEMBER_POLICY)
    assert "listed other messages than those that I signed" in "".join(await last.act(member))
    assert last.sent == {}
    assert (await open_sum(served, study, operators)).state == "decoded"


async def test_a_member_that_was_killed_while_it_checked_a_set_signs_no_other(
    served: Served,
) -> None:
    """Guards: the journal's `attempt` before the check."""
    study, operators = await agreeing(served)
    member = operators.members[0]
    plan = (await served.show_round(study)).plan.digest()
    session = (await served.service.round_cache.one_shot_sum((study, 1))).session
    chosen = unpack_digests(await served.store.one_shot_messages.message_set(1))
    member.journal.attempt(plan, session.set_digest(chosen))
    other = Wire(served, {"message-set": lambda body: body[32:]})
    restarted = CommitteeMember(OPERATORS[0], member.journal, MEMBER_POLICY)
    assert "another attempt for this sum" in "".join(await other.act(restarted))
    assert other.sent == {}
    wire = Wire(served)
    assert await wire.act(CommitteeMember(OPERATORS[0], member.journal, MEMBER_POLICY)) == []
    assert wire.sent.keys() == {"set-signature"}


async def test_a_member_uses_its_key_in_one_committee(served: Served) -> None:
    """Guards: the journal's `bind`: here the second committee lacks an operator."""
    _, operators = await agreeing(served)

    def smaller(body: bytes) -> bytes:
        view = CommitteeView.model_validate_json(body)
        committee = Committee.unpack(bytes.fromhex(view.committee or ""))
        parameters = replace(committee.parameters, members=6, dropouts=0)
        other = replace(committee, parameters=parameters, entries=committee.entries[:-1])
        changed = view.model_copy(update={"committee": other.pack().hex()})
        return changed.model_dump_json().encode()

    wire = Wire(served, {"committee": smaller})
    refusals = await wire.act(operators.members[0])
    assert "another committee for this sum" in "".join(refusals)
    assert wire.sent == {}


async def test_a_page_of_columns_starts_after_another_one(served: Served) -> None:
    """Guards: `RoundCache.message_page`: each start would make a page of megabytes."""
    study, operators, *_ = await collecting(served)
    await served.pass_phase(study)
    member = operators.members[0].identity.public.hex()
    path = f"/v1/studies/{study}/rounds/1/members/{member}/columns"
    column = (await served.client.get(path)).content
    first, last = column[:32].hex(), column[-len(column) // 6 :][:32].hex()
    assert (await served.client.get(path, params={"after": last})).content == b""
    refused(await served.client.get(path, params={"after": first}), 422, "malformed")


async def test_a_member_that_asks_for_many_pages_holds_up_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the turns in `RoundCache.message_page`."""
    monkeypatch.setattr("server.rounds.one_shot_sums._MAX_MESSAGES_PER_PAGE", 2)
    study, *_ = await collecting(served)
    await served.pass_phase(study)
    read, order = OneShotMessageRepository.page, list[str]()

    async def page(
        repository: OneShotMessageRepository, cohort: int, after: str, limit: int
    ) -> list[tuple[str, bytes | None]]:
        order.append(after)
        return await read(repository, cohort, after, limit)

    monkeypatch.setattr(OneShotMessageRepository, "page", page)
    cache = served.service.round_cache
    served_sum = await cache.one_shot_sum((study, 1))
    ends = sorted(await served.store.one_shot_messages.page_ends(served_sum.cohort, 2))
    await cache.message_page(study, 1, "", "one")
    asking = ((ends[0], "many"), (ends[1], "many"), (ends[2], "one"))
    await asyncio.gather(*(cache.message_page(study, 1, *each) for each in asking))
    assert order == ["", ends[0], ends[2], ends[1]]


async def test_a_member_that_starts_again_repeats_what_it_sent(served: Served) -> None:
    """Guards: the journal's `complain` and `release`, which erases the key; it checks once."""
    study, operators = await agreeing(served)
    member = operators.members[0]
    plan = (await served.show_round(study)).plan.digest()

    async def sent_again(phase: Phase) -> dict[str, list[bytes]]:
        cheats = waits_again(served, study, phase) | as_phase(phase)
        wire = Wire(served, cheats, invented={"columns": b"x"})
        assert await wire.act(CommitteeMember(OPERATORS[0], member.journal, MEMBER_POLICY)) == []
        return wire.sent

    complaints = member.journal.entry(plan).complaints
    assert await sent_again(Phase.CHECKING) == {"complaints": [complaints]}
    await operators.act(served)
    await served.until_phase(study, "releasing")
    wire = Wire(served)
    await wire.act(member)
    assert await sent_again(Phase.RELEASING) == wire.sent
    assert wire.sent.keys() == {"sum"}
    assert member.journal.entry(plan).secret is None


async def test_no_member_releases_a_sum_before_the_others_have_signed(served: Served) -> None:
    """Guards: `Agreed.release`, and the journal without a signature."""
    study, operators = await agreeing(served)
    early = Wire(served, as_phase(Phase.RELEASING))
    assert "signed no set" in "".join(await early.act(operators.members[0]))
    assert early.sent == {}
    # With the signatures of itself and three more: six are needed.
    operators.away.update((0, 5, 6))
    await operators.act(served)
    member = operators.members[1]
    signed = await served.store.committees.bodies(1, MemberMessageKind.SET_SIGNATURE)
    assert len(signed) == 4
    packed = b"".join(
        number.to_bytes(4, "big") + signed[OPERATORS[number - 1].public] for number in (2, 3, 4, 5)
    )
    cheats = waits_again(served, study) | as_phase(Phase.RELEASING)

    wire = Wire(served, cheats, invented={"set-signatures": packed})
    assert "showed 4 signatures of my set, and 6 are needed" in "".join(await wire.act(member))
    assert wire.sent == {}


async def put_message(served: Served, path: str, identity: str, body: bytes) -> httpx.Response:
    return await served.client.put(f"{path}/{identity}/message", content=body, headers=OCTETS)


async def test_a_message_counts_in_its_round_and_under_its_identity_only(served: Served) -> None:
    """Guards: the label of messages, and the path's identity."""
    study, operators, *_ = await collecting(served, rounds=2)
    body = (await served.store.one_shot_messages.page(1, "", 1))[0][1] or b""
    path = f"/v1/studies/{study}/rounds/1/devices"
    copied = OPERATORS[0].public + body[32:]
    for identity, content in ((PINNED[0], body), (PINNED[0], copied)):
        answer = await put_message(served, path, identity, content)
        refused(answer, 422, "malformed")
    assert (await served.show_round(study)).cohorts[0].enrolled == 6
    await open_sum(served, study, operators)
    await convene(served, study, operators, 2)
    path = f"/v1/studies/{study}/rounds/2/devices/{body[:32].hex()}/message"
    refused(await served.client.put(path, content=body, headers=OCTETS), 422, "malformed")
    assert (await served.show_round(study, 2)).cohorts[0].enrolled == 0


async def test_a_device_counts_once_in_a_study(served: Served) -> None:
    study, operators, view, _ = await collecting(served, rounds=2)
    path = f"/v1/studies/{study}/rounds/1/devices"
    ((identity, body),) = await served.store.one_shot_messages.page(1, "", 1)
    again = await put_message(served, path, identity, body or b"")
    assert again.status_code == 204
    assert (await served.show_round(study)).cohorts[0].enrolled == 6
    with pytest.raises(ServiceError, match="with other content was sent before") as other:
        await send(served, view, one_shot_device(3))  # a device that lost its journal
    assert other.value.problem.status == 409
    await open_sum(served, study, operators)
    answer = await put_message(served, path, identity, body or b"")
    assert answer.status_code == 204  # what was accepted stays accepted
    second = await convene(served, study, operators, 2)
    with pytest.raises(ServiceError, match="counted in round 1"):
        await send(served, second, one_shot_device(3))
    device = one_shot_device(77)
    await send(served, second, device)
    with pytest.raises(PolicyError, match="once per study"):  # by its own journal
        await send(served, second, device)


async def test_malformed_messages_get_a_clear_refusal_and_change_nothing(served: Served) -> None:
    operators = Operators.of()
    study = await create(served)
    path = f"/v1/studies/{study}/rounds/1/devices"
    early = await put_message(served, path, PINNED[0], b"x")
    refused(early, 409, "wrong-phase")
    view = await convene(served, study, operators)
    await send_all(served, view, range(1))
    ((identity, stored),) = await served.store.one_shot_messages.page(1, "", 9)
    body = stored or b""
    rng = Random(1)
    for content in (b"", body[:-1], body + b"\0", rng.randbytes(len(body))):
        answer = await put_message(served, path, identity, content)
        refused(answer, 422, "malformed")
    for place in (0, 40, len(body) // 2, len(body) - 1):
        changed = bytearray(body)
        changed[place] ^= 1
        name = bytes(changed[:32]).hex()
        answer = await put_message(served, path, name, bytes(changed))
        refused(answer, 422, "malformed")
    huge = await put_message(served, path, identity, bytes(2**27))
    refused(huge, 413, "too-large")
    refused(await served.client.put(f"{path}/{identity}/message", json={}), 415, "wrong-media-type")
    refused(await put_message(served, path, "xyz", body), 422, "malformed")
    unknown = f"/v1/studies/{study}/rounds/9/devices/{identity}/message"
    refused(await served.client.put(unknown, content=body, headers=OCTETS), 404, "not-found")
    assert (await served.show_round(study)).cohorts[0].enrolled == 1
    assert await served.store.one_shot_messages.page(1, "", 9) == [(identity, body)]


async def put(served: Served, study: str, identity: str, kind: str, body: bytes) -> httpx.Response:
    path = f"/v1/studies/{study}/rounds/1/members/{identity}/{kind}"
    return await served.client.put(path, content=body, headers=OCTETS)


async def test_messages_of_members_are_checked_before_they_count(served: Served) -> None:
    study = await create(served)
    plan = (await served.show_round(study)).plan.digest()
    rng, stranger = Random(1), Identity.of(bytes(32))
    entry = volunteer(OPERATORS[0], rng).register(plan, 0).pack()
    other = volunteer(OPERATORS[0], rng).register(plan, 0).pack()
    foreign = volunteer(stranger, rng).register(plan, 0).pack()
    elsewhere = volunteer(OPERATORS[0], rng).register(bytes(32), 0).pack()
    refused(await put(served, study, stranger.public.hex(), "key", foreign), 404, "not-found")
    for body in (foreign, elsewhere, entry[:-1], entry[:-1] + bytes([entry[-1] ^ 1])):
        refused(await put(served, study, PINNED[0], "key", body), 422, "malformed")
    assert (await put(served, study, PINNED[0], "key", entry)).status_code == 204
    assert (await put(served, study, PINNED[0], "key", entry)).status_code == 204
    refused(await put(served, study, PINNED[0], "key", other), 409, "conflict")
    assert (await served.show_round(study)).cohorts[0].history[-1].received == 1
    for kind in ("complaints", "set-signature", "sum"):
        refused(await put(served, study, PINNED[0], kind, bytes(64)), 409, "wrong-phase")
    for resource in (f"members/{PINNED[0]}/columns", "message-set", "set-signatures"):
        path = f"/v1/studies/{study}/rounds/1/{resource}"
        refused(await served.client.get(path), 409, "wrong-phase")


async def test_two_members_with_one_key_do_not_stop_a_round(served: Served) -> None:
    """Guards: the keys of other members in `CommitteeRepository.accept`."""
    study = await create(served)
    plan = (await served.show_round(study)).plan.digest()
    first, second = (volunteer_again(each, bytes(32), plan, 0) for each in OPERATORS[:2])
    body = first.register(plan, 0).pack()
    assert (await put(served, study, PINNED[0], "key", body)).status_code == 204
    same = second.register(plan, 0).pack()
    refused(await put(served, study, PINNED[1], "key", same), 409, "conflict")
    operators = Operators.of()
    operators.away.add(0)
    view = await convene(served, study, operators)
    await send_all(served, view, range(6))


async def test_steps_of_members_in_the_wrong_phase_change_nothing(served: Served) -> None:
    study, operators = await agreeing(served)
    for kind in ("sum", "complaints", "key"):
        answer = await put(served, study, PINNED[0], kind, bytes(64))
        assert answer.status_code in (409, 422)
    forged = await put(served, study, PINNED[0], "set-signature", bytes(64))
    refused(forged, 422, "malformed")
    assert (await served.show_round(study)).cohorts[0].history[-1].received == 0
    assert (await open_sum(served, study, operators)).state == "decoded"


async def test_a_false_sum_of_a_member_is_corrected(served: Served) -> None:
    """Guards: the decoding of `open_sum`; the liar signs its false sum."""
    study, operators, view, vectors = await collecting(served)
    await served.pass_phase(study)
    await operators.act(served)
    await served.until_phase(study, "agreeing")
    await operators.act(served)
    await served.until_phase(study, "releasing")
    sharing = (await served.service.round_cache.one_shot_sum((study, 1))).session
    lie = bytes(sharing.sharing.sum_bytes)
    digests = await served.store.one_shot_messages.message_set(1)
    included = [digests[place : place + 32] for place in range(0, len(digests), 32)]
    signed = sharing.sum_statement(3, sharing.set_digest(included), lie)
    body = lie + OPERATORS[2].sign(signed)
    assert (await put(served, study, PINNED[2], "sum", body)).status_code == 204
    closed = await open_sum(served, study, operators)
    assert (closed.state, closed.participants) == ("decoded", 6)
    assert await served.read_sum(study) == sum_of_vectors(view, list(vectors.values()))


async def test_a_sum_with_too_few_members_fails_and_the_next_round_opens(served: Served) -> None:
    study, operators, *_ = await collecting(served, rounds=2)
    operators.away.update((1, 2))
    closed = await open_sum(served, study, operators)
    assert closed.state == "failed"
    assert "where 6 are needed" in str(closed.cohorts[0].failure)
    rows = await served.store.one_shot_messages.page(1, "", 9)
    assert len(rows) == 6
    assert {body for _, body in rows} == {None}
    operators.away.clear()
    await convene(served, study, operators, 2)


def with_committee(view: RoundView, change: Callable[[Committee], Committee]) -> RoundView:
    """Return the open round with another committee."""
    (cohort,) = view.cohorts
    changed = change(Committee.unpack(bytes.fromhex(cohort.committee or ""))).pack().hex()
    return view.model_copy(update={"cohorts": (cohort.model_copy(update={"committee": changed}),)})


async def test_a_device_refuses_a_committee_that_the_server_made(served: Served) -> None:
    """Guards: `OneShotRound.of`, and the authority of `make_message`."""
    study = await create(served)
    view = await convene(served, study, Operators.of())
    plan, rng = view.plan.digest(), Random(2)

    def invented(committee: Committee) -> Committee:
        mine = volunteer(Identity.generate(rng), rng).register(plan, 0)
        return replace(committee, entries=(mine, *committee.entries[1:]))

    def unsigned(committee: Committee) -> Committee:
        first = committee.entries[0]
        mine = volunteer(Identity.generate(rng), rng).register(plan, 0)
        entry = replace(mine, identity=first.identity)
        return replace(committee, entries=(entry, *committee.entries[1:]))

    def weaker(committee: Committee) -> Committee:
        parameters = replace(committee.parameters, corrupt=0, threshold=5)
        return replace(committee, parameters=parameters)

    changes: dict[Callable[[Committee], Committee], str] = {
        invented: "other operators",
        unsigned: "did not sign",
        weaker: "other parameters",
        lambda committee: replace(committee, plan_digest=bytes(32)): "another round",
        lambda committee: replace(committee, number=1): "another round",
    }
    for change, reason in changes.items():
        with pytest.raises(UnsafeRequestError, match=reason):
            await send(served, with_committee(view, change), one_shot_device(0))
    without = view.model_copy(update={"cohorts": ()})
    with pytest.raises(UnsafeRequestError, match="without a committee"):
        await send(served, without, one_shot_device(0))
    assert (await served.show_round(study)).cohorts[0].enrolled == 0


async def test_a_device_sends_nothing_to_a_committee_beyond_its_policy(served: Served) -> None:
    study = await create(served)
    view = await convene(served, study, Operators.of())
    others = frozenset(operator.public for operator in OPERATORS[1:])
    limits: list[tuple[str, dict[str, Any]]] = [
        ("committee", {"committee": frozenset()}),
        ("committee", {"committee": others}),
        ("min_committee", {"min_committee": 8}),
        ("min_committee_corrupt", {"min_committee_corrupt": 0.3}),
        ("trust_server_identities", {"trust_server_identities": False}),
        ("min_cohort", {"min_cohort": 5}),
    ]
    for number, (limit, changes) in enumerate(limits):
        with pytest.raises(PolicyError) as refusal:
            await send(served, view, one_shot_device(number), replace(POLICY, **changes))
        assert refusal.value.limit == limit
        assert (await served.show_round(study)).cohorts[0].enrolled == 0


def test_the_default_policy_refuses_every_committee() -> None:
    assert Policy().committee == frozenset()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"min_devices": 5}, "as few as 4 devices"),
        ({"serve_unverified": False}, "no registrar"),
        ({"max_column_bytes": 60 * 500}, "bytes, above 30,000"),
    ],
)
async def test_a_member_serves_only_what_its_policy_accepts(
    served: Served, changes: dict[str, Any], reason: str
) -> None:
    await create(served)
    policy = replace(MEMBER_POLICY, **changes)
    member = CommitteeMember(OPERATORS[0], MemberJournal(), policy)
    wire = Wire(served)
    assert reason in "".join(await wire.act(member))
    assert await wire.act(member) == []  # a refusal is reported once
    assert wire.sent == {}


@pytest.mark.parametrize(
    ("of_plan", "of_terms", "reason"),
    [
        ({"study": "other"}, {}, "the plan of another round"),
        ({"round": 2}, {}, "the plan of another round"),
        (
            {},
            {"committee": VolunteerTerms(volunteers=60, size=30), "registrar": PINNED[1]},
            "another kind of member",
        ),
        ({}, {"committee": CommitteeTerms(members=PINNED[1:])}, "does not name this member"),
    ],
)
async def test_a_member_registers_no_key_for_a_plan_of_others(
    served: Served, of_plan: dict[str, Any], of_terms: dict[str, Any], reason: str
) -> None:
    """Guards: the first checks of `_MemberStep._check_plan`."""
    await create(served)

    def view(body: bytes) -> bytes:
        shown = CommitteeView.model_validate_json(body)
        terms = shown.plan.terms.model_copy(update=of_terms)
        question = shown.plan.question.model_copy(update={"message_bytes": 90_000})
        plan = shown.plan.model_copy(update=of_plan | {"terms": terms, "question": question})
        return shown.model_copy(update={"plan": plan}).model_dump_json().encode()

    wire = Wire(served, {"committee": view})
    member = CommitteeMember(OPERATORS[0], MemberJournal(), MEMBER_POLICY)
    assert reason in "".join(await wire.act(member))
    assert wire.sent == {}


@pytest.mark.parametrize("number", [None, 2])
async def test_a_device_serves_in_no_round_for_which_it_did_not_volunteer(
    served: Served, number: int | None
) -> None:
    """Guards: `CommitteeMember._may_serve`; the service lists another round."""
    study = await create(served)
    offer = Volunteering(study if number else "another", AsyncMock(), number)
    member = CommitteeMember(OPERATORS[0], MemberJournal(), MEMBER_POLICY, volunteering=offer)
    wire = Wire(served, waits_again(served, study, Phase.CONVENING))
    assert await wire.act(member) == []
    assert wire.sent == {}


async def test_no_document_of_a_server_ends_a_member(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards: the mechanism of a plan, and faults of any kind in `CommitteeMember.act`."""
    study = await create(served)
    question = parse_question(
        {
            "mechanism": "krr",
            "threshold": 5,
            "contribution": 1,
            "domain": {"kind": "alphabet", "characters": "ab", "length": 1},
            "epsilon": 1,
        }
    )
    terms = (await served.show_round(study)).plan.terms
    plan = MECHANISMS["krr"].first_plan(question, terms, study, 1, Random(1))

    def of_reports(body: bytes) -> bytes:
        shown = CommitteeView.model_validate_json(body).model_copy(update={"plan": plan})
        return shown.model_dump_json().encode()

    member = CommitteeMember(OPERATORS[0], MemberJournal(), MEMBER_POLICY)
    wire = Wire(served, {"committee": of_reports})
    assert "asks a committee for reports" in "".join(await wire.act(member))

    def fail(*_parts: object) -> None:
        raise OverflowError("of a number")

    other = CommitteeMember(OPERATORS[0], MemberJournal(), MEMBER_POLICY)
    monkeypatch.setattr(MemberJournal, "key", fail)
    assert "OverflowError: of a number" in "".join(await Wire(served).act(other))
    assert wire.sent == {}


@pytest.mark.parametrize(
    "names",
    [
        [range(1, 62)],  # the sum has 60 devices at most
        [[0], [0]],  # the device of the last message
    ],
)
async def test_columns_that_would_fill_a_member_are_refused(
    served: Served, names: Sequence[Sequence[int]]
) -> None:
    """Guards: each limit of `_MemberStep._columns`."""
    study, operators, *_ = await collecting(served)
    await served.pass_phase(study)
    pages, bodies = iter(names), list[bytes]()

    def invented(body: bytes) -> bytes:
        """Return the next page, of columns of devices with these names; then an empty one."""
        bodies.append(body)
        column = bodies[0][-len(bodies[0]) // 6 :]
        identities = (name.to_bytes(32) if name else column[:32] for name in next(pages, ()))
        return b"".join(identity + column[32:] for identity in identities)

    wire = Wire(served, {"columns": invented})
    refusals = await wire.act(operators.members[0])
    assert "more columns than the sum has devices" in "".join(refusals)
    cut = Wire(served, {"columns": lambda body: body[:-1]})
    assert "bytes of columns" in "".join(await cut.act(operators.members[1]))
    assert wire.sent == cut.sent == {}


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_member_that_comes_late_has_nothing_to_refuse(
    served: Served, is_over: bool
) -> None:
    """Guards: the phases of `_MemberStep.take`: a round may go on after it was listed."""
    operators = Operators.of()
    study = await create(served)
    operators.away = {0}
    view = await convene(served, study, operators)
    number = 0
    if is_over:
        await send_all(served, view, range(6))
        assert (await served.client.post(f"/v1/studies/{study}/stop")).status_code == 200
        assert await phase_of(served, study) is Phase.FAILED
        number = 1
    wire = Wire(served, waits_again(served, study, Phase.CONVENING))
    assert await wire.act(operators.members[number]) == []
    assert wire.sent == {}


async def test_sums_that_wait_do_not_fill_a_member(served: Served) -> None:
    """Guards: the bytes in `CommitteeMember.keep`; what it does not keep it makes again."""
    operators = Operators.of()
    member, studies = operators.members[0], [await create(served) for _ in range(2)]
    views = [await convene(served, study, operators) for study in studies]
    for view in views:
        await send_all(served, view, range(6))
    await served.pass_phase(studies[0])
    await served.until_phase(studies[1], "checking")
    member.policy = replace(MEMBER_POLICY, max_column_bytes=received_bytes(views[0].plan))
    await operators.act(served)
    assert [member.take(view.plan.digest()) for view in views].count(None) == 1
    for study in studies:
        assert (await open_sum(served, study, operators)).state == "decoded"
    assert operators.refusals == []


async def test_a_stopped_study_opens_no_sum(served: Served) -> None:
    study, operators = await agreeing(served)
    assert (await served.client.post(f"/v1/studies/{study}/stop")).status_code == 200
    assert await phase_of(served, study) is Phase.FAILED
    upload = MemberMessage.of(1, MemberMessageKind.SET_SIGNATURE, PINNED[0], bytes(64))
    with pytest.raises(Exception, match="the study was stopped"):
        await served.store.receive(upload)
    await operators.act(served)
    async with asyncio.timeout(20):
        while await served.store.cohorts.finished_with_bodies():
            await served.tick()
    assert {body for _, body in await served.store.one_shot_messages.page(1, "", 9)} == {None}
    assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
    assert await served.store.one_shot_messages.page(1, "", 9) == []


async def test_a_message_for_a_deleted_study_counts_in_no_other(served: Served) -> None:
    """Guards: ids of deleted cohorts, which no other cohort gets."""
    operators, identity = Operators.of(), one_shot_device(0).identity.public.hex()
    study = await create(served)
    view = await convene(served, study, operators)
    await send(served, view, one_shot_device(0))
    ((_, stored),) = await served.store.one_shot_messages.page(1, "", 9)
    body = stored or b""

    async def slow_body() -> AsyncIterator[bytes]:
        yield body[:1]
        assert (await served.client.post(f"/v1/studies/{study}/stop")).status_code == 200
        assert (await served.client.delete(f"/v1/studies/{study}")).status_code == 204
        await convene(served, await create(served), operators)
        yield body[1:]

    path = f"/v1/studies/{study}/rounds/1/devices/{identity}/message"
    headers = OCTETS | {"content-length": str(len(body))}
    refused(await served.client.put(path, content=slow_body(), headers=headers), 404, "not-found")
    assert await served.store.one_shot_messages.page(1, "", 9) == []
    late = MemberMessage.of(1, MemberMessageKind.KEY, PINNED[0], bytes(64))
    with pytest.raises(ProblemError, match="no such round"):
        await served.store.receive(late)


async def test_reports_have_no_one_shot_sum(served: Served) -> None:
    question = {
        "mechanism": "krr",
        "threshold": 10,
        "domain": {"kind": "listed", "items": ["yes", "no"]},
        "epsilon": 1.0,
    }
    request = {"name": "n", "question": question, "terms": TERMS, "rounds": 1}
    answer = await served.client.post("/v1/studies", json=request)
    assert "reports are private by themselves" in refused(answer, 422, "malformed")
    assert answer.json()["errors"][0]["location"] == "body.terms.sum"


async def test_rounds_of_other_sums_have_no_committee(served: Served) -> None:
    study = await served.create()
    base = f"/v1/studies/{study}/rounds/1"
    member = f"{base}/members/{PINNED[0]}"
    for path in (f"{base}/committee", f"{base}/message-set", f"{base}/set-signatures"):
        refused(await served.client.get(path), 409, "wrong-state")
        refused(await served.client.get(path.replace("/1/", "/2/")), 404, "not-found")
    refused(await served.client.get(f"{member}/columns"), 409, "wrong-state")
    for path in (
        f"{base}/devices/{PINNED[0]}/message",
        *(f"{member}/{kind}" for kind in MemberMessageKind),
    ):
        answer = await served.client.put(path, content=bytes(64), headers=OCTETS)
        refused(answer, 409, "wrong-state")
    listed = await served.client.get(f"/v1/members/{PINNED[0]}/rounds")
    assert listed.json() == {"rounds": []}
