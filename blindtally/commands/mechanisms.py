"""`blindtally mechanisms`: purpose, guarantee and cost of each mechanism."""

from blindtally.console.output_files import JsonOption, write_json
from blindtally.console.tables import bold_lines, fact_table, print_parts


def mechanisms(json_path: JsonOption = None) -> None:
    """List the mechanisms, each with its purpose, guarantee and cost.

    Example:
      blindtally mechanisms --json -
    """
    from blindtally.console.mechanism_catalogue import names_by_guarantee
    from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS

    by_guarantee = names_by_guarantee()
    if json_path != "-":
        for guarantee, names in by_guarantee.items():
            transport = "Reports" if names[0] in REPORT_MECHANISMS else "Secure sums"
            texts = {name: MECHANISMS[name].description for name in names}
            facts = {name: (text.purpose, f"sends {text.cost}") for name, text in texts.items()}
            print_parts(bold_lines(transport, guarantee), fact_table(facts), "")
        print_parts(
            "words: 16-bit words that the question allows; d: values; m: symbols or rows. "
            "docs/mechanisms.md helps to choose one."
        )
    rows = [
        {
            "mechanism": name,
            "transport": "report" if name in REPORT_MECHANISMS else "sum",
            "what": MECHANISMS[name].description.purpose,
            "guarantee": guarantee,
            "cost": MECHANISMS[name].description.cost,
        }
        for guarantee, names in by_guarantee.items()
        for name in names
    ]
    write_json(json_path, {"mechanisms": rows})
