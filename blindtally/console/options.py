"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

from typer import Option

from blindtally.console import completion
from secagg.parameters import Mode

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
        autocompletion=completion.complete_data,
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
