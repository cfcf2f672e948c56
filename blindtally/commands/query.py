"""`blindtally query`: quantiles, ranks and frequencies, or means, of a study's values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.output_files import JsonOption, TableFormat, check_output_path, write_json
from blindtally.console.tables import Printable, key_notes, print_parts, result_table

if TYPE_CHECKING:
    from client.analyst.analyst import Study
    from client.analyst.result_table import ResultTable
    from protocol.api.messages import QueryResult
    from protocol.api.segments import SegmentSummary
    from protocol.estimation.number_summary import NumberSummary

T = TypeVar("T")
MAX_TOP = 1000
_DEFAULT_QUANTILES = [0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99]


def query(
    study: Annotated[str, Argument(help="Name or id of the study.")],
    quantile: Annotated[
        list[float] | None, Option(help="Such as 0.5: what half of devices are below; repeatable.")
    ] = None,
    rank: Annotated[
        list[float] | None,
        Option(help="Number below which to return the share of devices; repeatable."),
    ] = None,
    within: Annotated[
        list[str] | None,
        Option(
            "--range",
            metavar="LOW:HIGH",
            help="Range of numbers whose share of devices to return; repeatable.",
        ),
    ] = None,
    prefix: Annotated[
        list[str] | None, Option(help="First letters of strings whose share to return; repeatable.")
    ] = None,
    cdf: Annotated[
        int | None, Option(min=2, max=1000, help="Number of values to return with the share below.")
    ] = None,
    top: Annotated[
        int | None,
        Option(
            min=0,
            max=MAX_TOP,
            help="Number of items to show, in each segment if there are any.",
            show_default="10, all options of a list, or 3 in each segment",
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        Option(help="Show only items that reach this count.", show_default="that of the study"),
    ] = None,
    estimator: Annotated[
        Literal["ratio", "plain"],
        Option(
            help="Where triehh adds strings whose beginning it gave up as rare: to no others "
            "(plain), or to those with the same first letters (ratio)."
        ),
    ] = "ratio",
    beta: Annotated[
        float,
        Option(
            min=1e-9, max=0.5, help="Probability that an interval does not contain the true value."
        ),
    ] = 0.05,
    out: Annotated[
        str | None,
        Option(
            metavar="PATH",
            help="Write all rows to a .csv, .ndjson or .parquet file; - is stdout.",
            callback=check_output_path,
        ),
    ] = None,
    form: Annotated[
        TableFormat | None, Option("--format", help="Format of --out.", show_default="its suffix")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show the answer of a study: common items, means, medians, or other shares.

    Without options, the answer depends on the study: the most frequent items, those of each segment
    with its total, the mean and sum of numbers, or the numbers that 1%, 5%, ... 99% of devices are
    below. An item has its chance to truly reach the threshold. A query uses only counts that
    are released already, so it costs no privacy.

    Example:
      blindtally query words --top 20 --out words.parquet
      blindtally query 3f2a0c55d1e9b7a4 --quantile 0.5 --rank 37.5 --range 20:40
    """
    from blindtally.console.service_connection import open_analyst
    from blindtally.console.table_files import TableFile
    from protocol.description import AnswerKind
    from protocol.domains.base import segments_of
    from protocol.mechanisms.registry import mechanism_of

    file = TableFile.at(out, form)
    if out == json_path == "-":
        raise exit_with_error("--out and --json cannot both be written to standard output")
    is_default = not (quantile or rank or within or prefix or cdf)
    options: dict[str, Any] = {"estimator": estimator, "beta": beta}
    ranges = [_parse_range(text) for text in within or []]
    with open_analyst(url, key) as analyst:
        target = analyst.study(study)
        question = target.view.question
        kind = mechanism_of(question).answer_kind(question)
        others = AnswerKind.DISTRIBUTION, AnswerKind.MEANS, AnswerKind.NUMBER
        has_items = is_default and kind not in others
        if threshold is not None and (not has_items or segments_of(question.domain)):
            raise exit_with_error("--threshold is for one list of items, which this answer is not")
        if is_default and kind is AnswerKind.MEANS:
            numbers = _unless_nothing_counts(target, lambda: target.numbers(beta=beta))
            answer = _answer_numbers(target, numbers, beta)
        elif is_default and kind is AnswerKind.NUMBER:
            answer = _answer_number(target)
        elif has_items:
            answer = _answer_list(target, top, threshold, has_file=file is not None)
        else:
            queries: dict[str, tuple[Callable[..., ResultTable[QueryResult]], object]] = {
                "quantiles": (target.quantiles, _DEFAULT_QUANTILES if is_default else quantile),
                "ranks": (target.ranks, rank),
                "ranges": (target.masses, ranges),
                "frequencies": (target.frequencies, prefix),
                "cdf": (target.cdf, cdf),
            }
            asked = {name: query for name, query in queries.items() if query[1]}
            if file and len(asked) > 1:
                raise exit_with_error(f"--out takes one kind of query, not {', '.join(asked)}")
            answer = _unless_nothing_counts(
                target,
                lambda: _answer_queries(
                    {name: ask(at, **options) for name, (ask, at) in asked.items()}, options
                ),
            )
    if "-" not in (out, json_path):
        print_parts(*answer.parts)
    if file:
        file.write(answer.table, answer.unlisted)
    write_json(json_path, answer.document)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer for people, as a document and as a table; `unlisted` are options that it hides."""

    parts: list[Printable]
    document: dict[str, Any]
    table: "ResultTable[Any]"
    unlisted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _unless_nothing_counts(study: "Study", ask: "Callable[[], T]") -> "T":
    """Return the answer to a question; if nothing was counted yet, exit with the reason.

    Raises:
        typer.Exit: as above.
    """
    from blindtally.console.answer_notes import notes_on_list
    from client.errors import WrongStateError

    try:
        return ask()
    except WrongStateError as error:
        reasons = notes_on_list(study.refresh(), study.rounds(), [])
        raise exit_with_error(f"{error.message}. {' '.join(reasons)}", code=1) from None


def _answer_queries(
    results: "dict[str, ResultTable[QueryResult]]", options: dict[str, Any]
) -> _Answer:
    headings = ["value", f"{1 - options['beta']:.0%} from", "to"]
    parts: list[Printable] = []
    for name, rows in results.items():
        cells = [[*map(_format_value, (row.at, row.value, row.low, row.high))] for row in rows]
        parts += [result_table([name], headings, cells)]
    document = {name: [row.model_dump() for row in rows] for name, rows in results.items()}
    return _Answer(parts, document | options, next(iter(results.values())))


def _answer_numbers(study: "Study", rows: "ResultTable[NumberSummary]", beta: float) -> _Answer:
    """Return the means of all segments, with intervals of the population's means."""
    from blindtally.console.answer_notes import option_rows, unlisted_rows
    from protocol.domains.base import MAX_SEGMENTS
    from protocol.estimation.number_summary import SEGMENTS_NOTE, segment_label

    cells = [
        [
            segment_label(row.segment, len(rows) > 1),
            f"{row.devices:,}",
            *(f"{number:.6g}" for number in (row.sum, row.mean, row.mean_low, row.mean_high)),
            "" if row.standard_deviation is None else f"{row.standard_deviation:.6g}",
        ]
        for row in rows
    ]
    headings = ["devices", "sum", "mean", f"{1 - beta:.0%} from", "to", "s.d."]
    listed, rounds = [row.segment for row in rows if row.segment is not None], study.rounds()
    options, _ = option_rows(rounds, listed, MAX_SEGMENTS)
    cells += [[option, words, *[""] * 5] for option, words, *_ in options]
    how = (
        "Sums, means and standard deviations are exact for the devices that took part, up to "
        f"rounding by {rows[0].rounding:.3g} per device. Intervals are for the population's mean."
    )
    notes = [how, *([SEGMENTS_NOTE] if len(rows) > 1 else [])]
    document = {"numbers": [row.model_dump() for row in rows], "beta": beta}
    unlisted = unlisted_rows(rounds, listed)
    return _Answer([result_table(["segment"], headings, cells), *notes], document, rows, unlisted)


def _answer_list(
    study: "Study", top: int | None, threshold: float | None, *, has_file: bool
) -> _Answer:
    """Return the items, of each segment if there are some; a file without `top` has all."""
    from protocol.domains.base import segments_of
    from protocol.mechanisms.registry import mechanism_of

    question = study.view.question
    if segments_of(question.domain):
        answer = _answer_segments(study, study.segments(3 if top is None else top))
        all_rows: Callable[[], ResultTable[Any]]
        all_rows = partial(study.segments, MAX_TOP)
    else:
        shown = max(10, len(mechanism_of(question).options(question))) if top is None else top
        answer = _answer_items(study, min(shown, MAX_TOP), threshold)
        all_rows = study.heavy_hitters
    is_whole = has_file and top is None and threshold is None
    return replace(answer, table=all_rows()) if is_whole else answer


def _answer_number(study: "Study") -> _Answer:
    """Return the one number of a study."""
    from blindtally.console.answer_notes import notes_on_list

    rows = study.heavy_hitters()
    parts: list[Printable] = [
        f"{row.item}: {_format_range(row.estimate, row.low, row.high, '{:,.0f}')}" for row in rows
    ] or [*notes_on_list(study.refresh(), study.rounds(), [])]
    return _Answer(parts, {"items": [row.model_dump() for row in rows]}, rows)


def _answer_items(study: "Study", shown: int, threshold: float | None) -> _Answer:
    """Return the most frequent items, and what the list of heavy hitters does not show."""
    from blindtally.console.answer_notes import (
        notes_on_list,
        option_rows,
        unlisted_counts,
        unlisted_rows,
        with_threshold,
    )
    from protocol.api.unlisted import CountedRounds, count_with_range
    from protocol.estimation.estimates import quality_sentence

    rows = study.top(max(1, shown), threshold=threshold)[:shown]
    quality, question = study.list_quality(threshold=threshold), study.view.question
    listed, is_whole = [row.item for row in rows], len(rows) < shown
    rounds = with_threshold(study.rounds(), threshold) if is_whole else []
    cells = [
        [
            row.item,
            _format_range(row.estimate, row.low, row.high, "{:,.0f}"),
            f"{row.probability:.1%}",
            f"{row.top_probability or 0:.1%}",
        ]
        for row in rows
    ]
    about_keys = key_notes(question, listed)
    notes = [quality_sentence(quality, has_keys=bool(about_keys))] if quality else []
    if is_whole:
        options, more = option_rows(rounds, listed, shown - len(rows))
        words = count_with_range(rounds[-1].plan, CountedRounds.of(rounds)) if options else ""
        cells += [[option, words, "", ""] for option, *_ in options]
        notes += [*more, *notes_on_list(study.refresh(), rounds, listed)]
    least = question.threshold if threshold is None else threshold
    chances = [f"chance to reach {least:,.6g}", f"chance of the top {shown}"]
    headings = ["estimate, 95% interval", *chances]
    table = result_table(["item"], headings, cells)
    document: dict[str, Any] = {"items": [row.model_dump() for row in rows]}
    document |= {"unlisted": unlisted_counts(rounds, listed)} if is_whole else {}
    return _Answer(
        [*([table] if cells else []), *notes, *about_keys],
        document | {"quality": quality and quality.model_dump()},
        rows,
        unlisted_rows(rounds, listed),
    )


def _answer_segments(study: "Study", rows: "ResultTable[SegmentSummary]") -> _Answer:
    """Return the total, the share and the first items of each segment."""
    from blindtally.console.answer_notes import notes_on_list

    has_totals = any(row.total is not None for row in rows)
    least = study.view.question.threshold
    missing = f"not found to reach {least:,.6g}" if has_totals else "unknown"
    cells = [
        [
            row.segment,
            ", ".join(f"{each.item} {each.estimate:,.0f}" for each in row.items),
            _format_range(row.total, row.total_low, row.total_high, "{:,.0f}", missing),
            _format_range(row.share, row.share_low, row.share_high, "{:.1%}", ""),
        ]
        for row in rows
    ]
    headings = ["total, 95% interval", "share of shown totals"]
    items = [each.item for row in rows for each in row.items]
    notes = [] if items else notes_on_list(study.refresh(), study.rounds(), items)
    table = result_table(["segment", "most frequent"], headings, cells)
    shown = [table] if has_totals or items else []
    parts: list[Printable] = [*shown, *notes, *key_notes(study.view.question, items)]
    return _Answer(parts, {"segments": [row.model_dump() for row in rows]}, rows)


def _format_range(
    value: float | None, low: float | None, high: float | None, form: str, missing: str = "unknown"
) -> str:
    if value is None:
        return missing
    return f"{form.format(value)} ({form.format(low)} to {form.format(high)})"


def _parse_range(text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        return float(low), float(high)
    except ValueError:
        raise exit_with_error(f"--range takes two numbers LOW:HIGH, not {text!r}") from None


def _format_value(value: float | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)
