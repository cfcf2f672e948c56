"""`blindtally fleet`: simulated devices that take part in a study of a running service."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import stamina.instrumentation
import typer
from rich.console import Console, Group

from blindtally import completion
from blindtally.demo.play import Setup, Watchers, create, follow
from blindtally.demo.results import InexactError, RoundResult
from blindtally.demo.screen import Screen
from blindtally.demo.setup import DATA_SET, DEVICES, DROPOUT, ROUNDS, TIMEOUTS, choose, hold, load
from blindtally.output import HERE, ApiKey, Json, Url, failed, write_json
from blindtally.registrar import load as load_registrar
from blindtally.tables import table
from blindtally.workers import Dask, Workers, crowd
from client.analyst import Analyst
from client.crew import Crew
from client.fleet import NobodyEnteredError
from client.habits import Arrivals, Habits, last_steps
from client.policy import Policy
from client.problems import ServiceError
from client.slices import LostWorkersError, Slicing
from client.tables import HeavyHitter
from protocol.messages import StudyView, Timeouts
from protocol.round import Phase
from secagg.keys import Identity
from secagg.parameters import Mode

SHOWN = 20  # heavy hitters
_FEWEST = 20  # devices in a sum, unless told otherwise
_DEVIATIONS = 4  # of who joins by coins, above the mean, there are seats for
PATIENCE = 30.0  # seconds for the service to answer the first question
FAULTS = (InexactError, LostWorkersError, NobodyEnteredError, ServiceError, ValueError)


def fleet(
    url: Url = HERE,
    key: ApiKey = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="BLINDTALLY_ENROLMENT_TOKEN",
            show_envvar=False,  # it is too long for a narrow terminal
            help="Lets the devices in where it is closed; or set the variable in docs/cli.md.",
        ),
    ] = None,
    study: Annotated[str | None, typer.Option(help="The study to take part in.")] = None,
    new: Annotated[
        bool, typer.Option("--create", help="Create a study first, as the demo does.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            help="What devices hold.", show_default=DATA_SET, autocompletion=completion.data
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            min=3,
            help="Devices that hear of a round.",
            show_default="all who can sit",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of a study to create.")] = ROUNDS,
    silence: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds after which a phase of it goes on without those who are silent. Where a "
            "replica may die, more than 3: its devices try again within these.",
        ),
    ] = TIMEOUTS.patience,
    dropout: Annotated[
        float, typer.Option(min=0, max=0.4, help="Fraction of devices that vanishes.")
    ] = DROPOUT,
    lost: Annotated[
        list[str] | None,
        typer.Option(
            "--lost",
            metavar="PHASE=SHARE",
            help="Lose so many in this phase, in the place of --dropout: sharing=0.1; repeat it.",
        ),
    ] = None,
    arrivals: Annotated[
        Arrivals, typer.Option(help="How devices come to a round: see --over.")
    ] = Arrivals.AT_ONCE,
    over: Annotated[
        float,
        typer.Option(min=0, help="Seconds over which they come; a day of diurnal arrivals."),
    ] = 0.0,
    slow: Annotated[
        float, typer.Option(min=0, max=0.9, help="Fraction of devices that is slow to answer.")
    ] = 0.0,
    pause: Annotated[
        float, typer.Option(min=0, help="Seconds that these take for each answer, on average.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Chooses devices, losses and samples.")] = 1,
    max_contribution: Annotated[
        int, typer.Option(min=1, help="Devices refuse to give more items than this.")
    ] = 100,
    min_cohort: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Devices refuse to be summed with fewer than this.",
            show_default="20; of a study that is created here, a quarter of its devices at most",
        ),
    ] = None,
    mode: Annotated[
        Literal["semi-honest", "active"],
        typer.Option(help="Devices trust the server with no more than this."),
    ] = "active",
    max_epsilon: Annotated[
        float, typer.Option(min=0, help="Devices refuse noise or reports that tell more.")
    ] = 4.0,
    repeat_exact: Annotated[
        bool,
        typer.Option(
            "--repeat-exact", help="Take part in every round if asked, though sums have no noise."
        ),
    ] = False,
    registrar: Annotated[
        Path | None,
        typer.Option(help="The key file whose registrar enrols the devices, and no other."),
    ] = None,
    workers: Workers = 1,
    dask: Dask = None,
    json_path: Json = None,
) -> None:
    """Let simulated devices take part in a study, round after round, until it is over.

    Each sum that is shown is compared with the vectors in it, so no other devices may take part.

    Example:
      blindtally fleet --create --devices 60 --rounds 3
      blindtally fleet --study 3f2a0c55d1e9b7a4 --registrar registrar.key
    """
    if (study is None) is not new:
        raise failed("name a study with --study, or make one with --create")
    try:
        habits = Habits(arrivals, over, slow, pause, _losses(lost or [], mode))
    except ValueError as error:
        raise failed(error) from None
    stamina.instrumentation.set_on_retry_hooks([])  # hundreds of devices say the same
    fewest = min(_FEWEST, max(2, (devices or DEVICES) // 4)) if new else _FEWEST
    limits = Policy(
        max_contribution=max_contribution,
        min_cohort=min_cohort or fewest,
        max_epsilon=max_epsilon,
        repeat_exact=repeat_exact,
    )
    try:
        policy, signs = _trusting(limits, mode, registrar)
        crew = Crew(
            devices or DEVICES, dropout, seed, policy, registrar=signs, token=token, key=key
        )
        crew = replace(crew, habits=habits)
        with slicing(workers, dask) as slices, Analyst(url, key, patience=PATIENCE) as analyst:
            if study is None:
                setup = _new(data, crew, rounds, mode, silence)
                asked = create(analyst, setup)
            else:
                asked = analyst.study(study)
                setup = _joining(data, crew, asked.view, devices)
            console = Console(stderr=json_path == "-")
            console.print(
                f"study {asked.id} of {asked.view.rounds} rounds at {url}", highlight=False
            )
            with Screen(console, asked.view.rounds) as screen:
                watchers = Watchers(screen.step, screen.round, check=lambda: None)
                _, seen = follow(url, asked, setup, watchers, slices)
            found = asked.heavy_hitters()
            console.print(_found(asked.view, found))
            write_json(json_path, _as_json(asked.view, seen, found))
    except KeyboardInterrupt:
        typer.echo("stopped; the study goes on without these devices", err=True)
        raise typer.Exit(130) from None
    except httpx.TransportError as error:
        raise failed(f"{url} is out of reach: {error}", code=1) from None
    except FAULTS as error:
        raise failed(error, code=1) from None


@contextmanager
def slicing(count: int, dask: str | None) -> Iterator[Slicing | None]:
    """Yield who plays slices of the devices, None for this process; stop them at the end.

    Raises:
        typer.Exit: as `blindtally.workers.hired`.
    """
    with crowd(count, dask) as (executor, threads):
        yield None if executor is None else Slicing(executor, threads)


def _trusting(policy: Policy, mode: Mode, registrar: Path | None) -> tuple[Policy, Identity | None]:
    """Return the policy with whom the devices trust, and who enrols them.

    Whoever trusts the server to keep to the protocol takes part as well if it need not.
    """
    key = load_registrar(registrar) if registrar else None
    modes = frozenset[Mode]({mode, "active"})
    return replace(policy, modes=modes, registrar=key.public if key else None), key


def _losses(pairs: Sequence[str], mode: Mode) -> dict[Phase, float]:
    """Return the shares of devices that are lost in phases, by pairs PHASE=SHARE."""
    losses = {}
    for pair in pairs:
        name, _, share = pair.partition("=")
        try:
            losses[Phase(name)] = float(share)
        except ValueError:
            raise ValueError(
                f"--lost takes PHASE=SHARE such as sharing=0.1, got {pair!r}"
            ) from None
    last_steps(losses, mode)  # now, and not in the midst of a round
    return losses


def _new(data: Path | None, crew: Crew, rounds: int, mode: Mode, silence: float) -> Setup:
    chosen = choose(
        data,
        devices=crew.devices,
        rounds=rounds,
        dropout=sum(crew.habits.losses.values()) or crew.dropout,
        seed=crew.seed,
        threshold=None,
        contribution=2,
        words=None,
        mode=mode,
        registrar=crew.registrar,
    )
    long = max(chosen.timeouts.enrolling, 2 * crew.habits.over)
    given = {"patience": silence, "enrolling": long}
    timeouts = Timeouts(**(chosen.timeouts.model_dump() | given))
    return replace(chosen, crew=crew, timeouts=timeouts)


def _joining(data: Path | None, crew: Crew, asked: StudyView, devices: int | None) -> Setup:
    """Return a setup for a study that somebody else has created."""
    crew = replace(crew, devices=devices or _selected(asked))
    rounds = 1 if asked.question.repeats else asked.rounds
    holdings = hold(load(data), rounds, crew.devices, asked.question.contribution, crew.seed)
    return Setup(asked.question, asked.terms, asked.rounds, asked.timeouts, crew, holdings)


def _selected(asked: StudyView) -> int:
    """Return how many devices to select for a round, if each of them that joins is to sit."""
    seats, invited = asked.terms.devices, getattr(asked.question, "invited", 1.0)
    if invited == 1:
        return seats
    root = math.sqrt(_DEVIATIONS**2 / 4 + seats) - _DEVIATIONS / 2  # of the joined, on average
    return max(1, math.floor(root**2 / invited))


def _found(study: StudyView, found: Sequence[HeavyHitter]) -> Group:
    rows = [
        (one.item, f"{one.estimate:,.0f}", f"{one.standard_error:,.1f}") for one in found[:SHOWN]
    ]
    title = f"Held {study.question.threshold:g} times or more"
    return table(["item"], ["estimate", "± s.e."], rows, title)


def _as_json(
    study: StudyView, rounds: list[RoundResult], found: Sequence[HeavyHitter]
) -> dict[str, Any]:
    """Return what scripts read: the study's id, its rounds, and what was found."""
    return {
        "study": study.id,
        "rounds": [asdict(one) for one in rounds],
        "heavy_hitters": [asdict(one) for one in found],
    }
