"""One sentence says the answer: for no, one and many items, with and without shares."""

import pytest

from protocol.api.headline import headline, known_digits, share_text
from protocol.api.messages import HeavyHitter, QueryResult
from protocol.estimation.number_summary import NumberSummary
from protocol.mechanisms.registry import parse_question
from tests.server.harness import histogram_request

UTF8 = {"kind": "utf8", "max_bytes": 9}


def rows(*counts: tuple[str, float, float]) -> list[HeavyHitter]:
    return [
        HeavyHitter(item=item, estimate=count, standard_error=error, low=count, high=count)
        for item, count, error in counts
    ]


LISTED = "3 items were counted at 8 or more of 1,372 devices"
ROWS = rows(("{b}\x1b", 178.4, 9.0), ("c", 12, 0), ("d", 9, 0))


@pytest.mark.parametrize(
    ("threshold", "devices", "listed", "sentence"),
    [
        (8, 372, [], "No item was counted at 8 or more of 372 devices."),
        (
            8,
            372,
            ROWS[1:2],
            "1 item was counted at 8 or more of 372 devices; c at 12 of them (3.2%).",
        ),
        (8, 1_372, ROWS, LISTED + r"; {b}\x1b at about 178 of them (13%)."),
        (8, None, ROWS[1:], "2 items were counted 8 times or more; c 12 times."),
    ],
)
def test_a_list_has_its_length_and_its_first_item(
    threshold: float, devices: int | None, listed: list[HeavyHitter], sentence: str
) -> None:
    asked = {
        "mechanism": "tracked",
        "threshold": threshold,
        "contribution": 2,
        "message_bytes": 2984,
    }
    question = parse_question(asked | {"domain": UTF8})
    assert str(headline(question, devices, listed)) == sentence


def test_answers_from_a_list_of_options_are_called_options() -> None:
    asked = {"mechanism": "tracked", "threshold": 8, "contribution": 1, "message_bytes": 2984}
    question = parse_question(asked | {"domain": {"kind": "listed", "items": ["c", "d", "e"]}})
    listed = str(headline(question, 40, ROWS[1:]))
    assert listed == "2 options were counted at 8 or more of 40 devices; c at 12 of them (30%)."


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((28.499999999999996, 27.3, 29.6), "28.5"),
        ((0.123456, 0.1233, 0.1236), "0.12346"),
        ((1234.5, 1100, 1400), "1,230"),
        ((-0.01, -0.9, 0.9), "0.0"),
        ((647.99, 647.99, 647.99), "647.99"),
        ((3.0, 2.0, float("inf")), "3"),
    ],
)
def test_a_number_has_the_digits_that_its_interval_knows(
    numbers: tuple[float, float, float], text: str
) -> None:
    assert known_digits(*numbers) == text


def test_numbers_have_their_median() -> None:
    question = parse_question(histogram_request()["question"])
    median = QueryResult(at=0.5, value=32.54, low=30, high=34.5)
    result = headline(question, 250, median=median)
    assert str(result).startswith(
        "Half of 250 devices have 32.5 or less; the true median is between"
    )
    assert headline(question, 250) is None


@pytest.mark.parametrize(
    ("rounding", "end"), [(4.8e-5, "3,860."), (0.5, "3,860 (each rounded by up to 0.5).")]
)
def test_a_rounding_is_stated_where_it_shows(rounding: float, end: str) -> None:
    domain = {"kind": "interval", "low": 0, "high": 100, "length": 10}
    asked = {"mechanism": "number-sums", "threshold": 5, "contribution": 1, "message_bytes": 1984}
    zeros = dict.fromkeys(NumberSummary.model_fields, 0.0) | {"segment": None, "devices": 80}
    numbers = NumberSummary(**zeros | {"sum": 3860, "mean": 48.25, "rounding": rounding})
    text = str(headline(parse_question(asked | {"domain": domain}), 80, numbers=numbers))
    assert text == f"The mean of the numbers of 80 devices is 48.25, and their sum is {end}"


@pytest.mark.parametrize(
    ("share", "text"), [(1, "100%"), (0.476, "48%"), (0.0949, "9.5%"), (0.002, "0.20%"), (0, "0%")]
)
def test_a_share_has_two_significant_digits(share: float, text: str) -> None:
    assert share_text(share) == text
