"""Report of a planned study of sums: on the terminal, while it is simulated and after."""

from collections.abc import Sequence
from pathlib import Path

import typer

from blindtally.console.tables import print_parts, result_table
from blindtally.planning.bracketing_populations import WHY_LOW_OR_HIGH
from blindtally.planning.forecast import Prediction, StudyForecast
from blindtally.planning.lying_devices import LyingDevices
from protocol.question_and_plan import SumQuestion


def report_predictions(predictions: Sequence[Prediction]) -> None:
    """Print the results of the first studies, while others are simulated."""
    for row in predictions:
        range_text = f"; {row.described_range} in other data" if row.described_range else ""
        typer.echo(f"F1 about {row.f1:.2f} with {row.mechanism}{range_text}", err=True)
    typer.echo("simulating more ...", err=True)


def show_plan(
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
