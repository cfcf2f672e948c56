"""`blindtally mechanisms`: purpose, guarantee and cost of each mechanism."""

from typing import Final

from rich.text import Text

from blindtally.console.mechanism_catalogue import CATALOGUE
from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import fact_table, print_parts

_SUM_TITLES: Final = (
    "Secure sums of cohorts: the server sees the exact sums",
    "Secure sums, central (epsilon, delta)-DP:\nof the sum if it has noise, else of the answer",
)


def mechanisms(json_path: JsonOption = None) -> None:
    """List the mechanisms, each with its purpose, guarantee and cost.

    Example:
      blindtally mechanisms --json -
    """
    from protocol.mechanisms.registry import REPORT_MECHANISMS

    if json_path != "-":
        titles = [*_SUM_TITLES, *(f"Reports, {guarantee}" for guarantee in [*CATALOGUE][2:])]
        for title, entries in zip(titles, CATALOGUE.values(), strict=True):
            facts = {name: f"{what}\nsends {cost}" for name, (what, cost) in entries.items()}
            print_parts(Text(title, "bold"), fact_table(facts), "")
        print_parts(
            "words: 16-bit words that the question allows; d: values; m: symbols or rows. "
            "docs/mechanisms.md helps to choose one."
        )
    rows = [
        {
            "mechanism": name,
            "transport": "report" if name in REPORT_MECHANISMS else "sum",
            "what": what,
            "guarantee": guarantee,
            "cost": cost,
        }
        for guarantee, entries in CATALOGUE.items()
        for name, (what, cost) in entries.items()
    ]
    write_json(json_path, {"mechanisms": rows})
