"""`blindtally fleet`: simulated devices that take part in a study of a running service."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import stamina.instrumentation
import typer
from rich.console import Console, Group
from rich.text import Text

from blindtally import completion
from blindtally.demo.play import Setup, Watchers, create, follow
from blindtally.demo.results import InexactError, RoundResult
from blindtally.demo.screen import Screen
from blindtally.demo.setup import (
    DATA_SET,
    DEVICES,
    DROPOUT,
    FEWEST,
    ROUNDS,
    TIMEOUTS,
    choose,
    hold,
    least_cohort,
    load,
)
from blindtally.news import News, page, tell
from blindtally.output import HERE, ApiKey, Json, Url, failed, write_json
from blindtally.refused import refused
from blindtally.registrar import load as load_registrar
from blindtally.tables import table
from blindtally.workers import Dask, Workers, crowd
from client.analyst import Analyst
from client.crew import Crew
from client.fleet import NobodyEnteredError
from client.habits import Arrivals, Habits, last_steps
from client.policy import Policy, PolicyError
from client.problems import ServiceError
from client.slices import LostWorkersError, Slicing
from client.tables import HeavyHitter
from protocol.hashed import Hashed
from protocol.messages import StudyView, Timeouts
from protocol.round import Phase
from secagg.keys import Identity
from secagg.parameters import Mode

SHOWN = 20  # heavy hitters
_TELL_SHARES = ("hierarchical-histogram", "triehh")  # what `blindtally query` may be asked of
_MENDED_BY = {  # the option that lets devices take part, by the limit of a policy that refuses
    "max_contribution": "--max-contribution {}",
    "max_epsilon": "--max-epsilon {}",
    "min_cohort": "--min-cohort {}",
    "modes": "--mode {}",
    "registrar": "--registrar FILE",
    "repeat_exact": "--repeat-exact",
}
_DEVIATIONS = 4  # of who joins by coins, above the mean, there are seats for
_KEYS = "# and digits: the key of an item whose string was not fetched, as too faint or too late"
PATIENCE = 30.0  # seconds for the service to answer the first question


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
    The devices of a worker that dies are lost, and the fleet ends; rounds that are over are kept.

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
    fewest = least_cohort(devices or DEVICES) if new else FEWEST
    limits = Policy(
        max_contribution=max_contribution,
        min_cohort=min_cohort or fewest,
        max_epsilon=max_epsilon,
        repeat_exact=repeat_exact,
    )
    try:
        policy, signs = _trusting(limits, mode, registrar)
        crew = Crew(
            devices or DEVICES,
            dropout,
            seed,
            policy,
            registrar=signs,
            token=token,
            key=key,
            habits=habits,
        )
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
                news = News(screen.say, shows_moves=not screen.has_bars)
                telling = partial(tell, url, key, asked.id, news)
                with _keeping(asked.view, json_path) as seen:

                    def note(one: RoundResult) -> None:
                        seen.append(one)
                        screen.round(one)

                    watchers = Watchers(screen.step, note, lambda: None, telling)
                    follow(url, asked, setup, watchers, slices)
            found = asked.heavy_hitters()
            console.print(tabled(asked.view, found))
            for line in _where(url, asked.refresh(), took_part=bool(seen)):
                console.print(line, highlight=False, soft_wrap=True)
            write_json(json_path, _as_json(asked.view, seen, found))
    except KeyboardInterrupt:
        typer.echo("stopped; the study goes on without these devices", err=True)
        raise typer.Exit(130) from None
    except httpx.TransportError as error:
        raise failed(f"{url} is out of reach: {error}", code=1) from None
    except NobodyEnteredError as error:
        raise failed(f"{error}{mended(error.refusals, _MENDED_BY)}", code=1) from None
    except (InexactError, LostWorkersError, ServiceError, ValueError) as error:
        raise refused(error) from None


def mended(refusals: Sequence[PolicyError], by: Mapping[str, str]) -> str:
    """Return what lets devices take part that refused, by options with places for values."""
    known = [
        by[one.limit].format(one.offered)
        for one in refusals
        if one.limit in by and (one.offered is not None or "{}" not in by[one.limit])
    ]
    others = [one.limit for one in refusals if one.limit not in by]
    lets = f". To take part all the same: {' '.join(known)}" if known else ""
    asks = f". No option here changes {', '.join(others)}: ask by other terms" if others else ""
    return lets + asks


@contextmanager
def slicing(count: int, dask: str | None) -> Iterator[Slicing | None]:
    """Yield who plays slices of the devices, None for this process; stop them at the end.

    Raises:
        typer.Exit: as `blindtally.workers.hired`.
    """
    with crowd(count, dask, once=True) as (executor, threads):
        yield None if executor is None else Slicing(executor, threads)


@contextmanager
def _keeping(study: StudyView, json_path: str | None) -> Iterator[list[RoundResult]]:
    """Give a place for rounds that are over; if it ends before all are, write them as partial."""
    seen: list[RoundResult] = []
    try:
        yield seen
    except BaseException:
        if seen:
            told = f"{len(seen)} rounds of {study.rounds}"
            typer.echo(f"what is there is partial: {told}", err=True)
            with suppress(typer.Exit):  # it is said that it cannot be written; the end is another's
                write_json(json_path, _rounds_json(study, seen) | {"partial": True})
        raise


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


def tabled(study: StudyView, found: Sequence[HeavyHitter]) -> Group:
    """Return the table of what was found, and what is in it that is no item."""
    rows = [
        (one.item, f"{one.estimate:,.0f}", f"{one.standard_error:,.1f}") for one in found[:SHOWN]
    ]
    title = f"Held {study.question.threshold:g} times or more"
    shown = table(["item"], ["estimate", "± s.e."], rows, title)
    if isinstance(study.question.domain, Hashed) and any(one.item.startswith("#") for one in found):
        return Group(shown, Text(_KEYS, "dim"))
    return shown


def _where(url: str, study: StudyView, *, took_part: bool) -> Iterator[str]:
    """Yield where to look on: what is left of the study, its page, and how to ask it."""
    if not took_part:
        yield f"no device of this fleet took part: the study is {study.state}"
    elif study.state == "running":
        done = "all devices here have given"
        yield f"the study goes on without this fleet: {done}, round {study.round} is open"
    yield f"its page: {page(url, study.id)}"
    if study.question.mechanism in _TELL_SHARES:
        elsewhere = "" if url == HERE else f" --url {url}"
        yield f"ask it more: blindtally query {study.id} --quantile 0.5{elsewhere}"
    else:
        yield f'from Python: client.Analyst("{url}").study("{study.id}").heavy_hitters()'


def _as_json(
    study: StudyView, rounds: list[RoundResult], found: Sequence[HeavyHitter]
) -> dict[str, Any]:
    """Return what scripts read: the study's id, its rounds, and what was found."""
    return _rounds_json(study, rounds) | {"heavy_hitters": [asdict(one) for one in found]}


def _rounds_json(study: StudyView, rounds: list[RoundResult]) -> dict[str, Any]:
    return {"study": study.id, "rounds": [asdict(one) for one in rounds]}
