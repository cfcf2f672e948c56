"""Fetching of the strings behind hashed keys, by sums of their bytes over the holders.

The holders of a tracked key are counted exactly. If its item will be heavy, its string is *fetched*
in pieces, one in a round: each holder adds its count times the numbers of the piece (24 bits each)
modulo a prime p. The sums, divided by the count, are the numbers: digits of the string in the code
of the plan's phrases (`phrases.py`). A piece with the end is the last one. The whole string must
hash to the key that it was fetched for. A string with a false piece does not, and is fetched again
from the start. So an honest server learns the items of keys that are about to be heavy, and of no
other keys. Only the server knows the counts, so a dishonest one may fetch the string of a key that
one device holds. Devices refuse what no honest study asks for (`TrackedPlan.history_faults`): no
item is tracked in the first round, and not more strings are fetched than can be heavy.

Counters may take `MAX_COUNTER_BYTES_SHARE` of a round's bytes. Strings take of the other bytes what
`_useful_elements` weighs, up to a table that can be read, and always the share with which the
longest string is fetched in time. Pieces are as long as the rest of a string near the end.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.domains.hashed import Hashed
from protocol.mechanisms.iblt.sampled_table import too_small
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import Counters
from protocol.mechanisms.tracked.forecast import Forecast, likely_heavy
from protocol.mechanisms.tracked.observations import drift_of
from protocol.mechanisms.tracked.phrases import PLAIN, StringCode, learn_phrases
from protocol.mechanisms.tracked.split_counters import SplitCounters
from protocol.numerics.array_types import Integers
from protocol.numerics.finite_fields import widest_prime
from protocol.question_and_plan import SumQuestion, Terms
from protocol.round_sizes import message_bytes_of
from protocol.study_state import StudyState
from secagg.oneshot.moduli import PAIRWISE, Moduli
from secagg.ring import Array, Lane

NUMBER_BYTES = 3
_STRINGS_ARRAY = "strings"  # in the study state: JSON of the bytes of each name, in hexadecimal
_COMPLETE_MARK = "."  # after the bytes of a complete string
_RATIO_STRINGS = 500  # from which the length of other strings in a code is expected


class StringPiece(NamedTuple):
    """The first `size` digits of the string behind `name` from byte `start` on, then zeros."""

    name: str
    start: int
    size: int


@dataclass(frozen=True)
class StringPieces:
    """The pieces that a round fetches, of different strings; counts stay below `max_count`."""

    pieces: tuple[StringPiece, ...]
    max_count: int
    moduli: Moduli = PAIRWISE
    code: StringCode = PLAIN

    @property
    def lane(self) -> Lane:
        """Return the lane of the pieces, piece by piece."""
        p = self.moduli.prime or widest_prime(max(self.max_count, 2 ** (8 * NUMBER_BYTES) - 1))
        return Lane(p, max(1, sum(map(self._elements_of, self.pieces))))

    @property
    def element_bits(self) -> int:
        """Return the bits of a string in an element."""
        prime = self.moduli.prime
        return prime.bit_length() - 1 if prime else 8 * NUMBER_BYTES

    def elements(self, nbytes: float) -> int:
        """Return the number of elements that hold `nbytes` of code."""
        return math.ceil(8 * nbytes / self.element_bits)

    def digits(self, elements: int) -> int:
        """Return the number of digits that fit in `elements`."""
        return int(elements * self.element_bits / (8 * self.code.digit_bytes))

    def _elements_of(self, piece: StringPiece) -> int:
        bits = int(self.code.base**piece.size - 1).bit_length()
        return -(-bits // self.element_bits)

    def elements_in_bytes(self, nbytes: float) -> int:
        """Return the number of elements that `nbytes` of a message have room for."""
        return max(0, int(8 * nbytes // self.moduli.element_bits(self.lane.q)))

    @cached_property
    def _places(self) -> Mapping[str, tuple[StringPiece, slice]]:
        """Return the piece of each name, and its elements."""
        ends = list(accumulate(map(self._elements_of, self.pieces)))
        places = map(slice, [0, *ends], ends)
        return {x.name: (x, place) for x, place in zip(self.pieces, places, strict=True)}

    def encode(self, held: Iterable[tuple[str, str, int]]) -> Array:
        """Return the sum of the vectors of all holders, each as (name, item, count)."""
        p = np.uint64(self.lane.q)
        sums = np.zeros(self.lane.length, dtype=np.uint64)
        for name, item, count in held:
            if name in self._places:
                piece, place = self._places[name]
                sums[place] += np.uint64(count) * self._numbers(item, piece) % p
                sums[place] %= p
        return sums.astype(self.lane.dtype)

    def _numbers(self, item: str, piece: StringPiece) -> NDArray[np.uint64]:
        digits = self.code.encode(item.encode()[piece.start :])[: piece.size]
        number, base = 0, self.code.base
        for digit in digits:
            number = base * number + digit
        number, bits = number * base ** (piece.size - len(digits)), self.element_bits
        places = range((self._elements_of(piece) - 1) * bits, -1, -bits)
        return np.array([number >> place & 2**bits - 1 for place in places], np.uint64)

    def decode(self, sums: Array, counts: Mapping[str, int]) -> dict[str, bytes]:
        """Return the bytes of pieces of names with a count, if their sums decode to digits."""
        pieces, p, base = {}, self.lane.q, self.code.base
        for name, (piece, place) in self._places.items():
            count = counts.get(name, 0) % p
            if not count:
                continue
            inverse, whole = pow(count, -1, p), 0
            numbers = [number * inverse % p for number in sums[place].tolist()]
            for number in numbers:
                whole = whole << self.element_bits | number
            if max(numbers) < 2**self.element_bits and whole < base**piece.size:
                digits = list[int]()
                for _ in range(piece.size):
                    whole, digit = divmod(whole, base)
                    digits.append(digit)
                pieces[name] = self.code.decode(reversed(digits))
        return pieces


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

    def next_piece(self, name: str, size: int, code: StringCode = PLAIN) -> StringPiece:
        """Return the next piece of a name that is not complete, of at most `size` digits."""
        start = len(self.partial.get(name, b""))
        return StringPiece(name, start, min(size, self.most_digits(name, code)))

    def most_digits(self, name: str, code: StringCode) -> int:
        """Return the most digits of a piece. Escapes may need more of them, in several rounds."""
        left = self.domain.max_bytes - len(self.partial.get(name, b""))
        return left + (tuning.ESCAPE_DIGITS - 1 if code.phrases else 0)

    def bytes_per_byte(self, code: StringCode) -> float:
        """Return how many bytes of `code` a byte of the complete strings takes."""
        texts = list(islice(self.complete.values(), _RATIO_STRINGS))
        return code.size(texts) / PLAIN.size(texts) if texts else 1.0

    def expected_bytes(self, name: str, rounds_left: int, bytes_per_byte: float) -> float:
        """Return how many bytes of code are probably to come, with the end, in whole pieces.

        It is the mean of the complete strings that are longer than what is known of this one, and
        of another one that has as many bytes to come as are known, or a round's part of the longest
        string. For example, strings of 1,000 bytes get 333 in each of three rounds, if none that is
        complete shows that they are short.
        """
        known, size = len(self.partial.get(name, b"")), tuning.MIN_PIECE_BYTES
        longer = bytes_per_byte * (self._sizes[self._sizes > known] - known)
        most = self.domain.max_bytes - known
        another = max(known, tuning.EXPECTED_STRING_BYTES, most / max(1, rounds_left))
        whole = float((np.ceil(longer / size) * size).sum())
        return min((bytes_per_byte * another + whole) / (1 + len(longer)), most)

    @cached_property
    def _sizes(self) -> Integers:
        return np.array([len(item.encode()) + 1 for item in self.complete.values()], np.int64)

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


def _useful_elements(left: float, rounds_left: int, fitting: int) -> int:
    """Return how many elements of strings, of `fitting`, gain more F1 than cells in their place.

    A string of k elements names one item: an element gains 1 / k items if it would be missing at
    the end. A cell gains nothing then, because the string of what it finds would be missing too. If
    later rounds have room for an element, it gains nothing, and a cell gains what it finds. The
    known strings take a part x of the room in all rounds left. More items will come, so strings
    come first up to 1 + x times the even rate, twice at most. For example, 200 strings of 4
    elements are missing with 20 rounds left: 40 elements in each. Of 100 that fit, x = 0.4, and 56
    are useful.
    """
    rate = left / rounds_left
    return math.ceil(rate * (1 + min(1.0, rate / max(1, fitting))))


def _shares(wanted: Iterable[tuple[str, int]], room: int) -> dict[str, int]:
    """Return the elements that each name gets, in the order of `wanted`, until `room` is full.

    A name that is wanted again, with more elements, gets the difference.
    """
    shares: dict[str, int] = {}
    for name, elements in wanted:
        more = min(room, elements - shares.get(name, 0))
        if more > 0:
            shares[name], room = shares.get(name, 0) + more, room - more
    return shares


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

    def pieces_of(
        self, wanted: tuple[StringPiece, ...], moduli: Moduli, code: StringCode
    ) -> StringPieces:
        """Return the pieces of a round with these `moduli` that fetches `wanted`."""
        return StringPieces(wanted, self._max_count, moduli, code)

    def next_code(self, forecast: Forecast) -> StringCode:
        """Return the code of the next pieces, with phrases of strings that are heavy already."""
        domain = self.question.domain
        if not isinstance(domain, Hashed):
            return PLAIN
        complete = KnownStrings.from_state(domain, forecast.state).complete
        return learn_phrases([complete[name] for name in forecast.heavy if name in complete])

    def next_pieces(
        self,
        forecast: Forecast,
        counters: Counters | SplitCounters,
        code: StringCode,
        nbytes: int,
        min_table_bytes: int,
        readable_table_bytes: int,
    ) -> StringPieces:
        """Return the next pieces of strings of items that will be heavy.

        The counters leave `nbytes` for pieces and a table. It takes `min_table_bytes` or more
        beside the guaranteed bytes and in the last round, else `readable_table_bytes` or more.

        First each string gets `MIN_PIECE_BYTES`, those of which most is known before the others.
        Then those with the fewest expected bytes get all of them, and twice in the last round.
        While no phrases are known, the `FIRST_STRINGS` of the highest totals come first, and fast;
        if rates move, all do, since holders leave.
        """
        domain, lane = self.question.domain, self.pieces_of((), counters.moduli, code)
        if not isinstance(domain, Hashed) or not counters.items:
            return lane
        strings = KnownStrings.from_state(domain, forecast.state)
        fetchable = counters.rows.keys() - strings.complete.keys()
        missing = [name for name in likely_heavy(forecast) if name in fetchable]
        least, rounds_left = tuning.MIN_PIECE_BYTES, self.rounds - forecast.plan.round
        drift = drift_of(forecast.state)
        is_urgent = bool(drift.breaks) or max(drift.phi, drift.trend) >= tuning.MIN_TREND
        if not code.phrases and len(strings.complete) < tuning.FIRST_STRINGS and rounds_left > 1:
            # These strings give phrases, which make all others short.
            missing = missing[: tuning.FIRST_STRINGS]
            is_urgent = True
        even_rounds = min(rounds_left, tuning.URGENT_ROUNDS) if is_urgent else rounds_left
        most = {x: code.digit_bytes * strings.most_digits(x, code) for x in missing}
        ratio = strings.bytes_per_byte(code)
        expected = {x: strings.expected_bytes(x, rounds_left, ratio) for x in missing}
        begun, short = (sorted(missing, key=each.__getitem__) for each in (most, expected))
        if rounds_left > 1:
            wanted = [*((x, 0.0) for x in begun), *((x, expected[x]) for x in short)]
            fitting = lane.elements_in_bytes(nbytes - readable_table_bytes)
            left = sum(lane.elements(size) for size in expected.values())
            room = min(fitting, _useful_elements(left, even_rounds, fitting))
        else:  # No cell gains anything, and strings may be longer than expected.
            wanted = [(x, 2 * expected[x]) for x in short]
            room = lane.elements_in_bytes(nbytes - min_table_bytes)
        wanted += [(x, most[x]) for x in short]
        guaranteed = lane.elements(max(least, domain.max_bytes / max(1, self.rounds - 1)))
        most_bytes = min(tuning.MAX_PIECE_BYTES_SHARE * nbytes, nbytes - min_table_bytes)
        room = max(room, min(guaranteed, lane.elements_in_bytes(most_bytes)))
        elements = ((x, lane.elements(min(max(least, size), most[x]))) for x, size in wanted)
        sizes = {x: lane.digits(n) for x, n in _shares(elements, room).items()}
        pieces = (strings.next_piece(x, size, code) for x, size in sizes.items() if size)
        return self.pieces_of(tuple(pieces), counters.moduli, code)

    @property
    def _number_bits(self) -> int:
        """Return the most bits that three bytes of a string take, with any prime of the rounds."""
        if self.terms.is_one_shot:
            return tuning.MAX_NUMBER_BITS
        return StringPieces((), self._max_count).lane.bits

    @property
    def _max_count(self) -> int:
        return self.terms.max_devices * self.question.contribution
