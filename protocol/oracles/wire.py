"""Reports as rows of bytes: unsigned fields of fixed widths, one after the other.

Field by field and bit by bit, the lowest first, from the lowest bit of the first byte on. What
is left of the last byte is zero, so that a report has one form only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reports = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Fields:
    """`count` fields of each of `bounds`, in this order; a field is below its bound."""

    bounds: Sequence[int]
    count: int = 1

    @property
    def bits(self) -> int:
        """Return the bits of a report."""
        return self.count * sum(self._widths)

    @property
    def bytes(self) -> int:
        """Return the bytes of a report."""
        return -(-self.bits // 8)

    def pack(self, fields: Sequence[NDArray[np.int64]]) -> Reports:
        """Return the reports, shape `(n, bytes)`, of one array of shape `(n, count)` a bound."""
        rows = list[Reports]()
        for field, width in zip(fields, self._widths, strict=True):
            bits = np.empty((*field.shape, width), np.uint8)
            for bit in range(width):
                bits[:, :, bit] = field >> bit & 1
            rows.append(bits.reshape(len(field), -1))
        return np.packbits(np.concatenate(rows, axis=1), axis=1, bitorder="little")

    def unpack(self, reports: Reports) -> list[NDArray[np.int64]]:
        """Return the fields of `reports`, one array of shape `(n, count)` a bound.

        Raises:
            ValueError: if `reports` is not of uint8 and shape `(n, bytes)`, n >= 1, or has a field
                that is out of range, or bits that are not zero after the last.
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

    def check(self, reports: Reports) -> None:
        """Check the shape of `reports`; `unpack` says what is raised."""
        if reports.dtype != np.uint8 or reports.ndim != 2 or reports.shape[1] != self.bytes:
            raise ValueError(
                f"reports must be uint8 of shape (n, {self.bytes}), "
                f"not {reports.dtype} of {reports.shape}"
            )
        if not len(reports):
            raise ValueError("reports are empty: one or more are needed")

    @property
    def _widths(self) -> list[int]:
        return [(bound - 1).bit_length() for bound in self.bounds]
