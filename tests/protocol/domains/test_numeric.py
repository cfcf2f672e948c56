"""Numbers become cells: each cell has one name that leads back to it, despite rounding."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from client.device.encoding import LeftOutReason, make_contribution
from protocol.domains import Domain
from protocol.domains.numeric import NumericInterval
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.randomness import system_words

UNIT = NumericInterval(low=0, high=1, alpha=4, length=10)
DAYS = NumericInterval(low=-3.5, high=365, alpha=10, length=3)


@st.composite
def intervals(draw: st.DrawFn) -> NumericInterval:
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    low, high = sorted(draw(st.tuples(numbers, numbers)))
    alpha = draw(st.integers(2, 256))
    length = draw(st.integers(1, int(48 * math.log(2) / math.log(alpha))))
    try:
        return NumericInterval(low=low, high=high, alpha=alpha, length=length)
    except ValidationError:  # no cells: too narrow for floats, or too wide
        assume(False)
        raise


@given(interval=intervals(), data=st.data())
def test_a_name_leads_back_to_its_cell(interval: NumericInterval, data: st.DataObject) -> None:
    item = repr(data.draw(st.floats(interval.low, interval.high)))
    name = interval.canonical(item)
    assert name is not None
    assert interval.canonical(name) == name
    assert interval.digits_of([name]).tolist() == interval.digits_of([item]).tolist()
    assert interval.decode(interval.encode([item])) == [name]
    assert interval.item_of(interval.digits_of([item])[0]) == name
    assert interval.names_of(interval.values_of([item])) == [name]
    assert int(interval.values_of([item])[0]) < interval.value_count


@given(interval=intervals(), data=st.data())
def test_every_cell_has_a_name_that_is_in_it(
    interval: NumericInterval, data: st.DataObject
) -> None:
    cells = st.integers(0, interval.cells - 1) | st.sampled_from([0, interval.cells - 1])
    value = data.draw(cells)
    (name,) = interval.names_of(np.array([value], np.uint64))
    assert name is not None
    assert interval.values_of([name]).tolist() == [value]


@given(interval=intervals(), data=st.data())
def test_cells_are_in_the_order_of_numbers(interval: NumericInterval, data: st.DataObject) -> None:
    numbers = st.lists(st.floats(interval.low, interval.high), min_size=2)
    values = np.sort(np.array(data.draw(numbers)))
    assert (np.diff(interval.cells_of(values)) >= 0).all()
    assert (np.diff(interval.positions_of(values)) >= 0).all()


def test_the_ends_are_in_the_first_and_the_last_cell() -> None:
    assert UNIT.digits_of(["0", "1", "0.25", "0.2499999"]).tolist() == [
        [0] * 10,
        [3] * 10,
        [1] + [0] * 9,
        [0] + [3] * 9,
    ]
    assert UNIT.canonical("1") == "0.9999995"


@pytest.mark.parametrize(
    ("low", "high", "alpha", "length"),
    [(0, 100, 10, 2), (0, 60, 2, 7), (18, 99, 3, 4), (-1e9, 1e9, 4, 4), (0, 1e-9, 2, 6)],
)
def test_the_name_of_a_cell_has_no_more_digits_than_the_cell(
    low: float, high: float, alpha: int, length: int
) -> None:
    domain = NumericInterval(low=low, high=high, alpha=alpha, length=length)
    names = domain.names_of(np.arange(domain.cells, dtype=np.uint64))
    cells = domain.cells_of(np.array(names, np.float64))
    assert cells.tolist() == list(range(domain.cells))
    assert max(len(str(name).strip("-0.").partition("e")[0]) for name in names) <= 8


@pytest.mark.parametrize(
    "item", ["nan", "inf", "-inf", "1.0000001", "-1e-300", "", "a", "1,5", "0_1"]
)
def test_anything_but_a_number_of_the_interval_is_outside(item: str) -> None:
    assert item not in UNIT
    assert UNIT.canonical(item) is None
    assert UNIT.truncate(item) is None
    with pytest.raises(ValueError, match="outside the domain"):
        UNIT.encode([item])


def test_a_device_gives_one_item_for_all_numbers_of_a_cell() -> None:
    question = AdaptiveIbltQuestion(threshold=1, contribution=9, domain=DAYS, message_bytes=3784)
    held = {"12.1": 2, "12.2": 3, "366": 1, "80": 1}
    given = make_contribution(question, held, system_words)
    assert given.histogram == Counter({DAYS.canonical("12.1"): 5, DAYS.canonical("80"): 1})
    assert [(each.reason, each.items) for each in given.left_out] == [
        (LeftOutReason.OUTSIDE_DOMAIN, ("366",))
    ]


def test_other_domains_admit_items_as_they_are() -> None:
    assert Utf8(max_bytes=3).canonical("abc") == "abc"
    assert Utf8(max_bytes=3).canonical("abcd") is None


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ({"low": 1, "high": 1}, "low must be below high"),
        ({"low": -1e308, "high": 1e308}, "low must be below high"),
        ({"low": "nan", "high": 1}, "low"),
        ({"low": 0, "high": 1, "alpha": 257}, "alpha"),
        ({"low": 0, "high": 1, "alpha": 4, "length": 25}, "2\\^48 cells"),
        ({"low": 1e9, "high": 1e9 + 1, "alpha": 2, "length": 24}, "fewer digits"),
    ],
)
def test_intervals_that_make_no_sense_are_refused(fault: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        TypeAdapter(Domain).validate_python({"kind": "interval"} | fault)
