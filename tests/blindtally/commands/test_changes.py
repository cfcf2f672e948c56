"""`blindtally changes`, and the analyst's methods behind it, against a real service."""

import asyncio
import json

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from client.analyst.analyst import Analyst
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from tests.blindtally.commands.conftest import play_one_round

QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=2, domain=Utf8(max_bytes=6), message_bytes=4524
)
TERMS = Terms(cohort_size=12, minimum=8, corrupt=0.1, dropout=0.2)
EARLY_ITEMS, LATE_ITEMS = {"always": 1, "early": 1}, {"always": 1, "late": 1}


@pytest.fixture(scope="module")
def studies(url: str) -> tuple[str, str]:
    """Return two studies: of a round of 12 early devices and one of late ones, and of late ones."""
    with Analyst(url) as analyst:
        both = analyst.create("both", QUESTION, TERMS, rounds=2)
        last = analyst.create("last", QUESTION, TERMS, rounds=1)
        for study, held in ((both, EARLY_ITEMS), (both, LATE_ITEMS), (last, LATE_ITEMS)):
            asyncio.run(play_one_round(url, study.view, [held] * 12))
    return both.id, last.id


def run(*args: str) -> tuple[int, str]:
    return run_command("changes", *args)


def run_command(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, args)
    return result.exit_code, result.output


def test_an_analyst_reads_series_changes_and_comparisons(
    url: str, studies: tuple[str, str]
) -> None:
    """The p-value of 12 tokens and none is 2^-11."""
    with Analyst(url) as analyst:
        study, last = map(analyst.study, studies)
        rates = study.series(["late", "always"])
        assert [(row.item, row.first_round, row.rate) for row in rates] == [
            ("late", 1, 0),
            ("late", 2, 1000),
            ("always", 1, 1000),
            ("always", 2, 1000),
        ]
        assert list(rates.to_pandas().columns)[:3] == ["item", "first_round", "last_round"]
        document = study.changes()
        assert {row.item: row.change for row in document.changes} == {
            "late": "new",
            "early": "gone",
        }
        assert study.changes((1, 1), (2, 2)) == document
        assert not study.changes(false_discovery_rate=1e-9).changes
        compared = study.compare(last)
        assert compared == study.compare(last.id)
        rows = {row.item: row for row in compared.changes}
        assert rows.keys() == {"always", "early", "late"}
        assert rows["early"].rate_after is None
        assert rows["always"].rate_before == rows["always"].rate_after == 1000


def test_the_command_shows_changes(url: str, studies: tuple[str, str]) -> None:
    code, text = run(studies[0], "--url", url)
    assert code == 0, text
    assert "2 of 3 items changed from round 1 to round 2" in text
    assert [line.split()[:2] for line in text.splitlines() if line.startswith(("late", "early"))]
    assert "inf" in text


def test_the_command_shows_rates_and_two_studies(url: str, studies: tuple[str, str]) -> None:
    args = ["--item", "late", "--url", url]
    code, text = run(studies[0], *args)
    assert code == 0, text
    assert "counted" in text
    code, text = run(studies[0], *args, "--before", "1-1", "--after", "2-2", "--json", "-")
    document = json.loads(text)
    assert [row["rate"] for row in document["rates"]] == [0, 1000]
    assert [row["item"] for row in document["changes"]["changes"]] == ["early", "late"]
    code, text = run_command("studies", "compare", *studies, "--url", url)
    assert code == 0, text
    assert "items differ between the studies" in text
    code, text = run_command("studies", "compare", *studies, "--url", url, "--json", "-")
    assert json.loads(text)["tested"] == 3
    assert json.loads(text)["differences"] == []
    question = QUESTION.model_copy(update={"contribution": 1})
    with Analyst(url) as analyst:
        other = analyst.create("other", question, TERMS, rounds=1)
        asyncio.run(play_one_round(url, other.view, [{"always": 1}] * 12))
    code, text = run_command("studies", "compare", studies[0], other.id, "--url", url)
    assert code == 0, text
    assert "the studies ask different questions. the largest number of items that a" in text
    code, text = run_command("studies", "compare", studies[0], "nobody", "--url", url)
    assert code == 1
    assert "no such study" in text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--before", "1"], "--before takes FIRST-LAST"),
        (["--before", "1-1"], "--before and --after go together"),
        (["--item", "never"], "(`blindtally studies show` lists the heavy hitters of a study)"),
    ],
)
def test_mistakes_are_explained(
    args: list[str], reason: str, url: str, studies: tuple[str, str]
) -> None:
    code, text = run(studies[0], *args, "--url", url)
    assert code == (1 if "--item" in args else 2)
    assert reason in " ".join(text.split())
