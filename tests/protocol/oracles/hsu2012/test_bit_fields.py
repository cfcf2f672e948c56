"""Reports as bytes: one form each, and no other accepted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.oracles.hsu2012.bit_fields import BitFields


@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=4), st.integers(1, 5), st.data())
def test_fields_come_back_from_their_bytes(
    bounds: list[int], count: int, data: st.DataObject
) -> None:
    layout = BitFields(bounds, count)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    fields = [rng.integers(0, bound, (3, count)) for bound in bounds]
    reports = layout.pack(fields)
    assert reports.shape == (3, layout.nbytes)
    assert layout.bits == count * sum((bound - 1).bit_length() for bound in bounds)
    if layout.bits:
        assert all((a == b).all() for a, b in zip(fields, layout.unpack(reports), strict=True))


def test_the_lowest_bit_of_the_first_field_is_the_lowest_of_the_first_byte() -> None:
    layout = BitFields((6, 3))
    reports = layout.pack([np.array([[5]]), np.array([[2]])])
    assert reports.tolist() == [[0b10_101]]


@pytest.mark.parametrize(
    ("reports", "message"),
    [
        (np.zeros((2, 2), np.uint8), r"shape \(n, 1\)"),
        (np.zeros((2, 0), np.uint8), r"shape \(n, 1\)"),
        (np.zeros(1, np.uint8), r"shape \(n, 1\)"),
        (np.zeros((2, 1), np.int64), "must be uint8"),
        (np.zeros((0, 1), np.uint8), "reports are empty"),
        (np.array([[0], [6]], np.uint8), "report 1 has a field of 6 or more"),
        (np.array([[0], [0b11_000]], np.uint8), "report 1 has a field of 3 or more"),
        (np.array([[0b100000]], np.uint8), "bits after the first 5"),
    ],
)
def test_other_reports_are_refused(reports: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BitFields((6, 3)).unpack(reports)
