"""docs/protocol.md says what the code does: its labels, statements, sizes and parcels."""

import re
from pathlib import Path
from random import Random

import pytest

from protocol.hashed import Hashed
from protocol.mechanism import Terms
from protocol.mechanisms.counters import Group, beside
from protocol.mechanisms.hindsight import Past
from protocol.mechanisms.strings import Fetch
from protocol.mechanisms.tracked import Tracked, TrackedQuestion
from protocol.messages import (
    ProblemType,
    pack_confirmations,
    pack_parcels,
    pack_roster,
    pack_sharers,
)
from protocol.report import Report, packed_bytes
from protocol.reporting import EVERY_STUDY
from protocol.sketches.primes import widest_prime
from secagg.cohort import Entry, Sharer
from secagg.deals import KeyDeal, Reveal, SeedDeal
from secagg.keys import SIGNATURE_BYTES, PublicKeys
from secagg.parcels import PARCEL_BYTES, Parcel
from secagg.ring import Lane

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
SOURCES = [*ROOT.glob("secagg/*.py"), *ROOT.glob("protocol/*.py")]
CODE = "".join(path.read_text() for path in SOURCES)
SHARER, PARCEL = Sharer(bytes(32), bytes(32)), Parcel(bytes(32), bytes(33))
ENTRY = Entry(b"\x09" * 31 + b"\1", PublicKeys(b"\x09" + bytes(31), b"\x0a" + bytes(31)), bytes(64))


def labels(text: str) -> set[str]:
    """Return what stands between quotation marks and begins as our labels do."""
    return set(re.findall(r'"(blindtally [a-z0-9 ]+)\\0"', text))


def row(first: str) -> list[str]:
    """Return the cells of the one row of a table that begins with `first`."""
    (line,) = re.findall(rf"^\| {re.escape(first)} \|.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in str(line).strip("|").split("|")]


def test_every_label_of_the_page_is_in_the_code_and_the_other_way_round() -> None:
    purposes = set(re.findall(r'"blindtally v1 ([a-z ]+)\\0"', PAGE))
    plain = {label for label in labels(PAGE) if not label.startswith("blindtally v1 ")}
    assert plain == labels(CODE)
    assert len(plain) == 8
    assert purposes == set(re.findall(r'Purpose\(self\.label, "([a-z ]+)"', CODE))


def test_every_statement_of_the_page_is_signed_somewhere_and_the_other_way_round() -> None:
    table = PAGE[PAGE.index("| statement | L |") : PAGE.index("Floats (")]
    named = set(re.findall(r"^\| `([a-z]+)`", table, re.MULTILINE))
    assert named == set(re.findall(r'statement(?:_of)?\(\s*"([a-z]+)"', CODE))
    assert '"blindtally v1 "` ‖ what ‖ `"\\0"` ‖ L ‖ u32(slot) ‖ H(payload)' in PAGE


@pytest.mark.parametrize(
    ("body", "formula", "sizes"),
    [
        ("shares", "96 + 65 k", {k: KeyDeal.nbytes(k) for k in (2, 116)}),
        (
            "vector",
            "128 + 65 k′ + Σ ⌈length · b / 8⌉",
            {k: SeedDeal.nbytes(k) + SIGNATURE_BYTES for k in (2, 116)},
        ),
        ("confirmation", "64", {1: SIGNATURE_BYTES}),
        ("reveal", "64 + 38 k″", {k: Reveal.nbytes(k) for k in (2, 116)}),
        (
            "sharers",
            "68 n′",
            {
                n: len(pack_sharers(dict.fromkeys(range(n), Sharer(bytes(32), bytes(32)))))
                for n in (1, 9)
            },
        ),
        (
            "confirmations",
            "68 n″",
            {n: len(pack_confirmations(dict.fromkeys(range(n), bytes(64)))) for n in (1, 9)},
        ),
        (
            "parcels",
            "69 k‴",
            {
                n: len(pack_parcels(dict.fromkeys(range(n), Parcel(bytes(32), bytes(33)))))
                for n in (1, 9)
            },
        ),
    ],
)
def test_the_bodies_have_the_sizes_of_the_page(
    body: str, formula: str, sizes: dict[int, int]
) -> None:
    assert row(body)[-1] == formula
    numbers = re.match(r"(?:(\d+) \+ )?(\d+)(?: [kn])?", formula)
    assert numbers
    constant, each = int(numbers[1] or 0), int(numbers[2])
    for count, size in sizes.items():
        assert size == constant + each * count


def test_a_roster_has_the_size_of_the_page() -> None:
    assert row("roster")[-1] == "160 n, or 224 n with a registrar"
    enrolled = Entry(ENTRY.identity, ENTRY.keys, ENTRY.signature, bytes(64))
    assert (len(pack_roster([ENTRY])), len(pack_roster([enrolled]))) == (160, 224)


def test_the_lanes_of_tracked_have_the_lengths_and_moduli_of_the_page() -> None:
    question = TrackedQuestion(
        threshold=9, contribution=3, domain=Hashed(max_bytes=9, key_bits=40), words=2000
    )
    terms = Terms(cohort_size=100, minimum=50, cohorts=2)
    plan = Tracked().first_plan(question, terms, "page", 4, Random(1))
    names = [question.domain.name(item) for item in "abcde"]
    plan = plan.model_copy(
        update={
            "groups": (Group(bits=3, items=tuple(names[:2])), Group(bits=5, items=(names[2],))),
            "fetches": tuple(Fetch(name=name, piece=0) for name in names[:3]),
            "past": Past(cells=101, bits=5),
        }
    )
    pieces, table = plan.strings, plan.table.iblt.ring.lanes
    counted = [*beside(200 * 3), Lane(2**5, 1), *beside(200 * 3)]
    strings, sketch = Lane(widest_prime(2**24 - 1), pieces.numbers * 3), Lane(2**5, 101)
    assert Tracked().ring(plan).lanes == (Lane(2**3, 2), *counted, strings, sketch, *table)
    assert [lane.length for lane in table] == [plan.cells, 2 * plan.cells]
    assert [lane.q for lane in beside(200 * 3)] == [2**10, int(row_of_lanes("counters")[3][-8:])]
    assert row_of_lanes("sketch")[2:] == ["`past.cells`", "2^`past.bits`"]
    assert plan.past.nbytes == sketch.nbytes == -(-101 * 5 // 8)
    limits = re.search(r"`past` has (\d+) to 2\^(\d+) cells of (\d+) to (\d+) bits", PAGE)
    assert limits
    least, most, fewest, widest = map(int, limits.groups())
    Past(cells=least, bits=fewest)
    Past(cells=2**most, bits=widest)
    for cells, bits in ((least - 1, 4), (2**most + 1, 4), (64, fewest - 1), (64, widest + 1)):
        with pytest.raises(ValueError, match="equal to"):
            Past(cells=cells, bits=bits)


def row_of_lanes(first: str) -> list[str]:
    """Return the cells of the one row of lanes that begins so."""
    (line,) = re.findall(rf"^\| {first}\b.*`.*$", PAGE, re.MULTILINE)
    return [cell.strip() for cell in str(line).strip("|").split("|")]


def test_a_parcel_is_a_commitment_an_envelope_and_nothing_else() -> None:
    parts = re.search(
        r"A parcel is a commitment to a share \((\d+)\) .*? under its pad \((\d+)\)", PAGE
    )
    assert parts
    assert sum(map(int, parts.groups())) == PARCEL_BYTES


def test_a_report_has_the_layout_and_the_size_of_the_page() -> None:
    assert row("report")[-1] == "96 + r, or 160 + r with a registrar"
    parts = [bytes([number]) * size for number, size in enumerate((32, 7, 64, 64), 1)]
    one = Report(bytes(32), parts[0], parts[1], parts[2], parts[3])
    assert one.pack() == b"".join(parts)
    assert (packed_bytes(7, False), packed_bytes(7, True)) == (96 + 7, 160 + 7)
    assert f'`"{EVERY_STUDY}"`' in PAGE


def test_a_report_is_refused_for_the_reasons_of_the_page() -> None:
    table = PAGE[PAGE.index("| refused with | when |") : PAGE.index("## Derivations")]
    named = set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE))
    code = "".join(
        (ROOT / "server" / path).read_text() for path in ("api/reports.py", "store/reports.py")
    )
    raised = {ProblemType[name] for name in re.findall(r"ProblemType\.([A-Z_]+)", code)}
    assert named == raised | {ProblemType.MALFORMED}
