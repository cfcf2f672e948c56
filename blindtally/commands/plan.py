"""`blindtally plan`: mechanism and parameters for a study, and a forecast of its results."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from blindtally.console.errors import exit_with_error, refuse_unused_options
from blindtally.console.options import MaxShareOption, SeedOption, complete_data
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.progress import progress_steps
from blindtally.console.tables import print_parts, result_table
from blindtally.planning import release_designs, sketch_noise
from blindtally.planning.bracketing_populations import (
    DEFAULT_ITEMS,
    DEFAULT_ZIPF,
    WHY_LOW_OR_HIGH,
    AssumedCounts,
    NamedCase,
    bracketing_cases,
    case_of_file,
    middle_case,
)
from blindtally.planning.f1_by_words import StudySetting
from blindtally.planning.forecast import (
    DEVICE_RANGE,
    Prediction,
    StudyForecast,
    forecast_study,
    max_steps,
)
from blindtally.planning.lying_devices import LyingDevices, effects_of_liars, equal_cohorts
from blindtally.planning.oracle_recommendation import recommend_reports
from protocol.domains.hashed import Hashed
from protocol.domains.registry import Domain
from protocol.domains.strings import Alphabet
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import SumQuestion

_SKETCHES = ("count-sketch", "count-median")
# Options of each kind of plan.
_RELEASE_OPTIONS = {
    *("devices", "mechanism", "epsilon", "delta", "levels", "contribution", "json_path")
}
_SKETCH_OPTIONS = {
    *("devices", "mechanism", "epsilon", "delta", "rounds", "words", "items", "json_path")
}
_REPORT_OPTIONS = {"devices", "domain", "epsilon", "goal", "most", "json_path"}
_SUM_OPTIONS = {
    *("devices", "rounds", "threshold", "words", "domain", "max_bytes", "alphabet", "length"),
    *("contribution", "cohorts", "zipf", "items", "data", "runs", "seed", "json_path"),
}


def plan(
    context: typer.Context,
    devices: Annotated[
        int, Option("--devices", "--users", min=1, help="Number of devices in a round (n).")
    ],
    rounds: Annotated[
        int | None, Option(min=1, max=1000, help="Number of rounds (R); required for sums.")
    ] = None,
    threshold: Annotated[
        float | None,
        Option(
            min=1,
            help="Total count over all rounds from which an item is heavy; required for sums.",
        ),
    ] = None,
    words: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum number of 16-bit words that a device sends; required for sums.",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        Option(
            help="Mechanism of central privacy: triehh compares ways to release counts, "
            "count-sketch and count-median the cost of noise by rows.",
            autocompletion=lambda: ["triehh", *_SKETCHES],
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        Option(
            help="Plan reports of this local privacy loss, or with --mechanism a release of "
            "counts; otherwise sums."
        ),
    ] = None,
    delta: Annotated[float, Option(help="Delta of a central epsilon, over all levels.")] = 1e-6,
    levels: Annotated[int, Option(help="Number of levels of triehh.")] = 10,
    goal: Annotated[
        str,
        Option(
            help="Goal of reports: worst-mse, l1, l2 or heavy.",
            autocompletion=lambda: ["worst-mse", "l1", "l2", "heavy"],
        ),
    ] = "l2",
    most: MaxShareOption = 1.0,
    domain: Annotated[
        str,
        Option(
            help="Items: strings of any length, alphabet for short ones, or the number of values."
        ),
    ] = "strings",
    max_bytes: Annotated[int, Option(min=1, max=4096, help="Maximum bytes of a string.")] = 64,
    alphabet: Annotated[
        str, Option(help="Characters of the short strings.", show_default="a to z")
    ] = "abcdefghijklmnopqrstuvwxyz",
    length: Annotated[int, Option(min=1, max=16, help="Length of the short strings.")] = 3,
    contribution: Annotated[
        int, Option(min=1, max=1000, help="Maximum number of items that a device adds (m).")
    ] = 1,
    cohorts: Annotated[
        int | None,
        Option(
            min=1,
            max=1000,
            help="Number of cohorts of a round, which limit what lying devices can do.",
            show_default="as few as possible",
        ),
    ] = None,
    zipf: Annotated[
        float | None,
        Option(
            min=0.1,
            max=3,
            help="Exponent s of the assumed shares, rank^-s.",
            show_default=f"{DEFAULT_ZIPF:g}, and a range over flat and steep shares",
        ),
    ] = None,
    items: Annotated[
        int | None,
        Option(
            min=10,
            max=10**6,
            help="Number of assumed items, at most.",
            show_default=f"{DEFAULT_ITEMS:,}",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        Option(
            help="File of items with counts, or of users, that is simulated instead of assumed "
            "items.",
            autocompletion=complete_data,
        ),
    ] = None,
    runs: Annotated[int, Option(min=1, max=100, help="Number of simulated studies.")] = 3,
    seed: SeedOption = 1,
    json_path: JsonOption = None,
) -> None:
    """Recommend a mechanism and its parameters, and predict the results of a study.

    Example:
      blindtally plan --devices 10000 --rounds 30 --threshold 50 --words 1000
      blindtally plan --users 100000 --domain 100000 --epsilon 2 --goal heavy
      blindtally plan --mechanism triehh --users 1000000 --epsilon 1 --levels 10
    """
    if mechanism is not None:
        if mechanism not in ("triehh", *_SKETCHES) or epsilon is None:
            known = ", ".join(("triehh", *_SKETCHES))
            raise exit_with_error(f"--mechanism is {known} or left out, and takes --epsilon")
        if mechanism in _SKETCHES:
            refuse_unused_options(context, _SKETCH_OPTIONS, f"a plan of {mechanism}")
            if rounds is None or words is None:
                raise exit_with_error(f"{mechanism} takes --rounds and --words")
            settings = devices, rounds, words, epsilon, delta, items or DEFAULT_ITEMS
            sketch_noise.compare_sketches(mechanism, *settings, json_path)
            return
        refuse_unused_options(context, _RELEASE_OPTIONS, "a plan of triehh")
        release_designs.compare_releases(devices, epsilon, delta, levels, contribution, json_path)
        return
    if epsilon is not None:
        taken = _REPORT_OPTIONS | ({"max_bytes"} if domain == "strings" else set())
        refuse_unused_options(context, taken, f"a plan of reports over {domain} with --epsilon")
        recommend_reports(devices, domain, max_bytes, epsilon, goal, most, json_path)
        return
    refuse_unused_options(context, _SUM_OPTIONS, "a plan of sums")
    rounds, threshold, words = _required_sum_options(devices, rounds, threshold, words, domain)
    try:
        terms = equal_cohorts(devices, cohorts)
        setting = StudySetting(rounds, threshold, devices * contribution, words)
        brackets = list[NamedCase]()
        if data is not None:
            middle = case_of_file(data, setting, contribution)
        else:
            assumed: Domain = Hashed(max_bytes=max_bytes)
            if domain == "alphabet":
                assumed = Alphabet(characters=alphabet, length=length)
            counts = AssumedCounts(items, zipf)
            middle = middle_case(assumed, counts, setting.tokens, contribution)
            brackets = bracketing_cases(assumed, counts, setting, contribution)
        with progress_steps("simulated, at most", max_steps(runs, len(brackets))) as step:
            seeds = [(seed, run) for run in range(runs)]
            forecast = forecast_study(middle, setting, seeds, brackets, step, _report)
        question = parse_question(
            {
                "mechanism": max(forecast.predictions, key=lambda row: row.f1).mechanism,
                "threshold": threshold,
                "contribution": contribution,
                "words": words,
                "domain": middle.case.known.domain.model_dump(),
            }
        )
        assert isinstance(question, SumQuestion)  # of a sum, as all predictions
        liars = effects_of_liars(question, terms, rounds)
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        _show(forecast, liars, question, data)
    document: dict[str, Any] = {"question": question.model_dump(mode="json")}
    document["words"] = {str(goal): size for goal, size in forecast.words_by_goal.items()}
    document["predictions"] = [asdict(row) for row in forecast.predictions]
    document["f1_by_population"] = forecast.f1_by_population
    document["lying_devices"] = [asdict(row) for row in liars]
    write_json(json_path, document)


def _required_sum_options(
    devices: int, rounds: int | None, threshold: float | None, words: int | None, domain: str
) -> tuple[int, float, int]:
    """Return the options that a plan of sums needs; exit if one is missing or out of range."""
    if rounds is None or threshold is None or words is None:
        raise exit_with_error("sums take --rounds, --threshold and --words; reports take --epsilon")
    if domain not in ("strings", "alphabet"):
        raise exit_with_error(f"--domain is strings or alphabet without --epsilon, not {domain!r}")
    if devices not in DEVICE_RANGE:
        limits = f"{DEVICE_RANGE[0]} to {DEVICE_RANGE[-1]:,}"
        raise exit_with_error(f"--devices must be from {limits}, not {devices}")
    return rounds, threshold, words


def _report(predictions: Sequence[Prediction]) -> None:
    """Print the results of the first studies, while others are simulated."""
    for row in predictions:
        range_text = f"; {row.described_range} in other data" if row.described_range else ""
        typer.echo(f"F1 about {row.f1:.2f} with {row.mechanism}{range_text}", err=True)
    typer.echo("simulating more ...", err=True)


def _show(
    forecast: StudyForecast,
    liars: Sequence[LyingDevices],
    question: SumQuestion,
    data: Path | None,
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
    _show_range(forecast.predictions, data)
    scope = " and items as assumed" if data is None else ""
    for goal, size in forecast.words_by_goal.items():
        words = "more than 200,000 words" if size is None else f"about {size:,.0f} words"
        print_parts(f"An F1 of {goal:g} takes {words} with tracked{scope}.")
    _show_liars(liars)
    print_parts(
        "Bytes are those of vector and plan; `blindtally params` adds those of the secure sum.",
        "To run the study, create it with this question:",
    )
    typer.echo(question.model_dump_json(indent=2))


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
        (
            f"{row.liars}",
            f"{row.lift:,.0f}",
            f"{row.lost_share:.0%}",
            f"{row.unreadable_share:.0%}",
        )
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
