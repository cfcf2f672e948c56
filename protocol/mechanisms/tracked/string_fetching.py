"""Fetching of the strings behind hashed keys, by sums of their bytes over the holders.

The holders of a tracked key are counted exactly. If its item will be heavy, its string is *fetched*
in pieces of some bytes per round: each holder adds its count times the numbers of the piece (3
bytes each) modulo a prime p. The sums, divided by the count, are the numbers. A piece that ends
in NUL is the last one. The whole string must hash to the key that it was fetched for. A string
with a false piece does not, and is fetched again from the start. So an honest server learns the
items of keys that are about to be heavy, and of no other keys. Only the server knows the counts, so
a dishonest one may fetch the string of a key that one device holds. Devices refuse what no honest
study asks for (`TrackedPlan.history_faults`): each string takes a round for each piece, after the
first round, and not more strings are fetched than can be heavy.

Counters may take `MAX_COUNTER_BYTES_SHARE` of a round's bytes. Strings take of the other bytes what
`_useful_pieces` weighs, up to a table that can be read, and one piece in any case. All pieces of a
study have one size, with which a guaranteed share of all bytes can fetch the longest string in its
rounds. Strings that are nearly complete come first, and then those of the heaviest items.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.domains.hashed import Hashed
from protocol.mechanisms.iblt.sampled_table import too_small
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import Counters
from protocol.mechanisms.tracked.forecast import Forecast, likely_heavy
from protocol.mechanisms.tracked.split_counters import SplitCounters
from protocol.numerics.finite_fields import widest_prime
from protocol.public_model import PublicModel
from protocol.question_and_plan import SumQuestion, Terms
from protocol.round_sizes import message_bytes_of, vector_bytes
from protocol.study_state import StudyState
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Array, Lane

NUMBER_BYTES = 3
_STRINGS_ARRAY = "strings"  # in the study state: JSON of the bytes of each name, in hexadecimal
_COMPLETE_MARK = "."  # after the bytes of a complete string


class StringPiece(PublicModel):
    """One piece of the string behind `name`; pieces count from 0."""

    name: str
    piece: int = Field(ge=0, le=4096 // NUMBER_BYTES)


@dataclass(frozen=True)
class StringPieces:
    """The pieces that a round fetches, of `numbers` numbers each; counts stay below `max_count`."""

    pieces: tuple[StringPiece, ...]
    max_count: int
    numbers: int
    moduli: Moduli = PAIRWISE

    @property
    def lane(self) -> Lane:
        """Return the lane of the pieces, piece by piece."""
        p = self.moduli.prime or widest_prime(max(self.max_count, 2 ** (8 * NUMBER_BYTES) - 1))
        return Lane(p, max(1, self.elements * len(self.pieces)))

    @property
    def element_bits(self) -> int:
        """Return the bits of a string in an element."""
        prime = self.moduli.prime
        return prime.bit_length() - 1 if prime else 8 * NUMBER_BYTES

    @property
    def elements(self) -> int:
        """Return the number of elements of a piece."""
        return -(-8 * NUMBER_BYTES * self.numbers // self.element_bits)

    @cached_property
    def rows(self) -> Mapping[str, int]:
        return {piece.name: row for row, piece in enumerate(self.pieces)}

    def pieces_in_bytes(self, nbytes: int) -> int:
        bits = self.elements * self.moduli.element_bits(self.lane.q)
        return min(len(self.pieces), int(8 * nbytes // bits))

    def encode(self, held: Iterable[tuple[str, str, int]]) -> Array:
        """Return the sum of the vectors of all holders, each as (name, item, count)."""
        numbers = np.zeros((len(self.pieces), self.elements), dtype=np.uint64)
        p = np.uint64(self.lane.q)
        for name, item, count in held:
            row = self.rows.get(name)
            if row is not None:
                numbers[row] += np.uint64(count) * self._piece(item, self.pieces[row].piece) % p
                numbers[row] %= p
        return numbers.reshape(-1).astype(self.lane.dtype)

    def _piece(self, item: str, piece: int) -> NDArray[np.uint64]:
        size, bits = self.numbers * NUMBER_BYTES, self.element_bits
        raw = item.encode()[piece * size :][:size].ljust(size, b"\0")
        number = int.from_bytes(raw, "big")
        places = range((self.elements - 1) * bits, -1, -bits)
        return np.array([number >> place & 2**bits - 1 for place in places], np.uint64)

    def decode(self, sums: Array, counts: Mapping[str, int]) -> dict[str, bytes]:
        """Return the pieces of names with a count, if their sums decode to bytes."""
        pieces, p, size = {}, self.lane.q, self.numbers * NUMBER_BYTES
        for piece, row in zip(self.pieces, sums.reshape(-1, self.elements).tolist(), strict=True):
            count = counts.get(piece.name, 0) % p
            if not count:
                continue
            inverse, whole = pow(count, -1, p), 0
            numbers = [number * inverse % p for number in row]
            for number in numbers:
                whole = whole << self.element_bits | number
            if max(numbers) < 2**self.element_bits and whole < 2 ** (8 * size):
                pieces[piece.name] = whole.to_bytes(size, "big")
        return pieces


def piece_numbers(domain: Hashed, rounds: int) -> int:
    """Return the numbers per piece with which a third of the rounds fetches the longest item."""
    fetch_rounds = max(1, rounds // tuning.FETCH_ROUNDS_DIVISOR)
    return max(tuning.MIN_PIECE_NUMBERS, -(-domain.max_bytes // (NUMBER_BYTES * fetch_rounds)))


@dataclass(frozen=True)
class KnownStrings:
    """Strings behind names that are known so far: complete ones, and first parts of others."""

    domain: Hashed
    complete: dict[str, str] = field(default_factory=dict)
    partial: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def from_state(cls, domain: Hashed, state: StudyState) -> "KnownStrings":
        stored = state.arrays.get(_STRINGS_ARRAY)
        known: dict[str, str] = {} if stored is None else json.loads(stored.tobytes())
        ended = {name: raw for name, raw in known.items() if raw.endswith(_COMPLETE_MARK)}
        complete = {name: bytes.fromhex(raw[:-1]).decode() for name, raw in ended.items()}
        partial = {name: bytes.fromhex(raw) for name, raw in known.items() if name not in ended}
        return cls(domain, complete, partial)

    def store_in(self, state: StudyState) -> StudyState:
        known = {name: raw.hex() for name, raw in self.partial.items()}
        ended = {name: item.encode().hex() for name, item in self.complete.items()}
        known |= {name: raw + _COMPLETE_MARK for name, raw in ended.items()}
        return state.with_array(_STRINGS_ARRAY, np.frombuffer(json.dumps(known).encode(), np.uint8))

    def next_piece(self, name: str, numbers: int) -> StringPiece:
        """Return the next piece, of `numbers` numbers, of a name whose string is not complete."""
        fetched = len(self.partial.get(name, b""))
        return StringPiece(name=name, piece=fetched // (NUMBER_BYTES * numbers))

    def expected_pieces(self, numbers: int) -> float:
        """Return the mean number of pieces, of `numbers` numbers, of the known strings."""
        size = NUMBER_BYTES * numbers
        known = [len(item.encode()) // size + 1 for item in self.complete.values()]
        return sum(known) / len(known) if known else -(-self.domain.max_bytes // size)

    def add(self, pieces: Mapping[str, bytes]) -> "KnownStrings":
        """Return the strings with `pieces` added, each the next piece of its name."""
        complete, partial = dict(self.complete), dict(self.partial)
        for name, piece in pieces.items():
            raw = partial.pop(name, b"") + piece
            if piece.endswith(b"\0") or len(raw) >= self.domain.max_bytes:
                item = self._verified(name, raw.rstrip(b"\0"))
                if item is not None:
                    complete[name] = item
            else:
                partial[name] = raw
        return KnownStrings(self.domain, complete, partial)

    def _verified(self, name: str, raw: bytes) -> str | None:
        try:
            item = raw.decode()
        except UnicodeDecodeError:
            return None
        return item if item in self.domain and self.domain.name(item) == name else None


def _useful_pieces(pieces_left: float, rounds_left: int, fitting: int) -> int:
    """Return how many pieces of a round, of `fitting`, gain more F1 than cells in their place.

    A string of k pieces names one item: a piece gains 1 / k items if it would be missing at the
    end. A cell gains nothing then, because the string of what it finds would be missing too. If
    later rounds have room for a piece, it gains nothing, and a cell gains what it finds. The known
    strings take a part x of the room in all rounds left. More items will come, so pieces come first
    up to 1 + x times the even rate, twice at most. For example, 200 strings of 4 pieces are missing
    with 20 rounds left: 40 pieces in each. Of 100 that fit, x = 0.4, and 56 are useful.
    """
    rate = pieces_left / max(1, rounds_left)
    return math.ceil(rate * (1 + min(1.0, rate / max(1, fitting))))


@dataclass(frozen=True, slots=True)
class FetchSchedule:
    """Fetching of the strings of a study of `rounds` rounds, if its domain is hashed."""

    question: SumQuestion
    terms: Terms
    rounds: int

    @property
    def min_message(self) -> int:
        """Return the message that fetches the longest string after round 1; 0 without strings."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return 0
        numbers = -(-domain.max_bytes // (NUMBER_BYTES * max(1, self.rounds - 1)))
        nbytes = math.ceil(numbers * self._number_bits / 8)
        vector = math.ceil(nbytes / tuning.GUARANTEED_STRING_BYTES_SHARE)
        return message_bytes_of(self.terms, vector)

    def check(self) -> None:
        """Raise ValueError if devices refuse to give strings, or the message is too small."""
        domain, needed = self.question.domain, self.min_message
        if isinstance(domain, Hashed) and self.may_show_one_device:
            raise ValueError(
                f"devices give no strings that one of them alone may make heavy: a threshold of "
                f"{self.question.threshold:g} must be above the contribution, "
                f"{self.question.contribution}"
            )
        if isinstance(domain, Hashed) and self.question.message_bytes < needed:
            purpose = f"to fetch strings of {domain.max_bytes} bytes in {self.rounds} rounds"
            raise ValueError(f"{too_small(self.question, purpose, needed)}, or fewer max_bytes")

    @property
    def may_show_one_device(self) -> bool:
        """Return whether one device alone may make an item heavy, so that its string is fetched."""
        return self.question.threshold <= self.question.contribution

    def pieces_of(self, wanted: tuple[StringPiece, ...], moduli: Moduli) -> StringPieces:
        """Return the pieces of a round with these `moduli` that fetches `wanted`."""
        return StringPieces(wanted, self._max_count, self._piece_numbers, moduli)

    def next_pieces(
        self,
        forecast: Forecast,
        counters: Counters | SplitCounters,
        nbytes: int,
        min_table_bytes: int,
        readable_table_bytes: int,
    ) -> StringPieces:
        """Return the next pieces of strings of items that will be heavy, late pieces first.

        The counters leave `nbytes` for pieces and a table. It takes `min_table_bytes` or more
        beside one piece, and `readable_table_bytes` or more beside several.
        """
        domain = self.question.domain
        if not isinstance(domain, Hashed) or not counters.items:
            return self.pieces_of((), counters.moduli)
        strings, numbers = KnownStrings.from_state(domain, forecast.state), self._piece_numbers
        missing = [name for name in likely_heavy(forecast) if name in counters.rows]
        missing = [name for name in missing if name not in strings.complete]
        listed = sorted((strings.next_piece(x, numbers) for x in missing), key=lambda x: -x.piece)
        wanted = self.pieces_of(tuple(listed), counters.moduli)
        single = wanted.pieces_in_bytes(int(tuning.MAX_PIECE_BYTES_SHARE * nbytes))
        guaranteed = min(1, single, wanted.pieces_in_bytes(max(0, nbytes - min_table_bytes)))
        fitting = wanted.pieces_in_bytes(max(0, nbytes - readable_table_bytes))
        expected = strings.expected_pieces(numbers)
        pieces_left = sum(max(1.0, expected - each.piece) for each in listed)
        useful = _useful_pieces(pieces_left, self.rounds - forecast.plan.round, fitting)
        return replace(wanted, pieces=wanted.pieces[: max(guaranteed, min(fitting, useful))])

    @property
    def _piece_numbers(self) -> int:
        """Return the numbers of a piece, so that one piece always fits."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return 1
        share = tuning.GUARANTEED_STRING_BYTES_SHARE
        nbytes = vector_bytes(self.terms, self.question.message_bytes)
        fitting = int(8 * share * nbytes) // self._number_bits
        return max(1, min(piece_numbers(domain, self.rounds), fitting))

    @property
    def _number_bits(self) -> int:
        """Return the most bits that three bytes of a string take, with any prime of the rounds."""
        if self.terms.is_one_shot:
            return tuning.MAX_NUMBER_BITS
        return StringPieces((), self._max_count, 1).lane.bits

    @property
    def _max_count(self) -> int:
        return self.terms.max_devices * self.question.contribution
