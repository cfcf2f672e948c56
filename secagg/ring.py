"""Vectors of lanes, the group Z_q1^n1 x Z_q2^n2 x ... in which a secure sum adds.

A *lane* is `length` elements modulo its own `q`. Counts use q = 2^b, where addition wraps at no
cost; values that the decoder must divide use a prime. One numpy array holds one lane, always
reduced to [0, q), in the smaller of uint32 and uint64 that adds two elements without losing a
carry. On the wire a lane is bit-packed in little-endian order: element i occupies bits i b to
i b + b - 1, where b is the bit length of q - 1; a lane ends on a whole byte, padded with zero
bits.

In each lane, an element of a mask is the low b bits of the keystream's next word (4 or 8 bytes, the
lane's type, little-endian). If q is not 2^b, words whose low bits are not below q are skipped.
Reducing them instead would favour small elements, and the mask would no longer hide. So every
vector of the ring is equally likely, as a one-time pad requires, up to the strength of AES.

Source: the linear messages over Z_q of [Gascon23, section 2] and the PRG of [Bonawitz17, section
3.4]; a modulus per lane and exact uniformity for any q are additions of blindtally.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.keys import Keystream

Array: TypeAlias = NDArray[np.unsignedinteger[Any]]
Vector: TypeAlias = tuple[Array, ...]

_WORD_BITS = 64  # of the words that packing uses
_U32, _U64 = np.dtype("<u4"), np.dtype("<u8")
_SINGLE_BIT = np.uint64(1)


@dataclass(frozen=True, slots=True)
class Lane:
    """`length` elements modulo `q`, with 2 <= q <= 2^62 or q = 2^63 or 2^64.

    Attributes:
        bits: the number of bits of an element on the wire.
        is_power_of_two: whether q = 2^b, so that reducing is masking.
        dtype: the numpy type that holds an element and the sum of two.
        fills_words: whether each value of the numpy type is an element.
        low_bits: 2^b - 1 of the numpy type.
    """

    q: int
    length: int
    # Computed once: properties of these took a third of the time of a short mask.
    bits: int = field(init=False, repr=False, compare=False)
    is_power_of_two: bool = field(init=False, repr=False, compare=False)
    dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    fills_words: bool = field(init=False, repr=False, compare=False)
    _modulus: np.unsignedinteger[Any] | None = field(init=False, repr=False, compare=False)
    low_bits: np.unsignedinteger[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= self.q <= 2**62 and self.q not in (2**63, 2**64):
            raise ValueError(f"a lane's modulus is 2 to 2^62, or 2^63, or 2^64; got {self.q}")
        if self.length < 1:
            raise ValueError(f"a lane has at least one element, got {self.length}")
        bits, is_power_of_two = (self.q - 1).bit_length(), self.q & (self.q - 1) == 0
        sum_bits = bits + (not is_power_of_two)  # modulo 2^b it may wrap
        dtype = _U32 if sum_bits <= 32 else _U64
        computed = {
            "bits": bits,
            "is_power_of_two": is_power_of_two,
            "dtype": dtype,
            "fills_words": bits == dtype.itemsize * 8,
            "_modulus": None if is_power_of_two else dtype.type(self.q),
            "low_bits": dtype.type(2**bits - 1),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    @property
    def nbytes(self) -> int:
        """Return the packed size in bytes."""
        return (self.length * self.bits + 7) // 8

    def reduce(self, array: Array) -> None:
        """Bring `array`, elements below 2 q or any for q = 2^b, back to [0, q) in place."""
        if self._modulus is not None:
            # Below q the difference wraps to a huge number, so the minimum is the residue.
            # `%` would cost several times the keystream that made the element.
            np.minimum(array, array - self._modulus, out=array)
        elif not self.fills_words:
            np.bitwise_and(array, self.low_bits, out=array)

    def draw(self, stream: Keystream, out: Array) -> None:
        """Fill `out` with the next uniform elements of a mask.

        For q = 2^b they are not reduced here: `add` and `subtract` reduce the result.
        """
        stream.fill(out)
        if self.is_power_of_two:
            return
        np.bitwise_and(out, self.low_bits, out=out)
        while out.max() >= self.q:
            accepted = out[out < self.q]
            rest = out[len(accepted) :]
            out[: len(accepted)] = accepted
            stream.fill(rest)
            np.bitwise_and(rest, self.low_bits, out=rest)

    def uniform(self, stream: Keystream) -> Array:
        """Return the next uniform elements of a mask, reduced."""
        out = np.empty(self.length, self.dtype)
        self.draw(stream, out)
        self.reduce(out)
        return out

    def add(self, into: Array, other: Array) -> None:
        """Add the reduced `other` to the reduced `into`, in place."""
        np.add(into, other, out=into)
        self.reduce(into)

    def subtract(self, into: Array, other: Array) -> None:
        """Subtract the reduced `other` from the reduced `into`, in place."""
        np.subtract(into, other, out=into)
        if self._modulus is None:
            self.reduce(into)
        else:
            np.minimum(into, into + self._modulus, out=into)

    def pack(self, array: Array) -> bytes:
        """Return the `nbytes` packed bytes of a reduced lane."""
        if self.fills_words:
            return np.asarray(array, self.dtype).tobytes()
        rows = -(-self.length // _WORD_BITS)  # 64 elements of b bits fill exactly b words
        padded = np.zeros(rows * _WORD_BITS, dtype=_U64)
        padded[: self.length] = array
        columns, places = padded.reshape(rows, _WORD_BITS), _BitPlaces.of(self.bits)
        words = np.bitwise_or.reduceat(columns << places.shifts, places.first_columns, axis=1)
        split = places.split_columns
        high = (columns[:, split] >> _SINGLE_BIT) >> places.rest_shifts[split]
        words[:, places.words[split] + 1] |= high
        return words.tobytes()[: self.nbytes]

    def unpack(self, data: bytes | memoryview) -> Array:
        """Return the lane packed in `data`; it is read-only if it shares the memory of `data`.

        Raises:
            ValueError: if the size is not `nbytes`, an element is not below q, or a padding
                bit is set.
        """
        self._check_frame(data)
        if self.fills_words:
            array: Array = np.frombuffer(data, dtype=self.dtype)
        else:
            array = self._unpack_bits(data)
        if not self.is_power_of_two and (array >= self.q).any():
            raise ValueError(f"an element is outside its lane: not below {self.q}")
        return array

    def check_packed(self, data: bytes | memoryview) -> None:
        """Raise ValueError if `unpack` would.

        For q = 2^b any b bits are an element, so that no lane is unpacked.
        """
        if self.is_power_of_two:
            self._check_frame(data)
        else:
            self.unpack(data)

    def _check_frame(self, data: bytes | memoryview) -> None:
        if len(data) != self.nbytes:
            raise ValueError(f"a lane of {self.nbytes} bytes expected, got {len(data)}")
        spare = self.nbytes * 8 - self.length * self.bits
        if data[-1] >> (8 - spare):
            raise ValueError("the bits that pad a lane to whole bytes are not zero")

    def _unpack_bits(self, data: bytes | memoryview) -> Array:
        rows = -(-self.length // _WORD_BITS)
        padded, places = np.zeros(rows * self.bits + 1, dtype=_U64), _BitPlaces.of(self.bits)
        padded.view(np.uint8)[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        elements = padded[:-1].reshape(rows, self.bits).take(places.words, axis=1)
        elements >>= places.shifts
        high = padded[1:].reshape(rows, self.bits).take(places.words, axis=1)
        high <<= _SINGLE_BIT
        high <<= places.rest_shifts
        elements |= high
        elements &= np.uint64(2**self.bits - 1)
        return elements.reshape(-1)[: self.length].astype(self.dtype)


@dataclass(frozen=True, slots=True)
class _BitPlaces:
    """Places of 64 neighbouring elements of b bits in their b words.

    Column i, from 0 to 63, is an element that begins in word `words[i]` at bit `shifts[i]`. Its
    bits beyond that word, if any, begin the next one. A shift by 64 bits is undefined, so these are
    shifted by one bit and then by `rest_shifts[i]`, 63 - `shifts[i]`.
    """

    words: NDArray[np.intp]
    shifts: NDArray[np.uint64]
    rest_shifts: NDArray[np.uint64]
    first_columns: NDArray[np.intp]  # the first column that begins in each word
    split_columns: NDArray[np.intp]  # columns that lie in two words

    @classmethod
    @lru_cache
    def of(cls, bits: int) -> "_BitPlaces":
        words, shifts = np.divmod(np.arange(_WORD_BITS, dtype=np.intp) * bits, _WORD_BITS)
        return cls(
            words,
            shifts.astype(_U64),
            (_WORD_BITS - 1 - shifts).astype(_U64),
            np.flatnonzero(np.diff(words, prepend=-1)),
            np.flatnonzero(shifts + bits > _WORD_BITS),
        )


@dataclass(frozen=True, slots=True)
class Ring:
    """The lanes of one secure sum, in the order in which they travel."""

    lanes: tuple[Lane, ...]

    def __post_init__(self) -> None:
        if not self.lanes:
            raise ValueError("a ring has at least one lane")

    @property
    def nbytes(self) -> int:
        """Return the packed size of a vector in bytes."""
        return sum(lane.nbytes for lane in self.lanes)

    def zero(self) -> Vector:
        """Return a fresh vector of zeros."""
        return tuple(np.zeros(lane.length, dtype=lane.dtype) for lane in self.lanes)

    def vector(self, lanes: Sequence[Sequence[int] | NDArray[np.integer[Any]]]) -> Vector:
        """Return `lanes` as a vector of this ring, each element reduced modulo its q.

        Raises:
            ValueError: if the number or length of the lanes is not the ring's.
        """
        if [len(values) for values in lanes] != [lane.length for lane in self.lanes]:
            raise ValueError(f"lanes of {[lane.length for lane in self.lanes]} elements expected")
        pairs = zip(self.lanes, lanes, strict=True)
        return tuple(
            np.array([int(value) % lane.q for value in values], dtype=lane.dtype)
            for lane, values in pairs
        )

    def add(self, into: Vector, other: Vector) -> None:
        """Add `other` to `into`, in place."""
        for lane, total, part in zip(self.lanes, into, other, strict=True):
            lane.add(total, part)

    def subtract(self, into: Vector, other: Vector) -> None:
        """Subtract `other` from `into`, in place."""
        for lane, total, part in zip(self.lanes, into, other, strict=True):
            lane.subtract(total, part)

    def check(self, vector: Vector) -> None:
        """Raise ValueError unless `vector` is one of this ring's: lengths, types, range."""
        if len(vector) != len(self.lanes):
            raise ValueError(f"a vector of {len(self.lanes)} lanes expected, got {len(vector)}")
        for number, (lane, array) in enumerate(zip(self.lanes, vector, strict=True)):
            if array.shape != (lane.length,) or array.dtype != lane.dtype:
                raise ValueError(
                    f"lane {number}: {lane.length} of {lane.dtype} expected, "
                    f"got {array.shape} of {array.dtype}"
                )
            if not lane.fills_words and (array >= lane.q).any():
                raise ValueError(f"lane {number}: an element is not below {lane.q}")

    def pack(self, vector: Vector) -> bytes:
        """Return the `nbytes` packed bytes of `vector`."""
        pairs = zip(self.lanes, vector, strict=True)
        return b"".join(lane.pack(array) for lane, array in pairs)

    def unpack(self, data: bytes | memoryview) -> Vector:
        """Return the vector packed in `data`.

        Raises:
            ValueError: if the size is not `nbytes` or an element is outside its lane.
        """
        lanes = self._lanes_in(data)
        return tuple(lane if lane.flags.writeable else lane.copy() for lane in lanes)

    def add_packed(self, into: Vector, data: bytes | memoryview) -> None:
        """Add the vector packed in `data` to `into`, in place; lanes of whole words are not copied.

        Raises:
            ValueError: as `unpack`; then `into` is unchanged.
        """
        self.add(into, self._lanes_in(data))

    def check_packed(self, data: bytes | memoryview) -> None:
        """Raise ValueError if `unpack` would, without unpacking lanes of q = 2^b."""
        for lane, part in self._parts(data):
            lane.check_packed(part)

    def _lanes_in(self, data: bytes | memoryview) -> Vector:
        return tuple(lane.unpack(part) for lane, part in self._parts(data))

    def _parts(self, data: bytes | memoryview) -> Iterator[tuple[Lane, memoryview]]:
        if len(data) != self.nbytes:
            raise ValueError(f"a vector of {self.nbytes} bytes expected, got {len(data)}")
        view, start = memoryview(data), 0
        for lane in self.lanes:
            yield lane, view[start : start + lane.nbytes]
            start += lane.nbytes
