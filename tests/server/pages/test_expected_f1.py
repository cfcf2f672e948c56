"""The F1 that the form shows: between simulated studies, at once, and as simulations find it."""

import tomllib
from dataclasses import astuple, replace
from itertools import product
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import numpy as np
import pytest

from protocol.mechanisms.registry import MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes_of
from server.pages.forms.expected_f1 import (
    TABLE_FILE,
    F1Table,
    StudyPoint,
    expected_f1,
    expected_f1_of,
    f1_table,
)
from tools.make_f1_table import simulated_f1

DEFAULT = StudyPoint(
    rounds=5,
    threshold=20,
    tokens=600,
    contribution=3,
    words=1000,
    max_bytes=64,
    item_bytes=8,
    zipf=1.0,
)
SCALES = [1.0] * 8 + [0.5]


def plan_of(mechanism: str = "tracked", *, rounds: int = 5, **question: Any) -> AnyPlan:
    fields = {"mechanism": mechanism, "threshold": 20, "contribution": 3}
    terms = Terms(cohort_size=200, minimum=100)
    fields |= {"message_bytes": message_bytes_of(terms, 2 * question.pop("words", 1000))}
    fields |= {"domain": {"kind": "hashed", "max_bytes": 64}} | question
    return MECHANISMS[mechanism].first_plan(parse_question(fields), terms, "x", rounds, Random(1))


def test_f1_is_that_of_a_study_in_the_table_and_is_interpolated_between_two() -> None:
    more = replace(DEFAULT, words=2000)
    table = F1Table([[*astuple(DEFAULT), 0.5], [*astuple(more), 0.9]], SCALES, [1e-4, 0.0])
    low, middle, high = table.f1([DEFAULT, replace(DEFAULT, words=1414), more])
    assert (low, high) == (pytest.approx(0.5, abs=0.01), pytest.approx(0.9, abs=0.01))
    assert middle == pytest.approx(0.7, abs=0.04)


def test_f1_beyond_the_table_is_that_of_its_edge_and_stays_a_share() -> None:
    more = replace(DEFAULT, words=2000, zipf=1.3)
    table = F1Table([[*astuple(DEFAULT), 0.5], [*astuple(more), 1.0]], SCALES, [1e-4, 0.0])
    edge, beyond = table.f1([more, replace(more, words=10**6, zipf=3)])
    assert 0.9 < edge <= beyond <= 1


def test_every_setting_of_the_form_has_an_answer_at_once() -> None:
    expected_f1_of(DEFAULT)  # the first answer reads the table
    start, answers = process_time(), 0
    settings = product((2, 5, 100), (5, 20, 1000), (50, 1000, 100_000), (300, 1000, 9000))
    for rounds, threshold, devices, words in settings:
        point = replace(DEFAULT, rounds=rounds, threshold=threshold, words=words)
        point = replace(point, tokens=devices * point.contribution)
        if point.is_covered:
            answers += 1
            expected = expected_f1_of(point)
            assert 0 <= expected.low <= expected.f1 <= expected.high <= 1
    assert answers > 20
    assert (process_time() - start) / answers < 0.5


def test_words_for_a_goal_rise_with_the_goal() -> None:
    expected = expected_f1(plan_of())
    assert expected is not None
    sizes = [size for size in expected.words_by_goal.values() if size is not None]
    assert len(sizes) >= 2
    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    "plan",
    [
        plan_of(rounds=1),
        plan_of(words=200),
        plan_of(threshold=500),
        plan_of(domain={"kind": "utf8", "max_bytes": 8}),
        plan_of("adaptive-iblt", domain={"kind": "utf8", "max_bytes": 8}),
    ],
)
def test_a_study_unlike_those_of_the_table_has_no_expected_f1(plan: AnyPlan) -> None:
    assert expected_f1(plan) is None


def test_the_table_is_installed_with_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert f"*{TABLE_FILE.suffix}" in project["tool"]["setuptools"]["package-data"]["*"]
    assert TABLE_FILE.stat().st_size < 100_000


def test_the_table_agrees_with_new_simulations() -> None:
    """Each mean is of six studies, so that its standard error is at most 0.04."""
    points = [
        DEFAULT,
        replace(DEFAULT, rounds=10, zipf=1.3, item_bytes=64),
        replace(DEFAULT, tokens=3000, threshold=50, words=500, zipf=0.5),
    ]
    for point, f1 in zip(points, f1_table().f1(points), strict=True):
        simulated = [simulated_f1(point, (9, run)) for run in range(6)]
        assert f1 == pytest.approx(np.mean(simulated), abs=0.1)
