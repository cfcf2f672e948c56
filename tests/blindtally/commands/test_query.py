"""`blindtally query` against a real service with studies of numbers and of strings."""

import asyncio
import json
from collections.abc import Sequence

import httpx
import pytest
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.fleet_run.run_on_terminal import next_steps
from blindtally.fleet_run.study_status import study_url
from client.analyst.analyst import Analyst
from client.errors import BadRequestError
from protocol.api.messages import StudyView
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Utf8
from protocol.mechanisms.central.hierarchical_histogram import HierarchicalHistogramQuestion
from protocol.mechanisms.central.trie_plan import TrieHhQuestion
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.number_sums import NumberSumsQuestion
from protocol.question_and_plan import Terms
from tests.blindtally.commands.conftest import play_one_round

QUESTION = HierarchicalHistogramQuestion(
    threshold=1,
    domain=NumericInterval(low=0, high=64, alpha=4, length=3),
    message_bytes=3524,
    epsilon=30,
    delta=0.1,
)
TERMS = Terms(cohort_size=12, minimum=8, corrupt=0.1, dropout=0.2)


@pytest.fixture(scope="module")
def at(url: str) -> list[str]:
    """Return the arguments of a study of 12 devices that hold 0, 5, .. 55.

    One of 84 cells has noise with probability 0.1; more noise has a probability below 0.01.
    """
    with Analyst(url) as analyst:
        study = analyst.create("numbers", QUESTION, TERMS, rounds=1)
        asyncio.run(play(url, study.view))
        assert study.wait().state == "finished"
        return [study.id, "--url", url]


async def play(
    url: str, study: StudyView, prefixes: Sequence[str] = ("",), scale: int | str = 5
) -> None:
    """Let each of 12 devices hold a prefix and its multiple of `scale`, which may be empty."""
    held = [{f"{prefixes[n % len(prefixes)]}{n * scale}": 1} for n in range(12)]
    await play_one_round(url, study, held)


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["query", *args])
    return result.exit_code, result.output


def test_common_items_have_their_probability_of_being_among_the_first(url: str) -> None:
    """Each of 12 devices holds one of two items; the threshold is 5."""
    question = AdaptiveIbltQuestion(
        threshold=5, contribution=1, domain=Utf8(max_bytes=3), message_bytes=3524
    )
    with Analyst(url) as analyst:
        study = analyst.create("items", question, TERMS, rounds=1)
        asyncio.run(play(url, study.view, ("a", "b"), 0))
        study.wait()
        code, output = run(study.id, "--top", "5", "--url", url, "--json", "-")
        document = json.loads(output)
        assert code == 0
        assert {row["item"] for row in document["items"]} == {"a0", "b0"}
        assert all(0 < row["top_probability"] <= 1 for row in document["items"])
        assert document["quality"]["expected_precision"] > 0.9
        assert [row.item for row in study.top(5)] == [row["item"] for row in document["items"]]
        quality = study.list_quality()
        assert quality is not None
        assert quality.model_dump() == document["quality"]
        code, output = run(study.id, "--top", "0", "--url", url, "--json", "-")
        assert (code, json.loads(output)) == (0, {"items": [], "quality": document["quality"]})
        assert "chance to reach 5" in run(study.id, "--url", url)[1]
        code, output = run(study.id, "--threshold", "1000", "--url", url, "--json", "-")
        above = json.loads(output)
        assert (code, above["items"], above["quality"]["expected_precision"]) == (0, [], None)
        code, output = run(study.id, "--threshold", "0.5", "--url", url)
        assert code == 1
        assert "agreed to a threshold of 5" in output


def test_all_queries_can_be_sent_at_once(at: list[str]) -> None:
    asked = ["--quantile", "0.5", "--rank", "16", "--rank", "32", "--range", "16:32", "--cdf", "3"]
    code, text = run(*at, *asked, "--json", "-")
    assert code == 0, text
    document = json.loads(text)
    assert 25 <= document["quantiles"][0]["value"] <= 31
    assert [row["value"] for row in document["ranks"]] == [
        pytest.approx(4 / 12, abs=0.1),  # the noise of one cell moves them by less
        pytest.approx(7 / 12, abs=0.1),
    ]
    assert document["ranges"][0]["value"] == pytest.approx(3 / 12, abs=0.1)
    assert [row["at"] for row in document["cdf"]] == [0, 32, 64]


def test_without_options_some_quantiles_are_shown(at: list[str]) -> None:
    code, text = run(*at)
    assert code == 0
    assert "quantiles" in text
    assert "0.99" in text


def test_a_study_of_strings_has_items_and_frequencies_and_no_quantiles(url: str) -> None:
    question = TrieHhQuestion(
        threshold=1,
        contribution=1,
        domain=Utf8(max_bytes=1),
        message_bytes=3524,
        epsilon=30,
        delta=0.1,
        mode="noise",
    )
    with Analyst(url) as analyst:
        study = analyst.create("letters", question, TERMS, rounds=1)
        asyncio.run(play(url, study.view, ("a", "b"), ""))
        assert study.wait().state == "finished"
        page = httpx.get(study_url(url, study.id)).text
        with pytest.raises(BadRequestError, match="Ask for the heavy hitters of this study"):
            study.quantiles([0.5])
    code, text = run(study.id, "--url", url, "--json", "-")
    assert ({row["item"] for row in json.loads(text)["items"]}, code) == ({"a", "b"}, 0)
    code, text = run(study.id, "--url", url, "--prefix", "a", "--json", "-")
    assert json.loads(text)["frequencies"][0]["value"] == pytest.approx(1 / 2, abs=0.1)
    code, text = run(study.id, "--url", url, "--quantile", "0.5")
    assert (code, "or for frequencies of prefixes" in " ".join(text.split())) == (1, True)
    assert "Quantiles" not in page
    steps = " ".join(next_steps(url, study.view, took_part=True))
    assert (f"blindtally query {study.id}" in steps, "quantile" in steps) == (True, False)


def test_means_are_shown_of_a_study_of_sums(url: str) -> None:
    whole = NumericInterval(low=-0.5, high=63.5, alpha=4, length=3)
    domain = Product(segments=("even", "odd"), inner=whole)
    with Analyst(url) as analyst:
        question = NumberSumsQuestion(domain=domain, message_bytes=1724)
        study = analyst.create("means", question, TERMS, rounds=1)
        asyncio.run(play(url, study.view, ("even:", "odd:")))
        assert study.wait().state == "finished"
        rows = study.numbers()
        assert [row.segment for row in rows] == [None, "even", "odd"]
        assert rows.to_pandas()["mean"].tolist() == [27.5, 25, 30]
    code, text = run(study.id, "--url", url, "--beta", "0.1")
    assert code == 0, text
    assert "90% from" in text
    assert "27.5" in text
    code, text = run(study.id, "--url", url, "--json", "-")
    assert json.loads(text)["numbers"] == [row.model_dump() for row in rows]
    code, text = run(study.id, "--url", url, "--quantile", "0.5")
    assert (code, "Ask for the means of this study" in text) == (1, True)


def test_a_query_before_the_first_sum_states_that_there_is_no_answer(url: str) -> None:
    with Analyst(url) as analyst:
        question = AdaptiveIbltQuestion(
            threshold=5, contribution=1, domain=Utf8(max_bytes=3), message_bytes=5524
        )
        study = analyst.create("items", question, TERMS, rounds=1)
    code, text = run(study.id, "--url", url)
    assert (code, text.startswith("No round is over: a round needs 8 ")) == (0, True)


def test_segments_are_shown_of_a_study_that_has_some(url: str) -> None:
    domain = Product(segments=("even", "odd"), inner=Utf8(max_bytes=3))
    with Analyst(url) as analyst:
        question = AdaptiveIbltQuestion(
            threshold=5, contribution=4, domain=domain, message_bytes=5524
        )
        study = analyst.create("by segment", question, TERMS, rounds=1)
        code, text = run(study.id, "--url", url)
        assert (code, text.startswith("No round is over: a round needs 8 ")) == (0, True)
        held = [{f"{('even', 'odd')[n % 2]}:{letter}": 1 for letter in "abcd"} for n in range(12)]
        asyncio.run(play_one_round(url, study.view, held))
        assert study.wait().state == "finished"
        rows = study.segments(limit=1)
        assert [(row.segment, row.total, row.share) for row in rows] == [
            ("even", 24, 0.5), ("odd", 24, 0.5)
        ]  # fmt: skip
        assert [(each.item, each.estimate) for each in rows[0].items] == [("a", 6)]
        assert rows.to_pandas()["heavy_hitters"].tolist() == [4, 4]
        without_items = study.segments(limit=0)
    code, text = run(study.id, "--url", url)
    assert code == 0, text
    assert "a 6, b 6, c 6 " in text
    assert "50.0%" in text
    code, text = run(study.id, "--url", url, "--out", "-", "--format", "csv")
    assert [text.count(f'"item"": ""{item}""') for item in "abcd"] == [2] * 4
    code, text = run(study.id, "--url", url, "--top", "0", "--json", "-")
    assert json.loads(text)["segments"] == [row.model_dump(mode="json") for row in without_items]
    code, text = run(study.id, "--url", url, "--threshold", "6")
    assert (code, "--threshold is for one list" in text) == (2, True)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--range", "3"], "--range takes two numbers LOW:HIGH"),
        (["--range", "a:b"], "--range takes two numbers LOW:HIGH"),
        (["--quantile", "2"], "q must be from 0 to 1"),
        (["--rank", "much"], "'--rank'"),
        (["--prefix", "a"], "ask for a range"),
    ],
)
def test_meaningless_requests_have_a_reason(at: list[str], args: list[str], reason: str) -> None:
    code, text = run(*at, *args)
    assert code == (2 if args[0] in ("--range", "--rank") else 1)
    assert text.count(reason) == 1
