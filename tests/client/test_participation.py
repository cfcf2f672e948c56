"""Devices take part in a real round, through ASGI; and in one of a service that cheats."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random, SystemRandom

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from client.encoding import Contribution
from client.fleet import Connect
from client.journal import FileJournal, Given, Journal, MemoryJournal, What
from client.participation import Device, Participation, Step, steps
from client.policy import Policy, PolicyError
from client.transport import Transport
from protocol.chance import seeded
from protocol.domain import Utf8
from protocol.mechanisms.triehh import TrieHhQuestion
from protocol.messages import (
    Join,
    RoundView,
    StudyView,
    Survivors,
    pack_confirmations,
    pack_parcels,
    pack_roster,
    pack_sharers,
    unpack_confirmations,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from secagg.errors import RefusedError
from secagg.keys import Identity
from tests.client.cohort import STUDY, N, Service, view_of

POLICY = Policy(min_cohort=5)
TRUSTING = Policy(min_cohort=5, modes=frozenset({"semi-honest"}))
REGISTRAR = Identity.of(bytes(range(32)))
OTHER = Identity.of(bytes(range(1, 33)))


async def open_round(http: httpx.AsyncClient, study: StudyView) -> RoundView:
    answer = await http.get(f"/studies/{study.id}/rounds/open", params={"wait": 5})
    return RoundView.model_validate_json(answer.content)


def device(index: int = 0, journal: Journal | None = None, enrolment: bytes = b"") -> Device:
    identity = Identity.of(index.to_bytes(32, "big"))
    given = Contribution({"word": 1}, 0, 0)
    return Device(identity, given, journal or MemoryJournal(), enrolment)


def participation(
    http: httpx.AsyncClient, view: RoundView, who: Device | None = None, policy: Policy = POLICY
) -> Participation:
    return Participation(
        Transport(http, patience=5),
        view,
        who or device(),
        policy=policy,
        secrets=SystemRandom(),
        chance=seeded(np.random.default_rng(1)),
    )


async def play(service: Service, who: Device | None = None, policy: Policy = POLICY) -> list[Step]:
    """Let one device take part in a round of `service`; return its steps."""
    async with service.client() as http:
        part = participation(http, service.view, who, policy)
        return [step async for step in part.steps(STUDY)]


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
async def test_a_device_takes_its_steps_one_by_one(
    connect: Connect, study: StudyView, trusting: StudyView, mode: str
) -> None:
    asked, policy = (study, POLICY) if mode == "active" else (trusting, TRUSTING)

    async def take_part(index: int) -> list[Step]:
        async with connect() as http:
            view = await open_round(http, asked)
            part = participation(http, view, device(index), policy)
            return [step async for step in part.steps(asked.id)]

    taken = await asyncio.gather(*(take_part(index) for index in range(10)))
    assert taken == [list(steps(asked.terms.mode))] * 10
    assert (Step.CONFIRMED in taken[0]) is (mode == "active")


@pytest.mark.parametrize("terms", [{}, {"mode": "semi-honest"}])
async def test_the_sum_has_the_vector_of_the_device(terms: dict[str, str]) -> None:
    service = Service(view_of(**terms), lost=[4, 7])
    async with service.client() as http:
        part = participation(http, service.view, policy=TRUSTING if terms else POLICY)
        taken = [step async for step in part.steps(STUDY)]
    assert ("confirmation" in service.heard) is (Step.CONFIRMED in taken) is (not terms)
    expected = service.ring.zero()
    for slot in set(range(1, N)) - {4, 7}:
        service.ring.add(expected, service.vector(slot))
    assert part.vector is not None
    service.ring.add(expected, part.vector)
    assert service.ring.pack(service.total()) == service.ring.pack(expected)


async def test_where_steps_take_long_the_event_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("client.participation.MUCH", 0)
    service = Service(view_of(registrar=REGISTRAR.public.hex()), REGISTRAR)
    assert await play(service, enrolled(service, REGISTRAR)) == list(steps("active"))
    service.total()


async def test_whoever_drives_a_device_may_stop_after_any_step(
    connect: Connect, study: StudyView
) -> None:
    async with connect() as http:
        part = participation(http, await open_round(http, study))
        taking = part.steps(study.id)
        assert await anext(taking) is Step.JOINED
        await taking.aclose()
        assert part.seat is not None
        assert part.vector is None


async def test_each_round_has_keys_and_a_ticket_of_its_own() -> None:
    said, tickets = [], set[str]()

    async def note(request: httpx.Request) -> None:
        tickets.add(request.headers["authorization"])

    for number in (1, 2):
        service = Service(view_of(number))
        async with service.client() as http:
            http.event_hooks = {"request": [note]}
            taking = participation(http, service.view).steps(STUDY)
            await anext(taking)
            await taking.aclose()
        said.append(Join.model_validate_json(service.heard["participants"]))
    assert {len(ticket) for ticket in tickets} == {len("Bearer ") + 43}
    assert len(tickets) == 2
    assert len({key for one in said for key in (one.mask_key, one.seal_key)}) == 4
    assert said[0].identity == said[1].identity


# Studies that take a device again in each round.

AGAIN = TrieHhQuestion(
    threshold=5,
    contribution=1,
    domain=Utf8(max_bytes=6),
    words=2**16,
    stride=2,
    epsilon=1,
    delta=1e-6,
    mode="noise",
)


INVITING = AGAIN.model_copy(update={"mode": "both", "probability": 0.25, "invited": 0.5})


@pytest.mark.parametrize("fell", [0, 2**64 - 1])
async def test_a_device_joins_by_a_coin_that_it_flips_once(tmp_path: Path, fell: int) -> None:
    """It polls a hundred times, restarted each time, and where it stays away it says nothing."""
    path, coins = tmp_path / "journal", list[int]()

    def chance(count: int) -> NDArray[np.uint64]:
        coins.append(count)
        return np.full(count, fell, np.uint64)

    service = Service(view_of(question=INVITING))
    for _ in range(100):
        async with service.client() as http:
            part = Participation(
                Transport(http, patience=5),
                service.view,
                device(journal=FileJournal(path)),
                policy=replace(POLICY, max_epsilon=100),
                secrets=SystemRandom(),
                chance=chance,
            )
            taking = part.steps(STUDY)
            taken = [await anext(taking, None)]  # and then it vanishes
            await taking.aclose()
    assert coins == [1]
    assert taken == ([Step.JOINED] if fell == 0 else [None])
    assert list(service.heard) == (["participants"] if fell == 0 else [])
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("joins", [False, True])
async def test_whose_coin_fell_for_a_round_is_not_asked_again_by_a_plan_without_coins(
    joins: bool,
) -> None:
    """Tails, it would else join and vote with odds of p: with odds of 2 p - p v in all."""
    journal = MemoryJournal()
    journal.invited(STUDY, 1, "5a" * 32, lambda: joins)
    policy = replace(POLICY, max_epsilon=100)
    everybody = Service(view_of(question=INVITING.model_copy(update={"invited": 1.0})))
    assert await play(everybody, device(journal=journal), policy) == []
    assert not everybody.heard
    later = Service(view_of(2, question=INVITING.model_copy(update={"invited": 1.0})))
    assert await play(later, device(journal=journal), policy) == list(steps("active"))


async def test_a_device_that_its_coin_invites_takes_all_steps() -> None:
    service = Service(view_of(question=INVITING))
    journal = MemoryJournal()
    journal.invited(STUDY, 1, service.plan.digest().hex(), lambda: True)
    policy = replace(POLICY, max_epsilon=100)
    assert await play(service, device(journal=journal), policy) == list(steps("active"))
    assert journal.rounds() == {STUDY: {1}}


async def test_a_device_adds_the_share_of_noise_of_the_cohort_that_came_together() -> None:
    """Of nine that came where twenty might have, with nobody's help: (1 - d - c) n share it."""
    service = Service(view_of(question=AGAIN, cohort_size=20))
    plan = service.plan
    async with service.client() as http:
        part = participation(http, service.view)
        async for _ in part.steps(STUDY):
            pass
    assert part.vector is not None
    noise = plan.votes(part.vector[0])  # and one vote
    share = plan.release.variance / (0.6 * N)
    error = share * ((2 + 1 / share) / plan.cells) ** 0.5
    assert abs(noise.var() - share) < 4.5 * error  # fails with odds of 1e-5 under another seed
    assert error < 0.01 * share
    expected = service.ring.zero()
    for slot in range(1, N):
        service.ring.add(expected, service.vector(slot))
    service.ring.add(expected, part.vector)
    assert service.ring.pack(service.total()) == service.ring.pack(expected)


async def test_a_device_that_is_asked_again_gives_once_a_round(tmp_path: Path) -> None:
    who = device(journal=FileJournal(tmp_path / "journal"))
    for number in (1, 2):
        service = Service(view_of(number, AGAIN))
        assert await play(service, who) == list(steps("active"))
        again = Service(view_of(number, AGAIN))
        restarted = device(journal=FileJournal(tmp_path / "journal"))
        with pytest.raises(PolicyError, match="once per round"):
            await play(again, restarted)
        assert again.heard == {}
    with pytest.raises(PolicyError, match="max_rounds"):
        await play(Service(view_of(3, AGAIN)), who, replace(POLICY, max_rounds=2))
    assert who.journal.rounds() == {STUDY: {1, 2}}


async def test_of_two_processes_that_are_asked_again_one_gives_a_round_its_vector(
    tmp_path: Path,
) -> None:
    """The other asked its journal before the first gave, so only the record stops it."""
    first, late = Service(view_of(2, AGAIN)), Service(view_of(2, AGAIN))
    one, two = (device(journal=FileJournal(tmp_path / "journal")) for _ in range(2))
    async with late.client() as http:
        taking = participation(http, late.view, two).steps(STUDY)
        assert [await anext(taking), await anext(taking)] == [Step.JOINED, Step.SHARED]
        await play(first, one)
        with pytest.raises(PolicyError, match="another vector in round 2"):
            await anext(taking)
    assert "vector" not in late.heard


# What a device refuses before it says a word.


def enrolled(service: Service, registrar: Identity) -> Device:
    assert service.plan.registry is not None
    enrolment = registrar.sign(service.plan.registry.enrolment(device().identity.public))
    return device(enrolment=enrolment)


@pytest.mark.parametrize(
    ("terms", "policy", "why"),
    [
        ({}, Policy(min_cohort=7), "min_cohort"),
        ({"mode": "semi-honest"}, POLICY, "modes"),
        ({}, Policy(min_cohort=5, registrar=REGISTRAR.public), "registrar"),
        ({"registrar": OTHER.public.hex()}, Policy(min_cohort=5), "did not enrol me"),
    ],
)
async def test_a_plan_beyond_the_policy_is_refused_before_anything_is_sent(
    terms: dict[str, str], policy: Policy, why: str
) -> None:
    service = Service(view_of(**terms))
    with pytest.raises(PolicyError, match=why):
        await play(service, device(), policy)
    assert service.heard == {}


async def test_an_enrolment_is_shown_where_the_study_has_a_registrar_and_only_there() -> None:
    service = Service(view_of(registrar=REGISTRAR.public.hex()), REGISTRAR)
    who = enrolled(service, REGISTRAR)
    await play(service, who)
    assert Join.model_validate_json(service.heard["participants"]).enrolment == who.enrolment.hex()
    plain = Service(view_of())
    await play(plain, device(enrolment=who.enrolment))
    assert Join.model_validate_json(plain.heard["participants"]).enrolment is None


# What a device refuses of a service that cheats. Each cheat changes one answer.


def dropping(*slots: int) -> Callable[[bytes], bytes]:
    """Return a cheat that leaves slots out of the survivors."""

    def cheat(body: bytes) -> bytes:
        told = Survivors.model_validate_json(body).survivors
        left = tuple(slot for slot in told if slot not in slots)
        return Survivors(survivors=left).model_dump_json().encode()

    return cheat


def swapped_entries(body: bytes) -> bytes:
    first, second, *rest = unpack_roster(body, has_registrar=False)
    return pack_roster([second, first, *rest])


def repeated_entry(body: bytes) -> bytes:
    entries = unpack_roster(body, has_registrar=False)
    return pack_roster([*entries[:-1], entries[1]])


def borrowed_signatures(body: bytes) -> bytes:
    first, *others = unpack_roster(body, has_registrar=False)
    return pack_roster([first, *(replace(other, signature=first.signature) for other in others)])


def another_deal(body: bytes) -> bytes:
    sharers = dict(unpack_sharers(body))
    sharers[0] = type(sharers[0])(sharers[1].contribution, sharers[0].digest)
    return pack_sharers(sharers)


def fewer_sharers(body: bytes) -> bytes:
    return pack_sharers({slot: one for slot, one in unpack_sharers(body).items() if slot < 6})


def fewer_signatures(body: bytes) -> bytes:
    return pack_confirmations({s: one for s, one in unpack_confirmations(body).items() if s < 6})


def forged_signatures(body: bytes) -> bytes:
    signatures = unpack_confirmations(body)
    return pack_confirmations(dict.fromkeys(signatures, signatures[0]))


def a_strangers_parcel(body: bytes) -> bytes:
    parcels = unpack_parcels(body)
    return pack_parcels({**parcels, 0: next(iter(parcels.values()))})


def unreadable(_: bytes) -> bytes:
    return b"\xffx"


@pytest.mark.parametrize(
    ("answer", "cheat", "why", "said"),
    [
        ("seat", unreadable, "cannot be read", "participants"),
        ("seat", lambda b: b.replace(b'"slot":0', b'"slot":-1'), "(seat)", "participants"),
        ("seat", lambda b: b.replace(b'"slot":0', b'"slot":9'), "(seat)", "participants"),
        ("seat", lambda b: b.replace(b'"cohort":0', b'"cohort":-1'), "(seat)", "participants"),
        ("seat", lambda b: b.replace(b'"slot":0', b'"slot":1'), "another than me", "participants"),
        ("roster", unreadable, "cannot be read", "participants"),
        ("roster", borrowed_signatures, "keys not its own", "participants"),
        ("roster", lambda body: body[: 7 * 160], "cohort of 7", "participants"),
        ("roster", lambda body: body + body[:160], "cohort of 10", "participants"),
        ("roster", swapped_entries, "another than me", "participants"),
        ("roster", repeated_entry, "same identity twice", "participants"),
        ("roster", lambda body: bytes(32) + body[32:], "cannot be read", "participants"),
        ("sharers", unreadable, "cannot be read", "shares"),
        ("sharers", another_deal, "other shares than I dealt", "shares"),
        ("sharers", fewer_sharers, "quorum", "shares"),
        ("survivors", unreadable, "cannot be read", "vector"),
        ("survivors", dropping(0), "left my vector out", "vector"),
        ("survivors", dropping(1, 2, 3), "quorum", "vector"),
        ("confirmations", unreadable, "cannot be read", "confirmation"),
        ("confirmations", fewer_signatures, "quorum", "confirmation"),
        ("confirmations", forged_signatures, "did not sign", "confirmation"),
        ("parcels", unreadable, "cannot be read", "confirmation"),
        ("parcels", a_strangers_parcel, "dealt none", "confirmation"),
    ],
)
async def test_a_device_leaves_a_service_that_cheats_and_says_no_more(
    answer: str, cheat: Callable[[bytes], bytes], why: str, said: str
) -> None:
    service = Service(view_of(), cheats={answer: cheat})
    with pytest.raises(RefusedError) as refused:
        await play(service)
    assert why in str(refused.value)
    assert list(service.heard)[-1] == said


async def test_a_device_leaves_a_cohort_with_strangers_to_the_registrar() -> None:
    service = Service(view_of(registrar=REGISTRAR.public.hex()), OTHER)
    with pytest.raises(RefusedError, match="or not enrolled"):
        await play(service, enrolled(service, REGISTRAR))
    assert list(service.heard) == ["participants"]


# What was given is in the journal before it leaves.

ONCE = [What.VECTOR, What.CONFIRMATION, What.REVEAL]


async def test_what_is_sent_is_in_the_journal_before_it_leaves(tmp_path: Path) -> None:
    path, recorded = tmp_path / "journal", list[str]()

    def look(what: str, body: bytes) -> None:
        if what in set(ONCE):
            assert sha256(body).hexdigest() in path.read_text()
            recorded.append(what)

    service = Service(view_of(), before=look)
    await play(service, device(journal=FileJournal(path)))
    assert recorded == ONCE
    for secret in (service.heard["vector"], service.heard["reveal"]):
        assert secret.hex() not in path.read_text()


@pytest.mark.parametrize("what", ONCE)
async def test_what_was_given_otherwise_is_not_given(what: What) -> None:
    journal = MemoryJournal()
    journal.record(Given.of(STUDY, 1, 0, what, b"the other half"))
    service = Service(view_of())
    with pytest.raises(PolicyError, match="once per study"):
        await play(service, device(journal=journal))
    assert what not in service.heard


class CrashedError(Exception):
    """The device ended here."""


@pytest.mark.parametrize("what", ONCE)
async def test_a_device_that_crashed_before_it_sent_gives_no_other_vector(
    what: What, tmp_path: Path
) -> None:
    path = tmp_path / "journal"

    def crash(saying: str, _: bytes) -> None:
        if saying == what:
            raise CrashedError

    with pytest.raises(CrashedError):
        await play(Service(view_of(), before=crash), device(journal=FileJournal(path)))
    for number in (1, 2):  # the same round, and one that follows a failed one
        again = Service(view_of(number))
        with pytest.raises(PolicyError, match="once per study"):
            await play(again, device(journal=FileJournal(path)))
        assert again.heard == {}


async def test_a_device_that_crashed_before_it_masked_may_come_again(tmp_path: Path) -> None:
    def crash(saying: str, _: bytes) -> None:
        if saying == "shares":
            raise CrashedError

    journal = FileJournal(tmp_path / "journal")
    with pytest.raises(CrashedError):
        await play(Service(view_of(), before=crash), device(journal=journal))
    assert await play(Service(view_of(2)), device(journal=journal)) == list(steps("active"))


async def test_of_two_processes_of_one_device_one_gives_its_vector(tmp_path: Path) -> None:
    journals = [FileJournal(tmp_path / "journal") for _ in range(2)]
    services = [Service(view_of(number)) for number in (1, 2)]
    outcomes = await asyncio.gather(
        *(
            play(service, device(journal=journal))
            for service, journal in zip(services, journals, strict=True)
        ),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["PolicyError", "list"]
    assert sum("vector" in service.heard for service in services) == 1


def test_nothing_secret_is_shown() -> None:
    secret = Random(1).randbytes(32)
    who = Device(Identity.of(secret), Contribution({"word": 1}, 0, 0), MemoryJournal())
    assert secret.hex() not in repr(who)
    assert repr(secret) not in repr(who)
    assert "word" not in repr(who)


async def test_a_draw_of_holders_counts_even_if_they_are_refused() -> None:
    journal, policy = MemoryJournal(), replace(POLICY, max_sharings=2)
    for _ in range(2):
        cheat = Service(view_of(), cheats={"roster": borrowed_signatures})
        with pytest.raises(RefusedError, match="not its own"):
            await play(cheat, device(journal=journal), policy)
    with pytest.raises(PolicyError, match="max_sharings"):
        await play(Service(view_of()), device(journal=journal), policy)


async def test_keys_are_shared_so_many_times_and_then_no_more() -> None:
    journal, policy = MemoryJournal(), replace(POLICY, max_sharings=2)
    for number in range(2):
        journal.record(Given.of(STUDY, 1, number + 1, What.SHARES, b"earlier"), most=2)
    service = Service(view_of())
    with pytest.raises(PolicyError, match="max_sharings"):
        await play(service, device(journal=journal), policy)
    assert list(service.heard) == ["participants"]
