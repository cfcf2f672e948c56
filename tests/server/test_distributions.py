"""Quantiles, ranks, ranges and frequencies of a study, over HTTP."""

import re
from typing import Any

import httpx
import numpy as np
import pytest
from sqlalchemy import insert

from protocol.api.messages import QueryResults
from protocol.mechanisms.central.hierarchical_histogram import (
    COUNTS_ARRAY,
    NOISE_ARRAY,
    SAMPLING_VARIANCE_ARRAY,
)
from protocol.study_state import StudyState
from server.db.schema import StudyStateRow
from tests.server.cohort import refused
from tests.server.harness import Served

NUMBERS = {
    "mechanism": "hierarchical-histogram",
    "threshold": 1,
    "domain": {"kind": "interval", "low": 0, "high": 16, "alpha": 4, "length": 2},
    "message_bytes": 2584,
    "epsilon": 4,
    "delta": 0.1,
}
WORDS = NUMBERS | {"domain": {"kind": "alphabet", "characters": "-abc", "length": 2, "pad": "-"}}


async def counted(served: Served, question: dict[str, Any], *cells: int) -> str:
    """Return a study of devices in these of 16 cells, a hundred in each, with next to no noise."""
    study = await served.create(question=question)
    leaves = 100 * np.bincount(cells, minlength=16)
    arrays = {
        COUNTS_ARRAY: np.concatenate([leaves.reshape(4, 4).sum(axis=1), leaves]).astype(float),
        NOISE_ARRAY: np.full(1, 1e-6),
        SAMPLING_VARIANCE_ARRAY: np.full(1, 1e-6),
    }
    row = {"study": study, "body": StudyState(arrays=arrays).pack()}
    database = served.store.database
    await database.write(lambda session: session.execute(insert(StudyStateRow), row))
    return study


async def ask(served: Served, study: str, what: str, **params: Any) -> httpx.Response:
    return await served.client.get(f"/v1/studies/{study}/{what}", params=params)


async def evaluate(served: Served, study: str, what: str, **params: Any) -> list[Any]:
    answer = await ask(served, study, what, **params)
    assert answer.status_code == 200, answer.text
    page = QueryResults.model_validate_json(answer.content)
    assert all(row.low <= row.value <= row.high for row in page.results)
    return [row.value for row in page.results]


async def test_numbers_have_quantiles_ranks_and_ranges(served: Served) -> None:
    study = await counted(served, NUMBERS, 1, 3, 3, 9, 9, 15)
    (median,) = await evaluate(served, study, "quantiles", q=0.5)
    assert 3 <= median <= 4
    assert await evaluate(served, study, "ranks", x=["4", "9.0", "16"]) == [0.5, 0.5, 1]
    assert await evaluate(served, study, "masses", low=["1", "8"], high=["4", "16"]) == [0.5, 0.5]
    assert (await evaluate(served, study, "cdf", points=5)) == [
        0,
        0.5,
        0.5,
        pytest.approx(5 / 6),
        1,
    ]


async def test_strings_have_frequencies(served: Served) -> None:
    study = await counted(served, WORDS, 6, 6, 6, 6, 12, 12)  # ab, c
    results = await evaluate(served, study, "frequencies", prefix=["a", "ab", "b", "c"])
    assert results == [pytest.approx(4 / 6), pytest.approx(4 / 6), 0, pytest.approx(2 / 6)]


LISTED_WORDS = {"kind": "listed", "items": ["ab", "c"]}
HASHED = {"kind": "hashed", "max_bytes": 20}
TEXT, SEGMENTS = {"kind": "utf8", "max_bytes": 4}, ["north", "south"]
PAIRS = {"kind": "product", "segments": SEGMENTS, "inner": TEXT}
TRACKED = {"mechanism": "tracked", "threshold": 10, "contribution": 1, "message_bytes": 3784}
TRIE = WORDS | {"mechanism": "triehh", "contribution": 1, "message_bytes": 21_784}
OPTIONS = {"mechanism": "krr", "threshold": 10, "domain": LISTED_WORDS, "epsilon": 1}
INTERVAL = {"domain": NUMBERS["domain"]}
MEANS = {"mechanism": "number-sums", "message_bytes": 1984} | INTERVAL


@pytest.mark.parametrize(
    ("question", "other_answer"),
    [
        (WORDS, "Ask for the heavy hitters of this study, or for frequencies of prefixes"),
        (TRIE, "or for frequencies of prefixes"),
        (TRACKED | {"domain": LISTED_WORDS}, "Ask for the heavy hitters"),
        (TRACKED | {"domain": HASHED}, "Ask for the heavy hitters"),
        (TRACKED | {"domain": PAIRS}, "Ask for the heavy hitters"),
        (TRACKED | INTERVAL, "Ask for the heavy hitters"),
        (OPTIONS, "Ask for the heavy hitters"),
        (MEANS, "Ask for the means of this study"),
    ],
)
async def test_only_distributions_of_numbers_have_ranks(
    served: Served, question: dict[str, Any], other_answer: str
) -> None:
    study = await served.create(question=question)
    for what, params in (
        ("quantiles", {"q": 0.5}),
        ("ranks", {"x": "c"}),
        ("masses", {"low": "a", "high": "c"}),
        ("cdf", {"points": 3}),
    ):
        for headers in ({}, {"Accept": "text/csv"}):
            answer = await served.client.get(
                f"/v1/studies/{study}/{what}", params=params, headers=headers
            )
            assert other_answer in refused(answer, 422, "malformed")
    page = (await served.client.get(f"/studies/{study}")).text
    assert not {"Quantiles", "Distribution</h2>", "Cumulative"} & set(re.findall(r"[\w</>]+", page))


async def test_nonsense_is_refused(served: Served) -> None:
    study = await counted(served, NUMBERS, 3)
    for what, params in (
        ("quantiles", {"q": 1.5}),
        ("quantiles", {"q": "nan"}),
        ("quantiles", {}),
        ("quantiles", {"q": 0.5, "beta": 0}),
        ("quantiles", {"q": 0.5, "estimator": "best"}),
        ("ranks", {"x": "17"}),
        ("ranks", {"x": "nan"}),
        ("ranks", {"x": "high"}),
        ("masses", {"low": "3", "high": "2"}),
        ("masses", {"low": ["1", "2"], "high": "3"}),
        ("cdf", {"points": 1}),
        ("frequencies", {"prefix": "a"}),
    ):
        refused(await ask(served, study, what, **params), 422, "malformed")


async def test_what_is_not_there_is_refused(served: Served) -> None:
    refused(await ask(served, "nobody", "quantiles", q=0.5), 404, "not-found")
    empty = await served.create(question=NUMBERS)
    refused(await ask(served, empty, "quantiles", q=0.5), 409, "wrong-state")
    waiting = await served.create(question=NUMBERS, start=False)
    refused(await ask(served, waiting, "cdf"), 409, "wrong-state")
    other = await served.create()
    detail = refused(await ask(served, other, "quantiles", q=0.5), 422, "malformed")
    assert "has no quantiles, ranks or ranges" in detail
    detail = refused(await ask(served, other, "frequencies", prefix="a"), 422, "malformed")
    assert "counts no prefixes" in detail
