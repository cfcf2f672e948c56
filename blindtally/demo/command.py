"""The command `blindtally demo`: options, files, and the order of events."""

import os
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import SystemRandom
from typing import Annotated, Any, Literal

import httpx
import stamina.instrumentation
import typer
from rich.console import Console

from blindtally import completion
from blindtally.demo.picture import draw
from blindtally.demo.play import Setup, Watchers, run
from blindtally.demo.results import InexactError, Results
from blindtally.demo.screen import Screen, show
from blindtally.demo.service import Service, ServiceDownError, StoppedError
from blindtally.demo.setup import CONTRIBUTION, DATA_SET, DEVICES, DROPOUT, ROUNDS, choose
from blindtally.output import Json, failed, write_json
from blindtally.refused import refused
from client.extras import install
from client.fleet import NobodyEnteredError
from client.problems import ServiceError
from secagg.keys import Identity


def demo(
    devices: Annotated[int, typer.Option(min=3, help="Devices in a round.")] = DEVICES,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = ROUNDS,
    dropout: Annotated[
        float, typer.Option(min=0, max=0.4, help="Fraction of devices that vanishes.")
    ] = DROPOUT,
    data: Annotated[
        Path | None,
        typer.Option(
            help="What devices hold.", show_default=DATA_SET, autocompletion=completion.data
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Chooses devices, losses and samples.")] = 4,
    threshold: Annotated[
        float | None,
        typer.Option(min=1, help="An item is heavy from this count on.", show_default="by size"),
    ] = None,
    contribution: Annotated[
        int, typer.Option(min=1, help="The most items that a device gives.")
    ] = CONTRIBUTION,
    words: Annotated[
        int | None,
        typer.Option(min=1, help="16-bit words that a device may send.", show_default="by size"),
    ] = None,
    mode: Annotated[
        Literal["semi-honest", "active"], typer.Option(help="What the server is trusted with.")
    ] = "active",
    json_path: Json = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder to write to.", show_default="by the clock")
    ] = None,
) -> None:
    """Find what is common among simulated devices, over a real server on this machine.

    Starts a server, creates a study over REST and lets a fleet of devices, each with its own
    items and enrolled by a registrar, take part over HTTP; some vanish on the way. Every sum
    is compared with the vectors in it.

    Example:
      blindtally demo
      blindtally demo --devices 60 --rounds 3 --out trial --json trial.json
    """
    asked = locals().items()
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in asked}
    console = Console(stderr=json_path == "-")
    try:
        setup = choose(
            data,
            devices=devices,
            rounds=rounds,
            dropout=dropout,
            seed=seed,
            threshold=threshold,
            contribution=contribution,
            words=words,
            mode=mode,
            registrar=Identity.generate(SystemRandom()),
        )
        folder = _folder(out)
    except (ValueError, OSError) as error:
        raise failed(error) from None
    stamina.instrumentation.set_on_retry_hooks([])  # hundreds of devices say the same
    results = _run(console, folder, setup, settings)
    _write(console, folder, results, json_path)


def _run(console: Console, folder: Path, setup: Setup, settings: dict[str, Any]) -> Results:
    """Return the results; say what went wrong and what is kept if there are none."""
    service = Service(folder)
    try:
        console.print(f"[dim]starting a server; everything is kept in[/] {folder}/")
        with service.heeding(), service, Screen(console, setup.rounds) as screen:
            watchers = Watchers(screen.step, screen.round, service.check)
            crew = replace(setup.crew, key=service.key, token=service.token)
            return run(service.url, replace(setup, crew=crew), watchers, settings)
    except (KeyboardInterrupt, StoppedError) as stop:
        typer.echo(f"\nstopped. Kept: {service.database}, {service.log}", err=True)
        raise typer.Exit(stop.code if isinstance(stop, StoppedError) else 130) from None
    except InexactError as error:
        raise failed(
            f"A SUM IS WRONG: {error}; please report this, with {folder}/", code=1
        ) from None
    except (ServiceDownError, ServiceError, NobodyEnteredError, httpx.TransportError) as error:
        raise refused(error) from None


def _write(console: Console, folder: Path, results: Results, json_path: str | None) -> None:
    """Write the files, print the tables, and end with F1."""
    write_json(str(folder / "results.json"), results.as_json())
    write_json(json_path, results.as_json())
    show(console, results)
    try:
        draw(results, folder)
    except ImportError:
        console.print(f"no picture: matplotlib is missing ({install('demo')})", markup=False)
    names = ", ".join(sorted(path.name for path in folder.iterdir()))
    console.print(f"\nin {folder}/: {names}", soft_wrap=True)
    console.print(f"serve it again: {_serve_again(folder)}", soft_wrap=True, highlight=False)
    score = results.score
    console.print(
        f"F1 {score.f1:.2f} (precision {score.precision:.2f}, recall {score.recall:.2f})",
        highlight=False,
    )


def _serve_again(folder: Path) -> str:
    program = Path(sys.argv[0])
    named = os.path.relpath(program) if program.name == "blindtally" else "blindtally"
    return f"{named} serve --open --database sqlite:///{folder / 'blindtally.db'}"


def _folder(out: Path | None) -> Path:
    """Return a new folder, `out` or one named by the clock."""
    now = datetime.now().astimezone()
    folder = out or Path(f"blindtally-demo-{now:%Y%m%d-%H%M%S}")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
