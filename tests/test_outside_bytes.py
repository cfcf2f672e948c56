"""Bytes and documents from outside are read, or refused with one of our errors.

Each decoder receives random bytes and, more often, valid ones that were damaged: cut off, made
longer, or changed in some bytes. It returns a value that has exactly these bytes, or raises
ValueError (or a kind of it) or a ProblemError.
"""

import ast
import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.api import messages
from protocol.api.messages_outside_sums import SignedReport, packed_report_bytes
from protocol.mechanisms.quality_goal import parse_goal
from protocol.mechanisms.registry import (
    REPORT_MECHANISMS,
    SUM_MECHANISMS,
    parse_plan,
    parse_question,
)
from protocol.reference_mechanisms.hsu2012_oracles.randomizers import BitFields
from protocol.study_state import EMPTY_STATE
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    SignedInput,
    UnmaskingShares,
    pack_signatures,
    pack_signed_inputs,
    unpack_signatures,
    unpack_signed_inputs,
)
from secagg.oneshot.committee import Committee, MemberEntry, OneShotSession, Operators
from secagg.oneshot.field import PackedRows
from secagg.oneshot.member_messages import ComplaintList, MemberSum, unpack_digests
from secagg.oneshot.message import Column, DeviceMessage, Layout
from secagg.oneshot.parameters import CommitteeParameters
from secagg.ring import Lane, Ring
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitment,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.shamir import SHARE_BYTES
from secagg.shares import (
    CIPHERTEXT_BYTES,
    EncryptedShare,
    ReceivedShares,
    SharePair,
    received_shares_bytes,
    share_pairs_bytes,
    unpack_share_pairs,
)
from server.api.answers.heavy_hitters import cursor_of_item, item_of_cursor
from server.api.dependencies import credential_digest
from server.db.database_url import parse_url
from server.errors import ProblemError
from tests.examples import fewer
from tests.protocol import mechanism_examples as summing
from tests.protocol import test_report_laws as report_laws

ROOT = Path(__file__).parents[1]
KEY = b"\x09" + bytes(30) + b"\1"  # of no low order
ENCRYPTED_SHARE = EncryptedShare(bytes(32), bytes(CIPHERTEXT_BYTES))
SHARE_PAIR = SharePair(ENCRYPTED_SHARE, ENCRYPTED_SHARE)
UNMASKING_SHARES = UnmaskingShares({1: bytes(SHARE_BYTES)}, {2: bytes(SHARE_BYTES)}, bytes(64))
ANSWERED = dict.fromkeys((2, 9), bytes(SHARE_BYTES))
RING = Ring((Lane(2**7, 9), Lane(251, 5), Lane(2**32, 3)))
FIELDS = BitFields((5, 7, 2), 3)
ENTRY = b"".join([KEY[:5] + bytes([n]) + KEY[6:] for n in range(3)]) + bytes(64)
URL = "postgresql://user:word@host:5432/name?option=1"
MEMBERS = tuple(
    MemberEntry(KEY[:5] + bytes([n]) + KEY[6:], KEY[:6] + bytes([n]) + KEY[7:], bytes(64))
    for n in range(3)
)
COMMITTEE = Committee(bytes(32), 1, CommitteeParameters(3, 0, 1, 2), MEMBERS)
ONE_SHOT = OneShotSession(COMMITTEE, Ring((Lane(521, 8),)), Operators(frozenset(), 0), 1)
ONE_SHOT_SUM_BYTES = ONE_SHOT.sharing.sum_bytes
PACKED_ROWS = PackedRows.of(65537, 7)
brief = fewer(0.4)


@dataclass(frozen=True)
class Decoder:
    """Reads bytes; `write` of the value must give the same bytes, if there is one form only."""

    valid: bytes
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes] | None = None


def _rows(body: bytes) -> np.ndarray[Any, Any]:
    return np.frombuffer(body, np.uint8).reshape(1, -1)


def _packed_row(body: bytes) -> Any:
    """Return the elements of one packed row; its size is checked before by each caller."""
    if len(body) != PACKED_ROWS.nbytes:
        raise ValueError("another size")
    elements, is_valid = PACKED_ROWS.unpack(_rows(body))
    if not is_valid.all():
        raise ValueError("not a packing")
    return elements


DECODERS = {
    "secagg.oneshot.committee.MemberEntry.unpack": Decoder(
        MEMBERS[0].pack(), MemberEntry.unpack, MemberEntry.pack
    ),
    "secagg.oneshot.committee.Committee.unpack": Decoder(
        COMMITTEE.pack(), Committee.unpack, Committee.pack
    ),
    "secagg.oneshot.message.DeviceMessage.unpack": Decoder(
        KEY + KEY + bytes(Layout.of(ONE_SHOT).message_bytes - 64),
        lambda body: DeviceMessage.unpack(body, ONE_SHOT),
        DeviceMessage.pack,
    ),
    "secagg.oneshot.message.Column.unpack": Decoder(
        bytes(range(Layout.of(ONE_SHOT).column_bytes(1))),
        lambda body: Column.unpack(body, Layout.of(ONE_SHOT), 1),
        lambda column: b"".join(
            (
                *(column.identity, column.enrolment, column.key, column.share),
                *(column.path, column.proof, column.signature),
            )
        ),
    ),
    "secagg.oneshot.member_messages.unpack_digests": Decoder(
        bytes(32) + KEY, unpack_digests, b"".join
    ),
    "secagg.oneshot.member_messages.ComplaintList.unpack": Decoder(
        bytes(32) + KEY + bytes(64), ComplaintList.unpack, ComplaintList.pack
    ),
    "secagg.oneshot.member_messages.MemberSum.unpack": Decoder(
        bytes(ONE_SHOT_SUM_BYTES + 64),
        lambda body: MemberSum.unpack(body, ONE_SHOT),
        MemberSum.pack,
    ),
    "secagg.oneshot.sharing.Sharing.unpack_sum": Decoder(
        bytes(ONE_SHOT_SUM_BYTES),
        ONE_SHOT.sharing.unpack_sum,
        lambda sums: ONE_SHOT.sharing.add_columns(sums[np.newaxis]),
    ),
    "secagg.oneshot.field.PackedRows.unpack": Decoder(
        bytes(PACKED_ROWS.nbytes), _packed_row, lambda row: PACKED_ROWS.pack(row).tobytes()
    ),
    "secagg.shares.EncryptedShare.unpack": Decoder(
        ENCRYPTED_SHARE.pack(), EncryptedShare.unpack, EncryptedShare.pack
    ),
    "secagg.shares.SharePair.unpack": Decoder(SHARE_PAIR.pack(), SharePair.unpack, SharePair.pack),
    "secagg.shares.unpack_share_pairs": Decoder(
        SHARE_PAIR.pack() * 2, unpack_share_pairs, share_pairs_bytes
    ),
    "secagg.shares.ReceivedShares.unpack": Decoder(
        received_shares_bytes({1: SHARE_PAIR, 5: SHARE_PAIR}),
        ReceivedShares.unpack,
        ReceivedShares.pack,
    ),
    "secagg.messages.KeyShares.unpack": Decoder(
        KeyShares(bytes(32), bytes(32), bytes(32), (SHARE_PAIR,) * 2, bytes(64)).pack(),
        KeyShares.unpack,
        KeyShares.pack,
    ),
    "secagg.messages.Complaints.unpack": Decoder(
        Complaints({1: bytes(64), 3: bytes(64)}, bytes(64)).pack(),
        Complaints.unpack,
        Complaints.pack,
    ),
    "secagg.messages.Answers.unpack": Decoder(
        Answers(ANSWERED, ANSWERED, bytes(64)).pack(), Answers.unpack, Answers.pack
    ),
    "secagg.messages.MaskedInput.unpack": Decoder(
        MaskedInput(bytes(40), bytes(64)).pack(), MaskedInput.unpack, MaskedInput.pack
    ),
    "secagg.messages.SignedInput.unpack": Decoder(bytes(96), SignedInput.unpack, b"".join),
    "secagg.messages.unpack_signed_inputs": Decoder(
        pack_signed_inputs(dict.fromkeys((1, 3), SignedInput(bytes(32), bytes(64)))),
        unpack_signed_inputs,
        pack_signed_inputs,
    ),
    "secagg.messages.UnmaskingShares.unpack": Decoder(
        UNMASKING_SHARES.pack(), UnmaskingShares.unpack, UnmaskingShares.pack
    ),
    "secagg.roster.RosterEntry.unpack": Decoder(ENTRY, RosterEntry.unpack, RosterEntry.pack),
    "secagg.ring.Lane.unpack": Decoder(
        bytes(RING.lanes[1].nbytes), RING.lanes[1].unpack, RING.lanes[1].pack
    ),
    "secagg.ring.Ring.unpack": Decoder(RING.pack(RING.zero()), RING.unpack, RING.pack),
    "secagg.roster.Roster.unpack": Decoder(
        ENTRY * 2, lambda body: Roster.unpack(body, has_registrar=False), roster_bytes
    ),
    "secagg.roster.ShareCommitments.unpack": Decoder(
        share_commitments_bytes(dict.fromkeys((1, 7), ShareCommitment(bytes(32), bytes(32)))),
        ShareCommitments.unpack,
        share_commitments_bytes,
    ),
    "secagg.messages.unpack_signatures": Decoder(
        pack_signatures({1: bytes(64), 3: bytes(64)}), unpack_signatures, pack_signatures
    ),
    "protocol.api.messages_outside_sums.SignedReport.unpack": Decoder(
        bytes(packed_report_bytes(7, True)),
        lambda body: SignedReport.unpack(KEY, body, 7, has_registrar=True),
        SignedReport.pack,
    ),
    "protocol.reference_mechanisms.hsu2012_oracles.randomizers.BitFields.unpack": Decoder(
        bytes(FIELDS.nbytes),
        lambda body: FIELDS.unpack(_rows(body)),
        lambda values: FIELDS.pack(values).tobytes(),
    ),
    "server.db.database_url.parse_url": Decoder(
        URL.encode(), lambda body: parse_url(body.decode(errors="replace"))
    ),
    "protocol.mechanisms.quality_goal.parse_goal": Decoder(
        b"0.95,0.9", lambda body: parse_goal(body.decode(errors="replace"))
    ),
}
DOCUMENTS = {  # tested below
    "protocol.mechanisms.registry.parse_question",
    "protocol.mechanisms.registry.parse_plan",
}
DATABASE_DECODERS = {  # of the service's own data: a fault in it stops a study
    "protocol.study_state.StudyState.unpack",
    "protocol.mechanisms.iblt.threshold_control.ThresholdController.unpack",
}


def decoders() -> Iterator[str]:
    """Yield the names of functions called unpack or parse, in modules that read messages."""
    for part in ("secagg", "protocol", "server"):
        for path in sorted((ROOT / part).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            tree = ast.parse(path.read_text())
            inside = [(None, tree)] + [(n, n) for n in tree.body if isinstance(n, ast.ClassDef)]
            for owner, node in inside:
                for child in node.body:
                    is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                    if is_function and child.name.startswith(("unpack", "parse")):
                        names = [module.removesuffix(".__init__"), owner and owner.name, child.name]
                        yield ".".join(name for name in names if name)


def test_every_decoder_is_here() -> None:
    # A new decoder needs a row in a table above, with valid bytes.
    assert set(decoders()) == DECODERS.keys() | DOCUMENTS | DATABASE_DECODERS


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Return `valid` cut off, longer or with other bytes, or random bytes."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.binary(max_size=len(valid) + 8))
    body = bytearray(valid)
    for _ in range(draw(st.integers(0, 4))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.sampled_from([0, 0, 0, 1, 2, len(body) // 2]))
    return bytes(body[: len(body) - cut]) + draw(st.sampled_from([b"", b"", b"\0", bytes(8)]))


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
@brief
def test_damaged_bytes_are_refused_or_are_those_of_the_value(
    name: str, data: st.DataObject
) -> None:
    decoder = DECODERS[name]
    body = data.draw(damaged(decoder.valid))
    try:
        value = decoder.read(body)
    except ValueError:
        return
    if decoder.write is not None:
        assert bytes(decoder.write(value)) == body


@pytest.mark.parametrize("name", DECODERS)
def test_the_bytes_are_valid_before_they_are_damaged(name: str) -> None:
    DECODERS[name].read(DECODERS[name].valid)


# Documents

JUNK: list[Any] = [
    None, True, -1, 0, 1, 3, 2**31, 2**63, 10**30, -0.5, 1e308, "", "a", "é\0\ud800", "1e999",
    [], [1], {}, {"kind": "utf8"}, float("nan"), float("inf"), "sampled", "tracked",
]  # fmt: skip


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to each value in a document."""
    inside = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in inside:
        yield (*at, key)
        if isinstance(value, dict | list):
            yield from places(value, (*at, key))


def first_of_each(examples: dict[str, Any]) -> dict[str, Any]:
    """Return one example of each mechanism: finding the noise of a plan takes seconds."""
    return {example.question.mechanism: example for example in reversed(examples.values())}


SUMS, REPORTS = first_of_each(summing.EXAMPLES), first_of_each(report_laws.EXAMPLES)


@cache
def plans() -> list[Any]:
    """Return a plan of each mechanism, in JSON."""
    every = [*SUMS.values(), *REPORTS.values()]
    return [json.loads(example.plan().model_dump_json()) for example in every]


@st.composite
def altered(draw: st.DrawFn, documents: list[Any]) -> Any:
    """Return one of `documents` with a junk value, or without a field."""
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(1, 2))):
        *way, last = draw(st.sampled_from(list(places(document))))
        inside = document
        for key in way:
            inside = inside[key]
        if isinstance(inside, dict) and draw(st.integers(0, 4)) == 0:
            del inside[last]
        else:
            inside[last] = deepcopy(
                draw(st.sampled_from(JUNK))
            )  # otherwise junk may contain itself
        if not document:
            break
    return document


@given(data=st.data())
@fewer(0.6)
def test_an_altered_question_is_refused_or_restored(data: st.DataObject) -> None:
    document = data.draw(altered([plan["question"] for plan in plans()]))
    try:
        question = parse_question(document)
    except ValueError:
        return
    assert parse_question(json.loads(question.model_dump_json())) == question


@given(data=st.data())
@fewer(0.6)
def test_an_altered_plan_is_refused_or_restored(data: st.DataObject) -> None:
    document = data.draw(altered(plans()))
    try:
        plan = parse_plan(document)
    except ValueError:
        return
    assert parse_plan(json.loads(plan.model_dump_json())) == plan


# Bytes that only a plan makes readable


@pytest.mark.parametrize("name", SUMS)
@given(data=st.data())
@fewer(0.12)
def test_any_sum_has_a_fault_or_can_be_decoded(name: str, data: st.DataObject) -> None:
    example = SUMS[name]
    mechanism, plan = SUM_MECHANISMS[name], example.plan()
    ring = mechanism.ring(plan)
    noise = np.random.default_rng(data.draw(st.integers(0, 2**32))).bytes(ring.nbytes)
    body = noise if data.draw(st.booleans()) else data.draw(damaged(bytes(ring.nbytes)))
    try:
        total = ring.unpack(body)
    except ValueError:
        return
    if mechanism.fault(plan, total, 7) is None:
        mechanism.decode(plan, total, 7, example.state)


@pytest.mark.parametrize("name", REPORTS)
@given(data=st.data())
@fewer(0.12)
def test_any_report_is_refused_or_can_be_read(name: str, data: st.DataObject) -> None:
    example = REPORTS[name]
    mechanism, plan = REPORT_MECHANISMS[name], example.plan()
    valid = example.encode(plan, [{}]).tobytes()
    noise = random.Random(data.draw(st.integers(0, 2**32))).randbytes(len(valid))
    body = noise if data.draw(st.booleans()) else data.draw(damaged(valid))
    try:
        mechanism.check(plan, _rows(body))
    except ValueError:
        return
    mechanism.decode(plan, mechanism.aggregate(plan, _rows(body)), EMPTY_STATE)


# Values in addresses and headers

HITTER = messages.HeavyHitter(item="é<b>", estimate=3.5, standard_error=0, low=0, high=0)


@given(st.one_of(damaged(cursor_of_item(HITTER).encode()), st.text(max_size=60).map(str.encode)))
def test_any_cursor_is_refused_or_restored(body: bytes) -> None:
    try:
        cursor = item_of_cursor(body.decode(errors="replace"))
    except ProblemError:
        return
    assert item_of_cursor(cursor_of_item(cursor)) == cursor


@given(st.one_of(damaged(b"Bearer " + b"A" * 43), st.text(max_size=60).map(str.encode)))
async def test_any_ticket_is_refused_or_hashed(header: bytes) -> None:
    try:
        assert len(await credential_digest(header.decode(errors="replace"))) == 32
    except ProblemError:
        return
