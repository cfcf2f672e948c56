"""Plan of a study of secure sums: the mechanism that finds most in simulated studies."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from blindtally.console.compilation_notice import announce_compilation
from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.progress import progress_steps
from blindtally.planning.bracketing_populations import (
    AssumedCounts,
    NamedCase,
    bracketing_cases,
    case_of_file,
    middle_case,
)
from blindtally.planning.f1_by_words import StudySetting
from blindtally.planning.forecast import DEVICE_RANGE, forecast_study, max_steps
from blindtally.planning.lying_devices import effects_of_liars, equal_cohorts
from blindtally.planning.plan_report import report_predictions, show_plan
from protocol.domains.hashed import Hashed
from protocol.domains.registry import Domain
from protocol.domains.strings import Alphabet
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import SumQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class SumPlanRequest:
    """Options of a plan of sums; items are those of the file `data`, or assumed."""

    devices: int
    rounds: int
    threshold: float
    words: int
    domain: str
    max_bytes: int
    alphabet: str
    length: int
    contribution: int
    cohorts: int | None
    zipf: float | None
    items: int | None
    data: Path | None
    runs: int
    seed: int

    @property
    def setting(self) -> StudySetting:
        """Return the setting of the simulated studies."""
        tokens = self.devices * self.contribution
        return StudySetting(self.rounds, self.threshold, tokens, self.words)

    def check(self) -> None:
        """Exit if an option is out of range."""
        if self.domain not in ("strings", "alphabet"):
            raise exit_with_error(
                f"--domain is strings or alphabet without --epsilon, not {self.domain!r}"
            )
        if self.devices not in DEVICE_RANGE:
            limits = f"{DEVICE_RANGE[0]} to {DEVICE_RANGE[-1]:,}"
            raise exit_with_error(f"--devices must be from {limits}, not {self.devices}")


def plan_sums(request: SumPlanRequest, json_path: str | None) -> None:
    """Print a first prediction after one simulated study, and the plan after all of them.

    Raises:
        typer.Exit: if an option is invalid, or no mechanism can be planned.
    """
    request.check()
    announce_compilation()
    try:
        terms = equal_cohorts(request.devices, request.cohorts)
        setting = request.setting
        middle, brackets = _assumed_cases(request)
        with progress_steps("simulated, at most", max_steps(request.runs, len(brackets))) as step:
            seeds = [(request.seed, run) for run in range(request.runs)]
            forecast = forecast_study(middle, setting, seeds, brackets, step, report_predictions)
        question = parse_question(
            {
                "mechanism": max(forecast.predictions, key=lambda row: row.f1).mechanism,
                "threshold": request.threshold,
                "contribution": request.contribution,
                "words": request.words,
                "domain": middle.case.known.domain.model_dump(),
            }
        )
        assert isinstance(question, SumQuestion)  # of a sum, as all predictions
        liars = effects_of_liars(question, terms, request.rounds)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        show_plan(forecast, liars, question, request.data)
    document: dict[str, Any] = {"question": question.model_dump(mode="json")}
    document["words"] = {str(goal): size for goal, size in forecast.words_by_goal.items()}
    document["predictions"] = [asdict(row) for row in forecast.predictions]
    document["f1_by_population"] = forecast.f1_by_population
    document["lying_devices"] = [asdict(row) for row in liars]
    write_json(json_path, document)


def _assumed_cases(request: SumPlanRequest) -> tuple[NamedCase, list[NamedCase]]:
    """Return the case to simulate, and those that bracket reality if its items are assumed."""
    setting, contribution = request.setting, request.contribution
    if request.data is not None:
        return case_of_file(request.data, setting, contribution), []
    domain: Domain = Hashed(max_bytes=request.max_bytes)
    if request.domain == "alphabet":
        domain = Alphabet(characters=request.alphabet, length=request.length)
    counts = AssumedCounts(request.items, request.zipf)
    middle = middle_case(domain, counts, setting.tokens, contribution)
    return middle, list(bracketing_cases(domain, counts, setting, contribution))
