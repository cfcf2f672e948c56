"""The commands `blindtally demo` and `blindtally try`: their options and help.

Both run a study on this machine. They differ in its setup only: the demo has a bundled file and
devices that drop out, and a trial has the user's file.
"""

import os
import sys
from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typer import Argument, Exit, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import (
    DEFAULT_CONTRIBUTION,
    DEFAULT_DEVICES,
    DEFAULT_DROPOUT,
    DEFAULT_ROUNDS,
    ColumnOption,
    SeedOption,
    complete_data,
)
from blindtally.console.output_files import JsonOption
from blindtally.console.terminal import Terminal, print_line

if TYPE_CHECKING:
    from blindtally.fleet_run.fleet_setup import FleetSetup

ThresholdOption: TypeAlias = Annotated[
    float | None,
    Option(min=1, help="Devices that must hold an item that is listed.", show_default="by size"),
]
SumOption: TypeAlias = Annotated[
    Literal["pairwise", "one-shot"],
    Option(
        "--sum",
        help="Kind of sums: devices mask for one another (pairwise), or send one message each "
        "to a committee of seven operators, which is simulated too (one-shot).",
    ),
]
OutOption: TypeAlias = Annotated[
    Path | None, Option(help="Folder for the results.", show_default="by the clock")
]
JoinOption: TypeAlias = Annotated[
    bool,
    Option(
        "--join",
        help="Show a link and a QR code by which phones in this network take part in the one "
        "round, which waits for them. Needs --sum one-shot. BLINDTALLY_HOST has the address of "
        "this machine in another network.",
    ),
]
ExitOption: TypeAlias = Annotated[
    bool, Option("--exit", help="End with the answer, although a terminal keeps the page.")
]


def demo(
    devices: Annotated[int, Option(min=3, help="Number of devices in a round.")] = DEFAULT_DEVICES,
    rounds: Annotated[
        int | None,
        Option(min=1, help="Number of rounds.", show_default=f"{DEFAULT_ROUNDS}, with --join 1"),
    ] = None,
    dropout: Annotated[
        float, Option(min=0, max=0.4, help="Fraction of devices that drop out of a round.")
    ] = DEFAULT_DROPOUT,
    seed: SeedOption = 4,
    threshold: ThresholdOption = None,
    contribution: Annotated[
        int, Option(min=1, help="Maximum number of items that a device adds to a round (m).")
    ] = DEFAULT_CONTRIBUTION,
    message_bytes: Annotated[
        int | None,
        Option(
            min=1,
            help="Largest message of a device in a round: its vector and key shares.",
            show_default="by size",
        ),
    ] = None,
    kind: SumOption = "pairwise",
    join: JoinOption = False,
    json_path: JsonOption = None,
    out: OutOption = None,
    leaves: ExitOption = False,
) -> None:
    """Find what is common among simulated devices, over a real server on this machine.

    Starts a server, creates a study over REST and lets a fleet of devices, each with its own
    items and enrolled by a registrar, take part over HTTP. Some devices drop out. Every sum is
    compared with the vectors in it. `blindtally try` asks the users of a file.

    Example:
      blindtally demo
      blindtally demo --devices 60 --rounds 3 --out trial --json trial.json --exit
      blindtally demo --sum one-shot --join
    """
    rounds = rounds or (1 if join else DEFAULT_ROUNDS)
    settings = _as_json(locals())
    _check_join(join, kind)

    def setup() -> "FleetSetup":
        from blindtally.fleet_run.fleet_setup import (
            SEATS_FOR_PEOPLE,
            DataFile,
            build_setup,
            new_operators,
            new_registrar,
        )

        return build_setup(
            DataFile(),
            devices=devices,
            rounds=rounds,
            dropout=dropout,
            seed=seed,
            threshold=threshold,
            contribution=contribution,
            message_bytes=message_bytes,
            registrar=None if join else new_registrar(),
            operators=new_operators(kind),
            seats=SEATS_FOR_PEOPLE if join else 0,
        )

    _run("demo", setup, settings, out, json_path, leaves=leaves, join=join)


def try_file(
    path: Annotated[
        Path,
        Argument(
            metavar="FILE",
            help="CSV, JSON Lines or Parquet, with a row for each user and item.",
            autocompletion=complete_data,
        ),
    ],
    column: ColumnOption = None,
    users: Annotated[
        int | None, Option(min=20, help="Users that are asked, at most.", show_default="300")
    ] = None,
    threshold: ThresholdOption = None,
    epsilon: Annotated[
        float | None,
        Option(
            "--private",
            "--epsilon",
            min=0.01,
            help="Privacy loss of a device (epsilon), by noise.",
            show_default="exact sums",
        ),
    ] = None,
    kind: SumOption = "pairwise",
    join: JoinOption = False,
    seed: SeedOption = 4,
    json_path: JsonOption = None,
    out: OutOption = None,
    leaves: ExitOption = False,
) -> None:
    """Ask your own file: each user in it is a simulated device of a study on this machine.

    The question follows from the column: common texts, all options if there are few, or the mean
    of numbers. With --epsilon the answer has noise, and for numbers it is the median. Nothing
    leaves this machine.

    Example:
      blindtally try my.csv --column product
      blindtally try my.csv --column product --epsilon 1 --sum one-shot
    """
    settings = _as_json(locals())
    _check_join(join, kind, epsilon)

    from blindtally.datasets.file_formats import bundled_datasets

    if not path.exists() and str(path) not in bundled_datasets():
        raise exit_with_error(f"{path}: no such file")

    def setup() -> "FleetSetup":
        from blindtally.demo.own_file import Trial

        return Trial(
            path=path,
            column=column,
            users=users,
            threshold=threshold,
            epsilon=epsilon,
            kind=kind,
            join=join,
            seed=seed,
        ).setup()

    _run("try", setup, settings, out, json_path, leaves=leaves, join=join)


def _check_join(join: bool, kind: str, epsilon: float | None = None) -> None:
    """Refuse a study whose messages a browser cannot make."""
    if join and (kind != "one-shot" or epsilon is not None):
        raise exit_with_error(
            "--join needs exact sums of one message from each device: add --sum one-shot, and "
            "leave out --epsilon"
        )


def _as_json(options: dict[str, Any]) -> dict[str, Any]:
    return {name: str(each) if isinstance(each, Path) else each for name, each in options.items()}


def _run(
    name: str,
    make_setup: Callable[[], "FleetSetup"],
    settings: dict[str, Any],
    out: Path | None,
    json_path: str | None,
    *,
    leaves: bool,
    join: bool,
) -> None:
    """Run the study of `make_setup` on a server, which starts while the rest is imported."""
    # The server, another process, needs it: better to fail before that process starts.
    if find_spec("sqlalchemy") is None:
        raise ModuleNotFoundError(name="sqlalchemy")

    from blindtally.demo.server_process import ServerProcess, StoppedBySignalError

    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
    stays = is_terminal and json_path != "-" and not leaves
    console = Terminal(stderr=json_path == "-")
    with TemporaryDirectory(prefix="blindtally-", ignore_cleanup_errors=True) as temporary:
        is_kept = out is not None or not stays
        folder = Path(temporary)
        if is_kept:
            folder = out or Path(f"blindtally-{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}")
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise exit_with_error(error) from None
            if any(folder.iterdir()):
                raise exit_with_error(f"{folder} is not empty: name another folder with --out")
        listener = None
        if join:
            from blindtally.demo.join import make_listener

            try:
                listener = make_listener(Path(temporary))
            except (OSError, ValueError) as error:
                raise exit_with_error(f"--join has no address or certificate: {error}") from None
        service = ServerProcess(folder, is_open=True, join=listener)
        console.print(f"Starting a server: {service.url}/ shows the study in some seconds.")
        with service.handling_signals():
            try:
                service.launch()

                from blindtally.demo.run import DemoRun

                run = DemoRun(console, service, folder, settings, json_path, stays, is_kept)
                run.play(make_setup)
            except (KeyboardInterrupt, StoppedBySignalError) as stop:
                kept = f"Kept: {service.database}, {service.log}" if is_kept else "Nothing is kept."
                print_line(err=True)
                print_line(f"stopped. {kept}", err=True)
                code = stop.code if isinstance(stop, StoppedBySignalError) else 130
                raise Exit(code) from None
            finally:
                service.stop()
