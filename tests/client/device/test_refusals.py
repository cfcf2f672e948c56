"""Refusals of a device: of plans beyond its policy, and of a service that cheats."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from client.device.journal import MemoryJournal
from protocol.api.messages_outside_sums import Survivors
from protocol.device_policy.policy import MAX_SHARINGS, Policy, PolicyError
from secagg.errors import FaultyParticipantError, UnsafeRequestError
from secagg.messages import (
    Complaints,
    pack_signatures,
    pack_signed_inputs,
    unpack_signatures,
    unpack_signed_inputs,
)
from secagg.roster import Roster, ShareCommitments, roster_bytes, share_commitments_bytes
from secagg.shares import ReceivedShares, received_shares_bytes
from tests.client.cohort import (
    POLICY,
    REGISTRAR,
    SECOND_REGISTRAR,
    Service,
    device,
    enrolled,
    play,
    view_of,
)
from tests.support.policies import trusting_policy


@pytest.mark.parametrize(
    ("terms", "policy", "why"),
    [
        ({}, trusting_policy(min_cohort=7), "min_cohort"),
        ({"corrupt": 0.05}, POLICY, "min_corrupt"),
        ({}, Policy(min_cohort=5, registrar=REGISTRAR.public), "registrar"),
        ({"registrar": SECOND_REGISTRAR.public.hex()}, POLICY, "did not enrol this device"),
    ],
)
async def test_a_plan_beyond_the_policy_is_refused_before_anything_is_sent(
    terms: dict[str, str], policy: Policy, why: str
) -> None:
    service = Service(view_of(**terms))
    with pytest.raises(PolicyError, match=why):
        await play(service, device(), policy)
    assert service.received == {}


# Refusals of a service that cheats. Each cheat changes one answer.


def dropping(*slots: int) -> Callable[[bytes], bytes]:
    """Return a cheat that leaves slots out of the survivors."""

    def cheat(body: bytes) -> bytes:
        survivors = Survivors.model_validate_json(body).survivors
        left = tuple(slot for slot in survivors if slot not in slots)
        return Survivors(survivors=left).model_dump_json().encode()

    return cheat


def swapped_entries(body: bytes) -> bytes:
    first, second, *rest = Roster.unpack(body, has_registrar=False)
    return roster_bytes([second, first, *rest])


def repeated_entry(body: bytes) -> bytes:
    entries = Roster.unpack(body, has_registrar=False)
    return roster_bytes([*entries[:-1], entries[1]])


def borrowed_signatures(body: bytes) -> bytes:
    first, *others = Roster.unpack(body, has_registrar=False)
    return roster_bytes([first, *(replace(other, signature=first.signature) for other in others)])


def other_key_shares(body: bytes) -> bytes:
    commitments = dict(ShareCommitments.unpack(body))
    commitments[0] = type(commitments[0])(commitments[1].graph_nonce, commitments[0].shares_digest)
    return share_commitments_bytes(commitments)


def fewer_share_commitments(body: bytes) -> bytes:
    return share_commitments_bytes(
        {slot: each for slot, each in ShareCommitments.unpack(body).items() if slot < 6}
    )


def fewer_signatures(body: bytes) -> bytes:
    return pack_signatures({s: each for s, each in unpack_signatures(body).items() if s < 6})


def forged_signatures(body: bytes) -> bytes:
    signatures = unpack_signatures(body)
    return pack_signatures(dict.fromkeys(signatures, signatures[0]))


def a_strangers_share(body: bytes) -> bytes:
    shares = ReceivedShares.unpack(body)
    return received_shares_bytes({**shares, 0: next(iter(shares.values()))})


def a_false_complaint(_: bytes) -> bytes:
    return pack_signatures({1: bytes(64)})


def swapped_signatures(body: bytes) -> bytes:
    signed = unpack_signed_inputs(body)
    return pack_signed_inputs(dict(zip(signed, [*signed.values()][::-1], strict=True)))


def unreadable(_: bytes) -> bytes:
    return b"\xffx"


@pytest.mark.parametrize(
    ("answer", "cheat", "reason", "last_message"),
    [
        ("slot", unreadable, "malformed", "participants"),
        ("slot", lambda b: b.replace(b'"slot":0', b'"slot":-1'), "(slot)", "participants"),
        ("slot", lambda b: b.replace(b'"slot":0', b'"slot":9'), "(slot)", "participants"),
        ("slot", lambda b: b.replace(b'"cohort":0', b'"cohort":-1'), "(slot)", "participants"),
        ("slot", lambda b: b.replace(b'"p"', b'"' + b"p" * 65 + b'"'), "malformed", "participants"),
        ("slot", lambda b: b.replace(b'"slot":0', b'"slot":1'), "another than me", "participants"),
        ("roster", unreadable, "malformed", "participants"),
        ("roster", borrowed_signatures, "keys not its own", "participants"),
        ("roster", lambda body: body[: 7 * 160], "cohort of 7", "participants"),
        ("roster", lambda body: body + body[:160], "cohort of 10", "participants"),
        ("roster", lambda body: body * 1_000, "sent more than", "participants"),
        ("roster", swapped_entries, "another than me", "participants"),
        ("roster", repeated_entry, "same identity twice", "participants"),
        ("roster", lambda body: bytes(32) + body[32:], "malformed", "participants"),
        ("share-commitments", unreadable, "malformed", "complaints"),
        ("share-commitments", other_key_shares, "other shares than I", "complaints"),
        ("share-commitments", fewer_share_commitments, "quorum", "complaints"),
        ("survivors", unreadable, "malformed", "masked-input"),
        ("survivors", dropping(0), "left my vector out", "masked-input"),
        ("survivors", dropping(1, 2, 3), "quorum", "masked-input"),
        ("confirmations", unreadable, "malformed", "confirmation"),
        ("confirmations", fewer_signatures, "quorum", "confirmation"),
        ("confirmations", forged_signatures, "did not sign", "confirmation"),
        ("encrypted-shares", unreadable, "malformed", "key-shares"),
        ("encrypted-shares", a_strangers_share, "forwarded a share", "key-shares"),
        ("complaints", unreadable, "malformed", "complaints"),
        ("complaints", a_false_complaint, "showed a complaint", "complaints"),
        ("signed-inputs", unreadable, "malformed", "confirmation"),
        ("signed-inputs", lambda _: b"", "masked nothing under", "confirmation"),
        ("signed-inputs", swapped_signatures, "masked nothing under", "confirmation"),
    ],
)
async def test_a_device_leaves_a_service_that_cheats_and_sends_no_more(
    answer: str, cheat: Callable[[bytes], bytes], reason: str, last_message: str
) -> None:
    service = Service(view_of(), cheats={answer: cheat})
    with pytest.raises(UnsafeRequestError) as refused:
        await play(service)
    assert reason in str(refused.value)
    assert list(service.received)[-1] == last_message


async def test_a_slot_beyond_the_plan_is_not_even_recorded() -> None:
    huge = b'"cohort":' + b"9" * 400
    service = Service(view_of(), cheats={"slot": lambda body: body.replace(b'"cohort":0', huge)})
    journal = MemoryJournal()
    with pytest.raises(PolicyError, match=r"\(slot\)"):
        await play(service, device(journal=journal))
    assert journal.entries == ()


async def test_a_device_complains_about_shares_that_it_cannot_use() -> None:
    def spoiled(body: bytes) -> bytes:
        return body[:4] + bytes(130) + body[134:]

    service = Service(view_of(), cheats={"encrypted-shares": spoiled})
    with pytest.raises(FaultyParticipantError, match="did not sign"):  # it signs what it received
        await play(service)
    message = Complaints.unpack(service.received["complaints"])
    assert len(message.signatures) == 1


async def test_a_device_leaves_a_cohort_with_strangers_to_the_registrar() -> None:
    service = Service(view_of(registrar=REGISTRAR.public.hex()), SECOND_REGISTRAR)
    with pytest.raises(UnsafeRequestError, match="or not enrolled"):
        await play(service, enrolled(service, REGISTRAR))
    assert list(service.received) == ["participants"]


async def test_a_draw_of_holders_counts_even_if_they_are_refused() -> None:
    journal = MemoryJournal()
    for _ in range(MAX_SHARINGS):
        cheat = Service(view_of(), cheats={"roster": borrowed_signatures})
        with pytest.raises(UnsafeRequestError, match="not its own"):
            await play(cheat, device(journal=journal))
    service = Service(view_of())
    with pytest.raises(PolicyError, match="max_sharings"):
        await play(service, device(journal=journal))
    assert service.received == {}  # it does not join a cohort in which it could not share
