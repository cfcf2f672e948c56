"""Reports as rows of bytes: unsigned fields of fixed widths, one after the other.

Fields follow each other bit by bit, the lowest bit first, from the lowest bit of the first byte.
The bits after the last field are zero, so that a report has one form only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.numerics.arrays import PackedReports
from protocol.oracles.limits import check_report_shape


@dataclass(frozen=True, slots=True)
class BitFields:
    """Fields of a report: `count` for each of `bounds` in this order, each below its bound."""

    bounds: Sequence[int]
    count: int = 1

    @property
    def bits(self) -> int:
        return self.count * sum(self._widths)

    @property
    def nbytes(self) -> int:
        return -(-self.bits // 8)

    def pack(self, fields: Sequence[NDArray[np.int64]]) -> PackedReports:
        """Return the reports, shape `(n, nbytes)`, of one array of shape `(n, count)` per bound."""
        rows = list[PackedReports]()
        for field, width in zip(fields, self._widths, strict=True):
            bits = np.empty((*field.shape, width), np.uint8)
            for bit in range(width):
                bits[:, :, bit] = field >> bit & 1
            rows.append(bits.reshape(len(field), -1))
        return np.packbits(np.concatenate(rows, axis=1), axis=1, bitorder="little")

    def unpack(self, reports: PackedReports) -> list[NDArray[np.int64]]:
        """Return the fields of `reports`, one array of shape `(n, count)` per bound.

        Raises ValueError if `reports` is malformed, or bits after the last field are not zero.
        """
        self.check(reports)
        bits = np.unpackbits(reports, axis=1, bitorder="little")
        if bits[:, self.bits :].any():
            raise ValueError(f"reports have bits after the first {self.bits}, which must be 0")
        fields, at = list[NDArray[np.int64]](), 0
        for bound, width in zip(self.bounds, self._widths, strict=True):
            group = bits[:, at : at + self.count * width].reshape(len(bits), self.count, width)
            at += self.count * width
            field = np.zeros(group.shape[:2], np.int64)
            for bit in range(width):
                field |= group[:, :, bit].astype(np.int64) << bit
            if (field >= bound).any():
                row = int(np.flatnonzero((field >= bound).any(axis=1))[0])
                raise ValueError(f"report {row} has a field of {bound} or more, out of range")
            fields.append(field)
        return fields

    def check(self, reports: PackedReports) -> None:
        """Raise ValueError if `reports` is not of uint8 and shape `(n, nbytes)`, n >= 1."""
        check_report_shape(reports, self.nbytes)
        if not len(reports):
            raise ValueError("reports are empty: one or more are needed")

    @property
    def _widths(self) -> list[int]:
        return [(bound - 1).bit_length() for bound in self.bounds]
