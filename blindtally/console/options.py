"""Options that several commands have, and their completion in the shell.

No completion may be slow or fail: the user waits for it at every press of a key.
"""

from pathlib import Path
from typing import Annotated

from typer import Option

from blindtally.datasets.reader import bundled_datasets
from secagg.parameters import Mode

_DATA_SUFFIXES = (".csv", ".csv.gz", ".txt", ".txt.gz")


def complete_mechanism(incomplete: str) -> list[str]:
    from protocol.mechanisms.registry import MECHANISMS  # noqa: PLC0415 - no other command waits for them

    return [name for name in MECHANISMS if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """Return bundled data sets, data files and folders whose names begin with `incomplete`."""
    lead, slash, typed = incomplete.rpartition("/")
    lead += slash
    names = [name for name in bundled_datasets() if name.startswith(incomplete)]
    try:
        entries = sorted(Path(lead).expanduser().iterdir())
    except OSError:
        return names
    for entry in entries:
        if entry.name.startswith(typed) and (typed or not entry.name.startswith(".")):
            if entry.is_dir():
                names.append(f"{lead}{entry.name}/")
            elif entry.name.endswith(_DATA_SUFFIXES):
                names.append(f"{lead}{entry.name}")
    return names


ContributionOption = Annotated[
    int, Option(min=1, help="Maximum number of items that a device adds to a round (m).")
]
DropoutOption = Annotated[
    float, Option(min=0, max=0.4, help="Fraction of devices that drop out of a round.")
]
FleetDataOption = Annotated[
    Path | None,
    Option(
        help="Data file, or bundled data set, with the items of the devices.",
        show_default="link_user_domains",
        autocompletion=complete_data,
    ),
]
FleetRoundsOption = Annotated[int, Option(min=1, help="Number of rounds of a new study.")]
MaxShareOption = Annotated[
    float,
    Option(
        "--most", min=0, max=1, help="Upper bound on an item's share (f*), for --goal worst-mse."
    ),
]
ModeOption = Annotated[
    Mode, Option(help="Assumed server: follows the protocol (semi-honest), or may not (active).")
]
SeedOption = Annotated[int, Option(min=0, help="Seed of all random choices.")]
StopAtOption = Annotated[
    str | None,
    Option(
        metavar="PRECISION,RECALL",
        help="Expected precision and recall of the list, such as 0.95,0.9, at which the study ends "
        "before its last round. The true values can be lower, above all if the list is short.",
    ),
]
