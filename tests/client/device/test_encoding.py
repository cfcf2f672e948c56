"""Contribution of a device: which of its records it leaves out."""

import math
from collections import Counter
from datetime import date
from decimal import Decimal
from enum import Enum
from io import BytesIO, StringIO
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas import DataFrame, Series

from client.device.encoding import (
    Contribution,
    Items,
    LeftOut,
    LeftOutReason,
    count_items,
    make_contribution,
)
from protocol.domains.strings import Alphabet
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE
from tests.protocol.chance import seeded


class _Place(str, Enum):  # noqa: UP042 - people have such classes
    HOME = "home"


QUESTION = AdaptiveIbltQuestion(
    threshold=5,
    contribution=6,
    domain=Alphabet(characters="\0abc", length=3, pad="\0"),
    message_bytes=4744,
)


def test_what_is_outside_the_domain_takes_no_room_under_the_bound() -> None:
    holdings = {"a": 4, "b": 2, "outside": 100, "d": 1}
    contribution = make_contribution(QUESTION, holdings, seeded(1))
    assert contribution.histogram == {"a": 4, "b": 2}
    outside = LeftOut(LeftOutReason.OUTSIDE_DOMAIN, 101, ("outside", "d"))
    assert contribution.left_out == (outside,)


def test_more_copies_of_an_item_than_the_policy_allows_are_left_out() -> None:
    holdings = {"a": 5, "b": 1}
    contribution = make_contribution(QUESTION, holdings, seeded(1), max_copies=2)
    assert contribution.histogram == {"a": 2, "b": 1}
    assert contribution.left_out == (LeftOut(LeftOutReason.TOO_MANY_COPIES, 3, ("a",)),)


def test_records_beyond_the_contribution_bound_are_left_out() -> None:
    contribution = make_contribution(QUESTION, {"a": 8}, seeded(1))
    expected = LeftOut(LeftOutReason.OVER_BOUND, 2, ("a",))
    assert contribution == Contribution({"a": 6}, (expected,))


def test_records_that_are_left_out_reach_no_log() -> None:
    assert "secret" not in repr(LeftOut(LeftOutReason.OUTSIDE_DOMAIN, 1, ("secret",)))


@pytest.mark.parametrize(
    ("items", "histogram"),
    [
        (["a", 2.5, "a"], {"a": 2, "2.5": 1}),
        ({"a": 3}, {"a": 3}),
        (
            [("north", "a:b"), ("south", 2.0), ("south", 2.5)],
            {"north:a:b": 1, "south:2": 1, "south:2.5": 1},
        ),
        ({"north": "37.5"}, {"north:37.5": 1}),
        ({404: 2, 500.0: 1, "404": 1, 0.5: 1}, {"404": 3, "500": 1, "0.5": 1}),
        (
            [404, 404.0, np.float32(404), np.int64(500), 2.0**60],
            {"404": 3, "500": 1, str(2.0**60): 1},
        ),
        (Counter(["maps", "maps", "mail"]).items(), {"maps": 2, "mail": 1}),
        ({"de": Counter(["maps", "maps"]).items()}, {"de:maps": 2}),
        (
            {"de": pa.array(["maps", "maps"]), "at": (each for each in "ab")},
            {"de:maps": 2, "at:a": 1, "at:b": 1},
        ),
        ([_Place.HOME, np.True_, True], {"home": 1, "True": 2}),
        (Series(["maps", "maps", "mail"]).value_counts().to_dict(), {"maps": 2, "mail": 1}),
        (Series([404, 404, 500]).value_counts().to_dict(), {"404": 2, "500": 1}),
        (Series([404, None, 500]).dropna(), {"404": 1, "500": 1}),
        (Series([None, None, None, 404, 2.5]).dropna(), {"404": 1, "2.5": 1}),
        (Series(["maps", "mail"], index=[7, 3]), {"maps": 1, "mail": 1}),
        (Series([404, 500]).head(1), {"404": 1}),
        (Series([404, None, 404]).value_counts().to_dict(), {"404": 2}),
        ({2024: ["a"], "north": {"a": 2, 3: 1}}, {"2024:a": 1, "north:a": 2, "north:3": 1}),
        ({"north": ["a", "a"], "south": [2.5], "x:b": 4}, {"north:a": 2, "south:2.5": 1, "x:b": 4}),
    ],
)
def test_items_are_texts_numbers_counts_or_pairs(items: Items, histogram: dict[str, int]) -> None:
    assert count_items(items) == histogram


_CODES = Series([404, 404, 7, 500])
_LABELLED_COUNTS: list[Any] = [
    _CODES.value_counts(),
    Series([0, 0, 1]).value_counts(),
    _CODES.groupby(_CODES.to_numpy()).size(),
    _CODES.value_counts().astype(float),
    _CODES.value_counts(normalize=True),
    Series(Counter([404, 404, 500])),
    Series(["maps", "mail"]).value_counts().astype("Int64"),
    Series(["maps"]).value_counts().add(Series(["mail"]).value_counts(), fill_value=0),
    Series({"maps": 2.0}),
    Counter(["maps", "maps"]).values(),
]


@pytest.mark.parametrize(
    "items",
    [
        Series(["maps", "maps", "mail"]).value_counts(),
        Series([404, 404, 500], name="code").value_counts(),
        DataFrame({"user": [1, 1], "item": ["a", "b"]}).groupby("item").size(),
        Counter(["maps", "maps"]).most_common(),
        list(Counter(["maps"]).items()),
        zip(["maps"], np.array([2]), strict=True),
        *_LABELLED_COUNTS,
        *({"de": each} for each in _LABELLED_COUNTS),
        [("maps", 2.0), ("mail", 1.0)],
        ["mail", ("maps", 2.0)],
        {"maps": "2"},
        {"maps": "2.0"},
        [("maps", "2"), ("mail", "1")],
    ],
)
def test_numbers_that_may_be_counts_are_refused_with_the_two_ways_out(items: Items) -> None:
    with pytest.raises(ValueError, match=r"pass the mapping|pass column\.to_dict\(\)"):
        count_items(items)


@pytest.mark.parametrize(
    "items",
    [
        [("a", "b", "c")],
        [["maps", 2]],
        {b"maps": 1},
        {None: 1},
        {math.nan: 1},
        {"north": b"maps"},
        {("maps", "x"): 1},
        {"north": {"a": 1.5}},
        {"north": [None]},
        [(None, "a")],
        np.unique(np.array(["a", "b"]), return_counts=True),
    ],
)
def test_what_is_not_an_item_is_refused_with_the_item(items: Any) -> None:
    with pytest.raises(ValueError, match=r"(an item|the count of an item) is .*got"):
        count_items(items)


@pytest.mark.parametrize("items", [StringIO("maps\n"), BytesIO(b"maps\n")])
def test_a_file_whose_lines_have_ends_is_not_a_list_of_items(items: Items) -> None:
    for each in (items, {"de": items}):
        with pytest.raises(ValueError, match="must be a list, not a file"):
            count_items(each)  # type: ignore[arg-type]


def test_a_column_of_a_data_frame_is_a_list_of_items_and_the_frame_is_not() -> None:
    frame = DataFrame({"city": ["Paris", "Rome", "Rome"], "minutes": [1, 2, 3]})
    assert count_items(frame["city"]) == {"Paris": 1, "Rome": 2}
    assert count_items(frame["minutes"]) == {"1": 1, "2": 1, "3": 1}
    for table in (frame, {"de": frame}):
        with pytest.raises(ValueError, match="pass one column"):
            count_items(table)
    with pytest.raises(ValueError, match="an item is a text or a number, got nan"):
        count_items(frame["minutes"].where(frame["minutes"] > 1))


def test_a_column_of_an_arrow_table_is_a_list_of_items_and_the_table_is_not() -> None:
    table = pa.table({"city": ["Paris", "Rome", "Rome"], "minutes": [1, 2, None]})
    assert count_items(table["city"]) == {"Paris": 1, "Rome": 2}
    assert count_items(table["city"].combine_chunks().dictionary_encode()) == {
        "Paris": 1,
        "Rome": 2,
    }
    with pytest.raises(ValueError, match="pass one column"):
        count_items(table)
    with pytest.raises(ValueError, match="got None: leave out missing values"):
        count_items(table["minutes"])


@pytest.mark.parametrize(
    ("items", "fault"),
    [
        (
            {"item": "Paris", "count": 2},
            "counts of items, or an item of each segment, and not both",
        ),
        (enumerate(["Paris"]), r"not enumerate\(items\): pass the items"),
        ([date(2026, 11, 29)], "got datetime.date.*: pass its text"),
        ([Decimal("1.5")], "got Decimal.*: pass its text"),
        ([math.nan], "got nan: leave out missing values"),
        ([("a:b", "c")], "a segment contains no ':'"),
        ({"a:b": ["c"]}, "a segment contains no ':'"),
        (None, "must be a list or a mapping of counts, got"),
        (np.array(3), "must be a list or a mapping of counts, got"),
        ({"maps": np.array(3)}, "must be a list or a mapping of counts, got"),
        ("Paris", r"must be a list, not one text: pass \[.*'Paris'"),
        (b"Paris", r"must be a list, not one text: pass \[.*'Paris'"),
        (bytearray(b"Paris"), r"must be a list, not one text: pass \[.*'Paris'"),
        ({"Paris": -1}, "the count of an item is a whole number"),
        ({"Paris": 2.5}, "the count of an item is a whole number"),
        ({"Paris": None}, "the count of an item is a whole number"),
    ],
)
def test_the_error_states_what_to_pass(items: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        count_items(items)


@pytest.mark.parametrize("item", [None, b"Paris", ["Paris"], math.nan])
def test_an_item_is_a_text_or_a_number(item: Any) -> None:
    for items in ([item], [("north", item)], {"north": [item]}):
        with pytest.raises(ValueError, match="an item is a text or a number"):
            count_items(items)


def test_a_count_is_the_weight_of_an_item() -> None:
    """Here the minutes that each device used an application, at most 6 of them."""
    mechanism, chance = SUM_MECHANISMS["adaptive-iblt"], seeded(1)
    terms = Terms(cohort_size=5, minimum=3)
    plan = mechanism.first_plan(QUESTION, terms, "weights", 1, Random(1))
    assert plan.t == 1  # the table holds all tokens
    minutes: tuple[Items, ...] = ({"a": 3, "b": 1}, {"a": 2}, {"b": 9})
    held = [make_contribution(QUESTION, count_items(each), chance).histogram for each in minutes]
    total = mechanism.encode_sum(plan, held, chance)
    answer = mechanism.decode(plan, total, len(held), EMPTY_STATE)
    assert {row.item: row.count for row in answer.estimates} == {"a": 5, "b": 7}


@given(
    st.dictionaries(st.text("abcx", min_size=1, max_size=4), st.integers(1, 9)), st.integers(0, 99)
)
def test_no_device_gives_more_than_its_bound_or_items(holdings: dict[str, int], seed: int) -> None:
    contribution = make_contribution(QUESTION, holdings, seeded(seed))
    inside = {item: count for item, count in holdings.items() if item in QUESTION.domain}
    assert sum(contribution.histogram.values()) == min(sum(inside.values()), 6)
    assert all(0 < count <= inside[item] for item, count in contribution.histogram.items())
    assert sum(holdings.values()) == sum(contribution.histogram.values()) + sum(
        left_out.count for left_out in contribution.left_out
    )
