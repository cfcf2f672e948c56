"""`blindtally mechanisms` lists each, and its costs are those of the code."""

import json
import random

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from protocol.domains.strings import Listed
from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS, parse_question
from protocol.mechanisms.reports.dictionary import OraclePlan
from protocol.question_and_plan import Terms


def test_every_mechanism_is_listed_with_its_guarantee_and_cost() -> None:
    result = CliRunner().invoke(app, ["mechanisms", "--json", "-"])
    assert result.exit_code == 0, result.stderr
    rows = {row["mechanism"]: row for row in json.loads(result.stdout)["mechanisms"]}
    assert set(rows) == set(MECHANISMS)
    for name, row in rows.items():
        assert row["transport"] == ("report" if name in REPORT_MECHANISMS else "sum")
        assert all(row[column] for column in ("what", "guarantee", "cost"))


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("krr", 10),  # log2 d
        ("hadamard", 11),  # log2 d + 1
        ("recursive-hadamard", 11),
        ("ocms", 2 * 10 + 4),  # 2 log2 d + log2 m, m about 1 + e^epsilon
        ("ocms-gf", 10 + 4),
        ("olh", 40 + 4),
        ("apple-cms", 17 + 10),
        ("subset-selection", 1000),
        ("rappor", 1000),
    ],
)
def test_reports_have_about_the_bits_that_are_listed(name: str, bits: int) -> None:
    """Check 1,000 values, one of which stands for no item, at epsilon 2; fields are whole bits."""
    domain = Listed(items=tuple(str(n) for n in range(999)))
    asked = {"mechanism": name, "threshold": 1, "domain": domain, "epsilon": 2.0}
    terms = Terms(cohort_size=10, minimum=3)
    plan = MECHANISMS[name].first_plan(parse_question(asked), terms, "x", 1, random.Random(1))
    assert isinstance(plan, OraclePlan)
    assert plan.oracle.bits == pytest.approx(bits, abs=4)
    cost = MECHANISMS[name].description.cost
    assert ("d bits" in cost) == (bits == 1000 or name == "krr")
