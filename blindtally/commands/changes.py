"""`blindtally changes`, and `studies compare`: what rises and falls in one study or two."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import DEFAULT_URL, ApiKeyOption, UrlOption
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import key_notes, print_parts, result_table
from blindtally.console.terminal import print_line

if TYPE_CHECKING:
    from blindtally.console.tables import Printable
    from protocol.api.rates import ItemChanges, RoundRate

_FalseDiscoveryRate = Annotated[
    float, Option(min=1e-9, max=0.999, help="Largest mean share of false ones among the changes.")
]
_DEFAULT_RATE = 0.05


def _unit() -> str:
    from protocol.api.rates import RATE_DEVICES

    return f"per {RATE_DEVICES:,}"


def changes(
    study: Annotated[str, Argument(help="Name or id of the study.")],
    item: Annotated[
        list[str] | None, Option(help="Heavy hitter whose rate by round to show; repeatable.")
    ] = None,
    before: Annotated[
        str | None, Option(metavar="FIRST-LAST", help="Earlier rounds.", show_default="first half")
    ] = None,
    after: Annotated[
        str | None, Option(metavar="FIRST-LAST", help="Later rounds.", show_default="last half")
    ] = None,
    false_discovery_rate: _FalseDiscoveryRate = _DEFAULT_RATE,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show heavy hitters that are rising, falling, new or gone, or rates by round.

    Without `--item`, the first half of the rounds is compared with the last half. Rates are tokens
    per 1,000 devices; their intervals include the chance of which devices came.

    Example:
      blindtally changes 3f2a0c55d1e9b7a4
      blindtally changes 3f2a0c55d1e9b7a4 --item github.com
    """
    from blindtally.console.service_connection import open_analyst

    ranges = _parse_rounds("--before", before), _parse_rounds("--after", after)
    if (before is None) is not (after is None):
        raise exit_with_error("--before and --after go together: pass both or none of them")
    rates: Sequence[RoundRate] = ()
    change = None
    with open_analyst(url, key) as analyst:
        target = analyst.study(study)
        if item:
            rates = target.series(item)
        if any(ranges) or not item:
            change = target.changes(*ranges, false_discovery_rate=false_discovery_rate)
    if json_path != "-":
        parts = _rate_tables(rates)
        if change:
            before, after = _rounds_in_words(change.before), _rounds_in_words(change.after)
            parts += _change_parts(change, f"changed from {before} to {after}")
            parts += key_notes(target.view.question, (row.item for row in change.changes))
        print_parts(*parts)
    document = {
        "rates": [row.model_dump() for row in rates],
        "changes": change and change.model_dump(),
    }
    write_json(json_path, document)


def compare_studies(
    study: Annotated[str, Argument(help="Name or id of the earlier study.")],
    other: Annotated[str, Argument(help="Name or id of the later study.")],
    false_discovery_rate: _FalseDiscoveryRate = _DEFAULT_RATE,
    url: UrlOption = DEFAULT_URL,
    key: ApiKeyOption = None,
    json_path: JsonOption = None,
) -> None:
    """Show the items whose rates differ between two studies of one question.

    Example:
      blindtally studies compare 3f2a0c55d1e9b7a4 9d1c77a0b2e4f658
    """
    from blindtally.console.service_connection import open_analyst

    with open_analyst(url, key) as analyst:
        earlier = analyst.study(study)
        later = analyst.study(other)
        comparison = earlier.compare(later, false_discovery_rate=false_discovery_rate)
    if comparison.differences:
        differences = "; ".join(comparison.differences)
        print_line(f"warning: the studies ask different questions. {differences}", err=True)
    if json_path != "-":
        notes = key_notes(earlier.view.question, (row.item for row in comparison.changes))
        print_parts(*_change_parts(comparison, "differ between the studies"), *notes)
    write_json(json_path, comparison.model_dump())


def _parse_rounds(option: str, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    first, _, last = text.partition("-")
    try:
        return int(first), int(last)
    except ValueError:
        raise exit_with_error(f"{option} takes FIRST-LAST, such as 1-5, not {text!r}") from None


def _rate_tables(rates: "Sequence[RoundRate]") -> list["Printable"]:
    """Return a table of the rates by round for each item."""
    tables = list["Printable"]()
    for item in dict.fromkeys(row.item for row in rates):
        cells = [
            [
                _rounds((row.first_round, row.last_round)),
                row.how,
                f"{row.devices:,}",
                *map(_number, (row.rate, row.low, row.high)),
            ]
            for row in rates
            if row.item == item
        ]
        numbers = ["devices", _unit(), "95% from", "to"]
        tables.append(result_table(["rounds", "how"], numbers, cells, title=item))
    return tables


def _change_parts(answer: "ItemChanges", statement: str) -> list["Printable"]:
    """Return the table of changed items, if any, and their number in words."""
    cells = [
        [
            row.item,
            row.change or "",
            *map(_number, (row.rate_before, row.rate_after, row.factor)),
            _number(row.factor_low),
            "inf" if row.factor_high is None else _number(row.factor_high),
            f"{row.p_value:.1g}",
        ]
        for row in answer.changes
    ]
    numbers = ["before", "after", "factor", f"{answer.interval_level:.1%} from", "to", "p"]
    text = f"{answer.changed} of {answer.tested} items {statement} (tokens {_unit()} devices)."
    if answer.changed:
        percent = f"{100 * answer.false_discovery_rate:.2g}%"
        text += f" On average at most {percent} of these changes are false."
    return [*([result_table(["item", "change"], numbers, cells)] if cells else []), text]


def _rounds(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


def _rounds_in_words(ends: tuple[int, int]) -> str:
    return f"{'round' if ends[0] == ends[1] else 'rounds'} {_rounds(ends)}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
