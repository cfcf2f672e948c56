"""`blindtally privacy` against a real service: budgets made, spent, shown, and refused."""

import json

import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from client.analyst.analyst import Analyst
from client.errors import BudgetSpentError
from protocol.domains.strings import Utf8
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.question_and_plan import Terms

QUESTION = TrieHhQuestion(
    threshold=10,
    contribution=1,
    domain=Utf8(max_bytes=3),
    message_bytes=20_304,
    epsilon=1.2,
    delta=1e-6,
    mode="noise",
)
TERMS = Terms(cohort_size=40, minimum=20)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["privacy", *args])
    return result.exit_code, result.output


def test_a_population_is_made_spent_and_shown(url: str) -> None:
    at = ("--url", url, "--population", "phones")
    code, text = run(*at, "--create", "--epsilon", "1.5", "--party", "server")
    assert (code, "no release yet" in text) == (0, True)
    with Analyst(url) as analyst:
        asked = {"rounds": 3, "population": "phones"}
        study = analyst.create("words", QUESTION, TERMS, **asked)
        with pytest.raises(BudgetSpentError, match="variance"):
            analyst.create("words", QUESTION, TERMS, **asked)
    code, text = run(*at)
    assert code == 0
    assert f"{study.id}: noise" in text
    assert "remains" in text
    code, text = run("--url", url, study.id, "--json", "-")
    document = json.loads(text)
    server = next(row for row in document["parties"] if row["party"] == "server")
    assert server["epsilon"] == pytest.approx(1.2, abs=0.01)
    assert document["lines"][0]["views"]["server"]["private"]
    code, text = run("--url", url, study.id)
    assert [text.count("counts with noise"), text.count("1.764")] == [2, 1]  # each view once


def test_a_population_needs_no_budget(url: str) -> None:
    code, text = run("--url", url, "--population", "cars", "--create")
    assert code == 0
    assert "no release yet" in text
    assert "budget" not in text


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ([], "name a study"),
        (["abc", "--population", "phones"], "name a study"),
        (["abc", "--create"], "--create takes"),
        (["--population", "nobody"], "`blindtally privacy --create` makes populations"),
        (["abc"], "no such study"),
        (["--population", "A B", "--create", "--epsilon", "1"], "letters a to z, digits"),
        (["--population", "phones", "--create", "--epsilon", "0"], "above 0 and at most"),
    ],
)
def test_impossible_requests_have_a_reason(url: str, args: list[str], reason: str) -> None:
    code, text = run("--url", url, *args)
    assert code in (1, 2)
    assert reason in text


def test_a_service_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blindtally.console.service_connection._TIMEOUT_SECONDS", 0.1)
    code, text = run("--url", "http://127.0.0.1:9", "abc")
    assert code == 1
    assert "http://127.0.0.1:9 is out of reach" in text
