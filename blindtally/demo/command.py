"""The command `blindtally demo`: its options and help."""

from pathlib import Path
from random import SystemRandom
from typing import Annotated, Final, Literal

from typer import Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import (
    DEFAULT_CONTRIBUTION,
    DEFAULT_DEVICES,
    DEFAULT_DROPOUT,
    DEFAULT_ROUNDS,
    ColumnOption,
    FleetDataOption,
    SeedOption,
)
from blindtally.console.output_files import JsonOption
from blindtally.console.terminal import Terminal

FULL_DEVICES: Final = 160
FULL_ROUNDS: Final = 7


def demo(
    devices: Annotated[
        int | None,
        Option(min=3, help="Number of devices in a round.", show_default=str(DEFAULT_DEVICES)),
    ] = None,
    rounds: Annotated[
        int | None, Option(min=1, help="Number of rounds.", show_default=str(DEFAULT_ROUNDS))
    ] = None,
    full: Annotated[
        bool,
        Option("--full", help=f"{FULL_ROUNDS} rounds of {FULL_DEVICES} devices, for some minutes."),
    ] = False,
    dropout: Annotated[
        float, Option(min=0, max=0.4, help="Fraction of devices that drop out of a round.")
    ] = DEFAULT_DROPOUT,
    data: FleetDataOption = None,
    column: ColumnOption = None,
    seed: SeedOption = 4,
    threshold: Annotated[
        float | None,
        Option(
            min=1, help="Total count from which an item is a heavy hitter.", show_default="by size"
        ),
    ] = None,
    contribution: Annotated[
        int, Option(min=1, help="Maximum number of items that a device adds to a round (m).")
    ] = DEFAULT_CONTRIBUTION,
    words: Annotated[
        int | None,
        Option(
            min=1,
            help="Maximum number of 16-bit words that a device sends in a round.",
            show_default="by size",
        ),
    ] = None,
    kind: Annotated[
        Literal["pairwise", "one-shot"],
        Option(
            "--sum",
            help="Kind of sums: devices mask for one another (pairwise), or send one message each "
            "to a committee of seven operators, which is simulated too (one-shot).",
        ),
    ] = "pairwise",
    json_path: JsonOption = None,
    out: Annotated[
        Path | None, Option(help="Folder for the results.", show_default="by the clock")
    ] = None,
) -> None:
    """Find what is common among simulated devices, over a real server on this machine.

    Starts a server, creates a study over REST and lets a fleet of devices, each with its own
    items and enrolled by a registrar, take part over HTTP. Some devices drop out. Every sum is
    compared with the vectors in it.

    Example:
      blindtally demo
      blindtally demo --devices 60 --rounds 3 --out trial --json trial.json
    """
    devices = devices or (FULL_DEVICES if full else DEFAULT_DEVICES)
    rounds = rounds or (FULL_ROUNDS if full else DEFAULT_ROUNDS)
    options = locals().items()
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in options}

    from blindtally.demo.run import create_folder, run_demo, write_results
    from blindtally.fleet_run.fleet_setup import DataFile, build_setup, new_operators
    from secagg.keys import Identity

    console = Terminal(stderr=json_path == "-")
    try:
        setup = build_setup(
            DataFile(data, column),
            devices=devices,
            rounds=rounds,
            dropout=dropout,
            seed=seed,
            threshold=threshold,
            contribution=contribution,
            words=words,
            registrar=Identity.generate(SystemRandom()),
            operators=new_operators(kind),
        )
        folder = create_folder(out)
    except (ValueError, OSError) as error:
        raise exit_with_error(error) from None
    settings |= {"reading": setup.reading.as_json()}
    results = run_demo(console, folder, setup, settings)
    write_results(console, folder, results, json_path)
