"""Participation of a device in a real round, through ASGI."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import get_ident
from typing import Any, NoReturn

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from client.device.device import DeviceStep, StudyDevice, steps_in_sum
from client.device.driver import EndState, run_participation
from client.device.encoding import Contribution, encode
from client.device.journal import FileJournal, JournalEntry, MemoryJournal
from client.device.participation import MAX_ROW_BYTES, ReportParticipation
from client.http.transport import Transport
from protocol.api.messages import RoundView
from protocol.api.messages_outside_sums import JoinRequest, SignedReport
from protocol.api.phases import MessageKind
from protocol.device_policy.policy import MAX_SHARINGS, PolicyError
from protocol.device_policy.sizes_and_losses import noisy_counts
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.randomness import seeded_words
from secagg.aggregator import check_answers
from secagg.keys import Identity
from secagg.messages import Answers, pack_signatures
from tests.client.cohort import (
    EVERY_ROUND_QUESTION,
    POLICY,
    REGISTRAR,
    STUDY,
    TERMS,
    N,
    Service,
    device,
    enrolled,
    participation,
    play,
    view_of,
)
from tests.client.mock_transport import MockTransport
from tests.support.journals import vector_entry
from tests.support.policies import refused_for
from tests.support.views import round_document

ALL_STEPS = list(steps_in_sum("pairwise"))


def test_the_largest_documents_are_those_of_the_protocol_page() -> None:
    assert {
        "roster": 224,
        "share-commitments": 68,
        "survivors": len("99,999, "),
        "confirmations": 68,
        "encrypted-shares": 134,
        "complaints": 68,
        "signed-inputs": 100,
    } == MAX_ROW_BYTES


@pytest.mark.parametrize("epsilon", [None, 8.0])
async def test_noise_is_drawn_outside_the_event_loop(
    epsilon: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(*parts: Any) -> Any:
        threads.append(get_ident())
        return encode(*parts)

    domain = {"kind": "listed", "items": ["word", "other"]}
    asked = {"mechanism": "count-median", "threshold": 5, "contribution": 1, "message_bytes": 1984}
    question = parse_question(asked | {"domain": domain, "rows": 1, "epsilon": epsilon})
    monkeypatch.setattr("client.device.participation.encode", noted)
    monkeypatch.setattr("client.device.participation.NOISE_EVENT_WORK_BYTES", 2**40)
    assert (await play(Service(view_of(question=question))))[-1] is DeviceStep.UNMASKED
    assert (threads == [get_ident()]) is (epsilon is None)


async def test_the_sum_has_the_vector_of_the_device() -> None:
    service = Service(view_of(), dropouts=[4, 7])
    async with service.client() as http:
        part = participation(http, service.view, policy=POLICY)
        taken = [step async for step in part.steps(STUDY)]
    assert taken == ALL_STEPS
    assert part.vector is not None
    service.check_total(part.vector)


async def test_where_steps_are_slow_the_event_loop_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.device.participation.THREAD_WORK_BYTES", 0)
    service = Service(view_of(registrar=REGISTRAR.public.hex()), REGISTRAR)
    assert await play(service, enrolled(service, REGISTRAR)) == ALL_STEPS
    service.total()


async def test_each_round_has_its_own_keys_and_ticket() -> None:
    requests, tickets = [], set[str]()

    async def note(request: httpx.Request) -> None:
        tickets.add(request.headers["authorization"])

    for number in (1, 2):
        service = Service(view_of(number))
        async with service.client() as http:
            http.event_hooks = {"request": [note]}
            taking = participation(http, service.view).steps(STUDY)
            await anext(taking)
            await taking.aclose()
        requests.append(JoinRequest.model_validate_json(service.received["participants"]))
    assert {len(ticket) for ticket in tickets} == {len("Bearer ") + 43}
    assert len(tickets) == 2
    assert len({key for each in requests for key in (each.mask_key, each.encryption_key)}) == 4
    assert requests[0].identity == requests[1].identity


async def test_an_enrolment_is_shown_where_the_study_has_a_registrar_and_only_there() -> None:
    service = Service(view_of(registrar=REGISTRAR.public.hex()), REGISTRAR)
    who = enrolled(service, REGISTRAR)
    await play(service, who)
    assert (
        JoinRequest.model_validate_json(service.received["participants"]).registrar_signature
        == who.enrolment.hex()
    )
    plain = Service(view_of())
    await play(plain, device(enrolment=who.enrolment))
    assert (
        JoinRequest.model_validate_json(plain.received["participants"]).registrar_signature is None
    )


async def test_a_document_is_read_up_to_its_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    read: dict[str, int] = {}
    poll = Transport.poll

    async def noted(self: Transport, path: str, ticket: str, max_bytes: int) -> httpx.Response:
        read[path.rsplit("/", 1)[-1]] = max_bytes
        return await poll(self, path, ticket, max_bytes)

    monkeypatch.setattr(Transport, "poll", noted)
    await play(Service(view_of(), sends_following=False))
    assert read == {name: 2**14 + N * size for name, size in MAX_ROW_BYTES.items()}


@pytest.mark.parametrize("sends_following", [True, False])
async def test_a_device_asks_only_for_documents_that_do_not_follow_its_message(
    sends_following: bool,
) -> None:
    service = Service(view_of(), sends_following=sends_following)
    assert await play(service) == ALL_STEPS
    assert len(service.received) == 6
    order = [
        "roster", "encrypted-shares", "complaints", "share-commitments", "survivors",
        "confirmations", "signed-inputs",
    ]  # fmt: skip
    assert service.requested == ([] if sends_following else order)


async def test_a_device_whose_exact_study_is_spent_does_not_even_join() -> None:
    """A refusal after the keys are shared would cost the others."""
    earlier = vector_entry("another")
    service = Service(view_of())
    with refused_for("max_exact_studies"):
        await play(service, device(journal=MemoryJournal([earlier])))
    assert service.received == {}


async def test_a_device_whose_noise_of_earlier_rounds_is_too_small_does_not_even_join() -> None:
    entry = vector_entry(STUDY)
    service = Service(view_of(2, EVERY_ROUND_QUESTION))
    with refused_for("max_epsilon"):
        await play(service, device(journal=MemoryJournal([replace(entry, variance=0.1)])))
    assert service.received == {}


@pytest.mark.parametrize("registrar", [None, REGISTRAR])
async def test_a_report_shows_the_enrolment_where_the_study_has_a_registrar(
    registrar: Identity | None,
) -> None:
    asked = {"mechanism": "krr", "threshold": 5, "contribution": 1, "epsilon": 1.0}
    question = parse_question(asked | {"domain": {"kind": "listed", "items": ["word", "other"]}})
    terms = TERMS.model_copy(update={"registrar": registrar and registrar.public.hex()})
    mechanism = REPORT_MECHANISMS["krr"]
    plan = mechanism.first_plan(question, terms, STUDY, 1, Random(1))
    view, who = RoundView.model_validate(round_document(plan.model_dump())), device()
    enrolment = b""
    if registrar and plan.registry:
        enrolment = registrar.sign(plan.registry.enrolment_statement(who.identity.public))
    sent: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.content)
        return httpx.Response(204)

    policy = replace(POLICY, registrar=registrar and registrar.public)
    transport, chance = MockTransport(answer), seeded_words(np.random.default_rng(1))
    async with httpx.AsyncClient(transport=transport, base_url="http://service/v1") as http:
        part = ReportParticipation(
            Transport(http),
            view,
            replace(who, enrolment=enrolment),
            policy=policy,
            secrets=Random(1),
            chance=chance,
        )
        assert [step async for step in part.steps(STUDY)] == [DeviceStep.REPORTED]
    nbytes = mechanism.nbytes(plan)
    report = SignedReport.unpack(who.identity.public, sent[0], nbytes, registrar is not None)
    assert report.has_valid_signature
    assert report.registrar_signature == enrolment


async def test_a_device_answers_a_false_complaint_and_is_in_the_sum() -> None:
    def complaint(_: bytes) -> bytes:
        pair = service.routed[liar()][0].pack()
        statement = service.session.complaint_statement(liar(), 0, pair)
        return pack_signatures({liar(): service.others[liar() - 1].identity.sign(statement)})

    def liar() -> int:
        graph_nonce = service.key_shares[0].graph_nonce
        return service.session.neighbour_selection.holders(0, graph_nonce)[0]

    service = Service(view_of(), cheats={"complaints": complaint})
    assert await play(service) == ALL_STEPS
    answers = Answers.unpack(service.received["answers"])
    check_answers(service.session, 0, service.key_shares[0], [liar()], answers)
    service.total()


async def test_an_unexpected_error_ends_the_round_and_keeps_the_last_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OverflowError("too large\n")

    monkeypatch.setattr("client.device.participation.encode", fail)
    service = Service(view_of())
    async with service.client() as http:
        end = await run_participation(participation(http, service.view), STUDY)
    assert (end.state, end.last_step) == (EndState.FAULT, DeviceStep.CHECKED)
    assert end.error == r"OverflowError: too large\n"


# Studies that ask the same devices in every round.

INVITING_QUESTION = EVERY_ROUND_QUESTION.model_copy(
    update={"mode": "both", "probability": 0.25, "join_probability": 0.5}
)


@pytest.mark.parametrize("fell", [0, 2**64 - 1])
async def test_a_device_joins_by_a_coin_that_it_flips_once(tmp_path: Path, fell: int) -> None:
    """Let a device poll twenty times, restarted each time: if not invited, it sends nothing."""
    path, coins = tmp_path / "journal", list[int]()

    def chance(count: int) -> NDArray[np.uint64]:
        coins.append(count)
        return np.full(count, fell, np.uint64)

    service = Service(view_of(question=INVITING_QUESTION))
    for _ in range(20):
        async with service.client() as http:
            who, policy = device(journal=FileJournal(path)), replace(POLICY, max_epsilon=100)
            taking = participation(http, service.view, who, policy, chance).steps(STUDY)
            taken = [await anext(taking, None)]  # then it drops out
            await taking.aclose()
    assert coins == [1]
    assert taken == ([DeviceStep.JOINED] if fell == 0 else [None])
    assert list(service.received) == (["participants"] if fell == 0 else [])
    assert len(path.read_text().splitlines()) == 2  # the coin, and a reading of the clock


@pytest.mark.parametrize("joins", [False, True])
async def test_a_plan_without_coins_asks_no_device_whose_coin_fell(joins: bool) -> None:
    """Otherwise a device whose coin shows tails would join and vote with probability p.

    It would then vote with probability 2 p - p v in all, where v is the join probability.
    """
    journal = MemoryJournal()
    journal.decide_to_join(STUDY, 1, "5a" * 32, lambda: joins)
    policy = replace(POLICY, max_epsilon=100)
    question = INVITING_QUESTION.model_copy(update={"join_probability": 1.0})
    certain = Service(view_of(question=question))
    assert await play(certain, device(journal=journal), policy) == []
    assert not certain.received
    later = Service(view_of(2, question=question))
    assert await play(later, device(journal=journal), policy) == ALL_STEPS


async def test_a_device_that_may_not_share_again_flips_no_coin() -> None:
    journal, policy = MemoryJournal(), replace(POLICY, max_epsilon=100)
    most = policy.max_rounds + MAX_SHARINGS
    for number in range(most):
        entry = JournalEntry.of(STUDY, number, 0, MessageKind.KEY_SHARES, bytes([number]))
        journal.record(entry, most)
    before = journal.entries
    service = Service(view_of(9, question=INVITING_QUESTION))
    with pytest.raises(PolicyError, match="max_sharings"):
        await play(service, device(journal=journal), policy)
    assert not service.received
    assert journal.entries == before


async def test_a_device_that_its_coin_invites_takes_all_steps() -> None:
    service = Service(view_of(question=INVITING_QUESTION))
    journal = MemoryJournal()
    journal.decide_to_join(STUDY, 1, service.plan.digest().hex(), lambda: True)
    policy = replace(POLICY, max_epsilon=100)
    assert await play(service, device(journal=journal), policy) == ALL_STEPS
    assert journal.rounds_by_study() == {STUDY: {1}}


async def test_a_device_adds_the_share_of_noise_of_the_cohort_that_came_together() -> None:
    """Add the noise of a cohort of 9 where 20 were possible: (1 - d - c) n devices share it."""
    service = Service(view_of(question=EVERY_ROUND_QUESTION, cohort_size=20))
    plan = service.plan
    async with service.client() as http:
        part = participation(http, service.view)
        async for _ in part.steps(STUDY):
            pass
    assert part.vector is not None
    noise = plan.signed_votes(part.vector[0])  # and one vote
    share = plan.release.variance / (0.6 * N)
    error = share * ((2 + 1 / share) / plan.cells) ** 0.5
    assert abs(noise.var() - share) < 4.5 * error  # fails with probability 1e-5 under another seed
    assert error < 0.01 * share
    service.check_total(part.vector)


async def test_a_device_that_is_asked_again_sends_one_vector_per_round(tmp_path: Path) -> None:
    who = device(journal=FileJournal(tmp_path / "journal"))
    for number in (1, 2):
        service = Service(view_of(number, EVERY_ROUND_QUESTION))
        assert await play(service, who) == ALL_STEPS
        again = Service(view_of(number, EVERY_ROUND_QUESTION))
        restarted = device(journal=FileJournal(tmp_path / "journal"))
        with pytest.raises(PolicyError, match="once per round"):
            await play(again, restarted)
        assert again.received == {}
    with pytest.raises(PolicyError, match="max_rounds"):
        await play(Service(view_of(3, EVERY_ROUND_QUESTION)), who, replace(POLICY, max_rounds=2))
    assert who.journal.rounds_by_study() == {STUDY: {1, 2}}
    each_sum = noisy_counts(view_of(question=EVERY_ROUND_QUESTION).plan)
    assert who.journal.noise_spent(STUDY) == each_sum + each_sum


async def test_of_two_processes_asked_again_one_gives_the_vector(tmp_path: Path) -> None:
    """Let the second read its journal before the first records: only the record stops it."""
    first, late = (Service(view_of(2, EVERY_ROUND_QUESTION)) for _ in range(2))
    earlier, later = (device(journal=FileJournal(tmp_path / "journal")) for _ in range(2))
    async with late.client() as http:
        taking = participation(http, late.view, later).steps(STUDY)
        steps = [DeviceStep.JOINED, DeviceStep.SHARED, DeviceStep.CHECKED]
        assert [await anext(taking) for _ in steps] == steps
        await play(first, earlier)
        with pytest.raises(PolicyError, match="another masked-input in round 2"):
            await anext(taking)
    assert "masked-input" not in late.received


# Messages are in the journal before they are sent.

SENT_ONCE = [MessageKind.MASKED_INPUT, MessageKind.CONFIRMATION, MessageKind.UNMASKING_SHARES]


async def test_what_is_sent_is_in_the_journal_before_it_leaves(tmp_path: Path) -> None:
    path, recorded = tmp_path / "journal", list[str]()

    def look(name: str, body: bytes) -> None:
        if name in set(SENT_ONCE):
            assert sha256(body).hexdigest() in path.read_text()
            recorded.append(name)

    service = Service(view_of(), before=look)
    await play(service, device(journal=FileJournal(path)))
    assert recorded == SENT_ONCE
    for secret in (service.received["masked-input"], service.received["unmasking-shares"]):
        assert secret.hex() not in path.read_text()


@pytest.mark.parametrize("kind", SENT_ONCE)
async def test_what_was_given_otherwise_is_not_given(kind: MessageKind) -> None:
    journal = MemoryJournal()
    journal.record(replace(vector_entry(STUDY), kind=kind))
    service = Service(view_of())
    with pytest.raises(PolicyError, match="once per study"):
        await play(service, device(journal=journal))
    assert kind not in service.received


class CrashedError(Exception):
    """The device crashed."""


@pytest.mark.parametrize("kind", SENT_ONCE)
async def test_a_crashed_device_gives_no_other_vector(kind: MessageKind, tmp_path: Path) -> None:
    path = tmp_path / "journal"

    def crash(name: str, _: bytes) -> None:
        if name == kind:
            raise CrashedError

    with pytest.raises(CrashedError):
        await play(Service(view_of(), before=crash), device(journal=FileJournal(path)))
    for number in (1, 2):  # the same round, and one that follows a failed one
        again = Service(view_of(number))
        with pytest.raises(PolicyError, match="once per study"):
            await play(again, device(journal=FileJournal(path)))
        assert again.received == {}


@pytest.mark.parametrize("last", ["key-shares", "share-commitments"])
async def test_a_device_that_recorded_no_vector_may_come_again(last: str, tmp_path: Path) -> None:
    """Return after any failure: the journal shows that no sum has a vector of the device."""

    def crash(name: str, _: bytes) -> None:
        if name == last:
            raise CrashedError

    def crash_reading(body: bytes) -> bytes:
        crash("share-commitments", body)
        return body

    journal, cheats = FileJournal(tmp_path / "journal"), {"share-commitments": crash_reading}
    with pytest.raises(CrashedError):
        await play(Service(view_of(), before=crash, cheats=cheats), device(journal=journal))
    assert await play(Service(view_of(2)), device(journal=journal)) == list(
        steps_in_sum("pairwise")
    )


def test_nothing_secret_is_shown() -> None:
    secret = Random(1).randbytes(32)
    who = StudyDevice(Identity.of(secret), Contribution({"word": 1}), MemoryJournal())
    assert secret.hex() not in repr(who)
    assert repr(secret) not in repr(who)
    assert "word" not in repr(who)
