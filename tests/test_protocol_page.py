"""The facts of docs/protocol.md agree with the code: labels, statements, sizes and layouts."""

import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from protocol.api.messages_outside_sums import SignedReport, packed_report_bytes
from protocol.committee_terms import CommitteeTerms
from protocol.domains.hashed import Hashed
from protocol.mechanisms.tracked.counters import CounterGroup, check_lanes
from protocol.mechanisms.tracked.mechanism import Tracked
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.mechanisms.tracked.split_counters import SplitGroup
from protocol.numerics.finite_fields import widest_prime
from protocol.question_and_plan import Terms
from secagg.keys import SIGNATURE_BYTES, PublicKeys
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    SignedInput,
    UnmaskingShares,
    pack_signatures,
    pack_signed_inputs,
)
from secagg.ring import Lane
from secagg.roster import RosterEntry, ShareCommitment, roster_bytes, share_commitments_bytes
from secagg.seating import CohortSeating
from secagg.shares import ENCRYPTED_SHARE_BYTES, SHARE_PAIR_BYTES, SharePair, received_shares_bytes
from tests.protocol.mechanism_examples import OPERATORS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
PROSE = " ".join(PAGE.split())
FOLDERS = "secagg", "protocol", "protocol/api", "protocol/domains"
SOURCES = [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.py")]
CODE = "".join(path.read_text() for path in SOURCES)
ENTRY = RosterEntry(
    b"\x09" * 31 + b"\1", PublicKeys(b"\x09" + bytes(31), b"\x0a" + bytes(31)), bytes(64)
)


def labels(text: str) -> set[str]:
    """Return the quoted strings that begin with blindtally."""
    return set(re.findall(r'"(blindtally [a-z0-9 ]+)\\0"', text))


def row(first: str) -> list[str]:
    """Return the cells of the one row of a table that begins with `first`."""
    (line,) = re.findall(rf"^\| {re.escape(first)} \|.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in str(line).strip("|").split("|")]


def test_every_label_of_the_page_is_in_the_code_and_the_other_way_round() -> None:
    purposes = set(re.findall(r'"blindtally v1 ([a-z ]+)\\0"', PAGE))
    plain = {label for label in labels(PAGE) if not label.startswith("blindtally v1 ")}
    assert plain == labels(CODE)
    assert len(plain) == 11
    assert purposes == set(re.findall(r'Purpose\(self\.label, "([a-z ]+)"', CODE))


def test_every_statement_of_the_page_is_signed_somewhere_and_the_other_way_round() -> None:
    table = PAGE[PAGE.index("| statement | L |") : PAGE.index("The service sends a plan")]
    named = set(re.findall(r"^\| `([a-z ]+)`", table, re.MULTILINE))
    assert named == set(re.findall(r'statement(?:_of_digest)?\(\s*"([a-z ]+)"', CODE))
    assert '"blindtally v1 "` ‖ name ‖ `"\\0"` ‖ L ‖ u32(slot) ‖ H(payload)' in PAGE


def pairs(count: int) -> dict[int, SharePair]:
    return dict.fromkeys(range(count), SharePair.unpack(bytes(SHARE_PAIR_BYTES)))


def signatures(count: int) -> bytes:
    return pack_signatures(dict.fromkeys(range(count), bytes(64)))


def commitments(count: int) -> dict[int, ShareCommitment]:
    return dict.fromkeys(range(count), ShareCommitment(bytes(32), bytes(32)))


SIGNED_INPUT = SignedInput(bytes(32), bytes(64))
SIZES: dict[str, tuple[str, Callable[[int], int]]] = {
    "key-shares": ("160 + 130 k", KeyShares.nbytes),
    "complaints (sent)": ("64 + 68 k′", Complaints.nbytes),
    "answers": ("64 + 70 k′", Answers.nbytes),
    "masked-input": ("64 + Σ ⌈length · b / 8⌉", lambda _: SIGNATURE_BYTES),
    "confirmation": ("64", lambda _: SIGNATURE_BYTES),
    "unmasking-shares": ("64 + 38 k″", UnmaskingShares.nbytes),
    "encrypted-shares": ("134 k″", lambda count: len(received_shares_bytes(pairs(count)))),
    "complaints (received)": ("68 k′", lambda count: len(signatures(count))),
    "share-commitments": ("68 n′", lambda n: len(share_commitments_bytes(commitments(n)))),
    "confirmations": ("68 n″", lambda count: len(signatures(count))),
    "signed-inputs": (
        "100 k″",
        lambda count: len(pack_signed_inputs(dict.fromkeys(range(count), SIGNED_INPUT))),
    ),
}


@pytest.mark.parametrize("body", SIZES)
def test_the_bodies_have_the_sizes_of_the_page(body: str) -> None:
    formula, size = SIZES[body]
    assert row(body)[-1] == formula
    numbers = re.match(r"(?:(\d+)(?: \+ |$))?(?:(\d+) [kn])?", formula)
    assert numbers
    constant, each = int(numbers[1] or 0), int(numbers[2] or 0)
    for count in (1, 9, 116):
        assert size(count) == constant + each * count


def test_a_roster_has_the_size_of_the_page() -> None:
    sizes = "160 n, or 224 n with a registrar, or 72 + 224 n if it seats the round"
    assert row("roster")[-1] == sizes
    assert len(CohortSeating(0, 9, bytes(64)).pack()) == 72
    enrolled = RosterEntry(ENTRY.identity, ENTRY.keys, ENTRY.signature, bytes(64))
    assert (len(roster_bytes([ENTRY])), len(roster_bytes([enrolled]))) == (160, 224)


def test_the_lanes_of_tracked_have_the_lengths_and_moduli_of_the_page() -> None:
    question = TrackedQuestion(
        threshold=9, contribution=3, domain=Hashed(max_bytes=9, key_bits=40), message_bytes=8384
    )
    terms = Terms(cohort_size=100, minimum=50, cohorts=2)
    plan = Tracked().first_plan(question, terms, "page", 4, Random(1))
    names = [question.domain.name(item) for item in "abcde"]
    plan = plan.model_copy(
        update={
            "counter_groups": (
                CounterGroup(bits=3, items=tuple(names[:2])),
                CounterGroup(bits=5, items=(names[2],)),
            ),
            "string_pieces": tuple((row, 0, 9) for row in range(3)),
        }
    )
    table = plan.table.iblt.ring.lanes
    checks = check_lanes(200 * 3)
    counted = [*checks, Lane(2**5, 1), *checks]
    strings = Lane(widest_prime(2**24 - 1), 3 * 3)
    assert Tracked().ring(plan).lanes == (Lane(2**3, 2), *counted, strings, *table)
    assert [lane.length for lane in table] == [plan.cells, 2 * plan.cells]
    assert [lane.q for lane in checks] == [2**10, int(row_of_lanes("counters")[3][-8:])]


def test_the_lanes_of_tracked_in_a_one_shot_sum_have_one_prime_and_the_page_s_lengths() -> None:
    question = TrackedQuestion(
        threshold=9, contribution=3, domain=Hashed(max_bytes=9, key_bits=40), message_bytes=8384
    )
    committee = CommitteeTerms(members=OPERATORS)
    terms = Terms(cohort_size=200, minimum=50, sum="one-shot", committee=committee)
    plan = Tracked().first_plan(question, terms, "page", 4, Random(1))
    names = tuple(question.domain.name(item) for item in "abc")
    groups = (
        SplitGroup(counters=1, items=names[:2]).model_dump(),
        SplitGroup(counters=4, items=names[2:]).model_dump(),
    )
    pieces = [(row, 0, 9) for row in range(3)]
    changes = {"prime": 4129, "max_value": 4000, "cells": 96, "string_pieces": pieces}
    plan = plan.next_round(Random(1), counter_groups=groups, counter_classes=(2, 4), **changes)
    cell, lanes = plan.table.iblt.cell, Tracked().ring(plan).lanes
    assert {lane.q for lane in lanes} == {4129}
    strings = 3 * -(-8 * 9 // 12)
    lengths = [6, 3 * 2, strings, 96, 96 * 2 * cell.parts, 3 * plan.table_classes]
    assert [lane.length for lane in lanes] == lengths
    for first in (
        "items' counters",
        "classes of",
        "pieces of strings",
        "table: values; keys",
        "thinned",
    ):
        assert row_of_lanes(first)


def row_of_lanes(first: str) -> list[str]:
    """Return the cells of the one row of lanes that begins with `first`."""
    (line,) = re.findall(rf"^\| {first}\b.*`.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in str(line).strip("|").split("|")]


def test_an_encrypted_share_is_a_commitment_and_a_ciphertext() -> None:
    parts = re.search(
        r"An encrypted share is a commitment to the share \((\d+)\) .*? ciphertext \((\d+)\)", PROSE
    )
    assert parts
    assert sum(map(int, parts.groups())) == ENCRYPTED_SHARE_BYTES


def test_a_report_has_the_layout_and_the_size_of_the_page() -> None:
    assert row("report")[-1] == "96 + r, or 160 + r with a registrar"
    parts = [bytes([number]) * size for number, size in enumerate((32, 7, 64, 64), 1)]
    report = SignedReport(bytes(32), parts[0], parts[1], parts[2], parts[3])
    assert report.pack() == b"".join(parts)
    assert (packed_report_bytes(7, False), packed_report_bytes(7, True)) == (96 + 7, 160 + 7)
