"""Plan of a study of secure sums: the mechanism that finds most in simulated studies."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from blindtally.console.errors import exit_with_error
from blindtally.console.field_options import annotations_of, collect_fields, validated
from blindtally.console.output_files import write_json
from blindtally.console.progress import progress_steps
from blindtally.console.tables import print_parts, result_table
from blindtally.console.terminal import print_line
from blindtally.datasets.reading_report import ReadingReport
from blindtally.planning.bracketing_populations import (
    WHY_LOW_OR_HIGH,
    AssumedCounts,
    NamedCase,
    bracketing_cases,
    case_of_file,
    middle_case,
)
from blindtally.planning.f1_by_words import StudySetting
from blindtally.planning.lying_devices import LyingDevices, effects_of_liars, equal_cohorts
from blindtally.planning.study_forecast import (
    DEVICE_RANGE,
    Prediction,
    StudyForecast,
    forecast_study,
    max_steps,
)
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet
from protocol.mechanisms.registry import parse_question
from protocol.public_model import PublicModel
from protocol.question_and_plan import SumQuestion, Terms
from protocol.round_sizes import WORD_BYTES, message_bytes_of, vector_bytes


class AssumedItems(PublicModel):
    """Items that a plan without a file assumes: strings with shares as rank^-`zipf`.

    They have up to `max_bytes` bytes, or `length` characters of the `alphabet`. Without `items` and
    `zipf`, there are 100,000 items, and the exponent is 1, with a range over flat and steep shares.
    A vector of `words` 16-bit words stands for a number of `message_bytes`.
    """

    words: int | None = Field(default=None, ge=1)

    domain: Literal["strings", "alphabet"] = "strings"
    max_bytes: int = Field(default=64, ge=1, le=4096)
    alphabet: Annotated[str, BeforeValidator(str)] = "abcdefghijklmnopqrstuvwxyz"
    length: int = Field(default=3, ge=1, le=16)
    items: int | None = Field(default=None, ge=10, le=10**6)
    zipf: float | None = Field(default=None, ge=0.1, le=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumPlanRequest:
    """Options of a plan of sums; items are those of the file `data`, or assumed by `sets`."""

    devices: int
    rounds: int
    threshold: float
    size: int | None  # message_bytes, if `sets` have no words
    contribution: int
    cohorts: int | None
    sets: Sequence[str]  # NAME=VALUE of `AssumedItems`
    data: Path | None
    column: str | None
    runs: int
    seed: int

    @property
    def setting(self) -> StudySetting:
        """Return the setting of the simulated studies; ValueError without room for a vector."""
        tokens = self.devices * self.contribution
        vector = vector_bytes(self.terms, self.message_bytes)
        if not vector:
            shares = message_bytes_of(self.terms, 0)
            raise ValueError(f"--message-bytes must be above {shares:,}, those of shares of keys")
        return StudySetting(self.rounds, self.threshold, tokens, vector // WORD_BYTES)

    @property
    def terms(self) -> Terms:
        return equal_cohorts(self.devices, self.cohorts)

    @property
    def assumed(self) -> AssumedItems:
        """Return the assumptions; ValueError if one is invalid."""
        values = collect_fields("a plan of sums", self.sets, annotations_of(AssumedItems))
        return validated(AssumedItems, values)

    @property
    def message_bytes(self) -> int:
        """Return the size of a message; ValueError unless one is given."""
        words = self.assumed.words
        if (self.size is None) == (words is None):
            raise ValueError("pass --message-bytes, or --words in its place")
        return self.size or message_bytes_of(self.terms, WORD_BYTES * (words or 0))

    def check(self) -> None:
        """Exit if an option is out of range."""
        if self.devices not in DEVICE_RANGE:
            limits = f"{DEVICE_RANGE[0]} to {DEVICE_RANGE[-1]:,}"
            raise exit_with_error(f"--devices must be from {limits}, not {self.devices}")
        largest = self.devices * self.contribution * self.rounds
        if self.threshold > largest:
            raise exit_with_error(
                f"--threshold is {self.threshold:g}, and all devices together contribute at most "
                f"{largest:,} items in {self.rounds} rounds: nothing can be found"
            )


def plan_sums(request: SumPlanRequest, json_path: str | None) -> None:
    """Print a first prediction after one simulated study, and the plan after all of them.

    Raises:
        typer.Exit: if an option is invalid, or no mechanism can be planned.
    """
    request.check()
    try:
        terms, setting = request.terms, request.setting
        middle, brackets, reading = _assumed_cases(request)
        with progress_steps("simulated, at most", max_steps(request.runs, len(brackets))) as step:
            seeds = [(request.seed, run) for run in range(request.runs)]
            forecast = forecast_study(middle, setting, seeds, brackets, step, _report_predictions)
        question = parse_question(
            {
                "mechanism": max(forecast.predictions, key=lambda row: row.f1).mechanism,
                "threshold": request.threshold,
                "contribution": request.contribution,
                "message_bytes": request.message_bytes,
                "domain": middle.case.known.domain.model_dump(),
            }
        )
        assert isinstance(question, SumQuestion)  # of a sum, as all predictions
        liars = effects_of_liars(question, terms, request.rounds)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        _show_plan(forecast, liars, question, request)
    document: dict[str, Any] = {"question": question.model_dump(mode="json")}
    document["words"] = {str(goal): size for goal, size in forecast.words_by_goal.items()}
    document["predictions"] = [asdict(row) for row in forecast.predictions]
    document["f1_by_population"] = forecast.f1_by_population
    document["lying_devices"] = [asdict(row) for row in liars]
    if reading is not None:
        document["reading"] = reading.as_json()
    write_json(json_path, document)


def _assumed_cases(
    request: SumPlanRequest,
) -> tuple[NamedCase, list[NamedCase], ReadingReport | None]:
    """Return the case to simulate, and those that bracket reality if its items are assumed.

    The report is on the file of the items if they are not assumed.
    """
    setting, contribution = request.setting, request.contribution
    if request.data is not None:
        case, report = case_of_file(request.data, request.column, setting, contribution)
        return case, [], report
    assumed = request.assumed
    domain: Domain = Hashed(max_bytes=assumed.max_bytes)
    if assumed.domain == "alphabet":
        domain = Alphabet(characters=assumed.alphabet, length=assumed.length)
    counts = AssumedCounts(assumed.items, assumed.zipf)
    middle = middle_case(domain, counts, setting.tokens, contribution)
    return middle, bracketing_cases(domain, counts, setting, contribution), None


def _report_predictions(predictions: Sequence[Prediction]) -> None:
    """Print the results of the first studies, while others are simulated."""
    for row in predictions:
        range_text = f"; {row.described_range} in other data" if row.described_range else ""
        print_line(f"F1 about {row.f1:.2f} with {row.mechanism}{range_text}", err=True)
    print_line("simulating more ...", err=True)


def _show_plan(
    forecast: StudyForecast,
    liars: Sequence[LyingDevices],
    question: SumQuestion,
    request: SumPlanRequest,
) -> None:
    rows = [
        (
            row.mechanism,
            f"{row.f1:.3f} \u00b1 {row.f1_deviation:.3f}",
            row.described_range or "-",
            f"{row.rounds_decoded:.1f}",
            f"{row.upload_bytes:,}",
            f"{row.download_bytes:,}",
        )
        for row in forecast.predictions
    ]
    numbers = ["F1", "in other data", "decoded", "bytes sent", "received"]
    title = "Results of a study, decoded rounds, and bytes of a device in a round, at most"
    print_parts(result_table(["mechanism"], numbers, rows, title), "")
    _show_range(forecast.predictions, request.data)
    scope = " and items as assumed" if request.data is None else ""
    for goal, words in forecast.words_by_goal.items():
        size = "more than 200,000 words"
        if words is not None:
            message = message_bytes_of(request.terms, WORD_BYTES * math.ceil(words))
            size = f"about {message:,} message_bytes ({words:,.0f} words)"
        print_parts(f"An F1 of {goal:g} takes {size} with tracked{scope}.")
    _show_liars(liars)
    print_parts(
        "Bytes are those of vector and plan; `blindtally params` adds those of the secure sum.",
        "To run the study, create it with this question:",
    )
    write_json("-", question.model_dump(mode="json"))


def _show_range(predictions: Sequence[Prediction], data: Path | None) -> None:
    if data is not None:
        print_parts(f"Simulated with the items of {data}. \u00b1 is over studies of these items.")
        return
    for row in predictions:
        print_parts(
            f"F1 with {row.mechanism} depends on the data:",
            f"  {row.f1_low:.2f}  {row.f1_low_population}",
            f"  {row.f1_high:.2f}  {row.f1_high_population}",
        )
    print_parts(f"{WHY_LOW_OR_HIGH} With --data your own items are simulated.", "")


def _show_liars(liars: Sequence[LyingDevices]) -> None:
    rows = [
        (f"{row.liars}", f"{row.lift:,.0f}", f"{row.lost_share:.0%}", f"{row.unreadable_share:.0%}")
        for row in liars
    ]
    numbers = ["count of an item nobody holds", "lost part of an item", "unreadable part"]
    title = "Effects of lying devices on a round, at worst"
    print_parts(result_table(["devices"], numbers, rows, title))
    print_parts(
        "More --cohorts limit the effects: a liar spoils the sum of its cohort only, and with at "
        "least three cohorts, a count that is in few of them is left out. Without a registrar a "
        "liar returns under new identities and spoils every round."
    )
