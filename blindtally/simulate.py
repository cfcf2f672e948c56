"""`blindtally simulate`: a study over a data file, in memory, measured against the truth."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Protocol

import numpy as np
import typer

from blindtally import (
    completion,
    simulate_heavy,
    simulate_numbers,
    simulate_releases,
    simulate_reports,
)
from blindtally.data import LEAST, Population, read, too_few
from blindtally.measures import SHOWN, Result, heavy_hitters, measure
from blindtally.output import Json, failed, refuse_others, write_json
from blindtally.progress import watched
from blindtally.tables import facts, show
from blindtally.together import hands
from blindtally.workers import Dask, Workers
from protocol.domain import Alphabet, Utf8, cheapest_domain, strings_of
from protocol.mechanism import SumQuestion, Terms
from protocol.mechanisms import MECHANISMS, REPORTING, SUMMING, AnyQuestion, parse_question
from protocol.oracles.goals import heeds_bound, heeds_goal
from protocol.oracles.registry import ORACLES
from protocol.privacy.release import Mode as Release
from protocol.simulation import ALONE, Hands, run_study
from protocol.stretches import STRETCH
from secagg.parameters import Mode

_COHORT = 1000  # devices of one secure sum; a larger one only costs its devices more
_COHORTS = 1000  # of a round, the most: beyond a million devices they are larger
_WORDS = 2000
_THRESHOLD, _DELTA = 50.0, 1e-6
_ALL = ("mechanism", "data", "column", "clients", "epsilon", "threshold", "confidence")
_ALWAYS = ("sets", "seed", "json_path")
_OF_REPORTS = {"confidence", "goal", "most"}
_OF_WORKERS = {"workers", "dask"}
# Why the others have none: a piece of work takes half a second or more (docs/scaling.md).
_OF_A_TRIE = "a level of 10,000,000 devices takes a tenth of a second, which is nothing to share"
_OF_NUMBERS = "what a round takes does not grow with its devices, so there is nothing to share"
_OF_RELEASES = {"epsilon", "delta", "levels", "low", "high", "release", "invited"}
# What --set does not take: what options say, or the command itself.
_OPTIONS = {*SumQuestion.model_fields, "epsilon", "delta", "invited", "goal", "most"}
_RELEASES: dict[str, Release] = {"triehh": "sample-threshold", "hierarchical-histogram": "noise"}


class Kind(Protocol):
    """A way to simulate: the modules beside this one."""

    def asked(self, options: dict[str, Any], words: int | None, settings: dict[str, Any], /) -> Any:  # noqa: ANN401 (each has options and results of its own)
        """Return what the command's options say."""

    def run(self, wanted: Any, /) -> Any:  # noqa: ANN401
        """Return what comes of what is wanted."""

    def show(self, wanted: Any, result: Any, /) -> None:  # noqa: ANN401
        """Print it."""

    def as_json(self, wanted: Any, result: Any, /) -> dict[str, Any]:  # noqa: ANN401
        """Return what scripts read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command's options say."""

    mechanism: str
    data: Path
    column: str | None
    rounds: int
    clients: int
    threshold: float
    words: int
    contribution: int
    alphabet: str | None
    length: int | None
    secagg: bool
    corrupt: float
    dropout: float
    mode: Mode
    settings: dict[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class Setup:
    """A study that is ready to run."""

    population: Population
    question: AnyQuestion
    terms: Terms
    rounds: int
    clients: int
    left_out: int  # items of the file that are outside the domain


def simulate(
    context: typer.Context,
    mechanism: Annotated[
        str,
        typer.Argument(
            help=f"One of: {', '.join(MECHANISMS)}.", autocompletion=completion.mechanisms
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="CSV item,count or user,item,count, or baskets; or what comes with us: "
            "link_user_domains, words, short, ages.",
            autocompletion=completion.data,
        ),
    ],
    column: Annotated[str | None, typer.Option(help="The column of the items.")] = None,
    rounds: Annotated[
        int, typer.Option(min=1, max=10_000, help="Rounds (R); reports have one.")
    ] = 30,
    clients: Annotated[int, typer.Option(min=3, help="Devices in a round (n).")] = 10_000,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=1e12,
            help="An item is heavy from this count on, over all rounds.",
            show_default="50; of reports, what counts of nothing hardly reach",
        ),
    ] = None,
    confidence: Annotated[
        float,
        typer.Option(
            min=0.01, max=0.999, help="How sure it must be that a report's item is heavy."
        ),
    ] = 0.5,
    words: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="16-bit words that a device may send in a round.",
            show_default="2000; of a trie, 65536",
        ),
    ] = None,
    contribution: Annotated[
        int, typer.Option(min=1, help="The most items that a device adds (m).")
    ] = 1,
    alphabet: Annotated[
        str | None, typer.Option(help="Items are strings of these characters.")
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Items are at most this long: bytes, or characters."),
    ] = None,
    secagg: Annotated[
        bool, typer.Option("--secagg", help="Sum securely, with every message of the protocol.")
    ] = False,
    corrupt: Annotated[float, typer.Option(help="Fraction of devices that may collude.")] = 0.1,
    dropout: Annotated[float, typer.Option(help="Fraction of devices that vanish.")] = 0.0,
    mode: Annotated[
        Literal["semi-honest", "active"], typer.Option(help="What the server may do.")
    ] = "active",
    epsilon: Annotated[
        float, typer.Option(help="What a report, or a study of released counts, may cost.")
    ] = 1.0,
    delta: Annotated[
        float | None,
        typer.Option(
            help="With epsilon: of all levels of a trie, of a report in noise.",
            show_default="1e-6 and 0",
        ),
    ] = None,
    levels: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Levels of a tree, a symbol or digit each.",
            show_default="10, or 8 of a histogram",
        ),
    ] = None,
    low: Annotated[
        float | None,
        typer.Option(help="Items are numbers from here on; of a histogram, from the least."),
    ] = None,
    high: Annotated[float | None, typer.Option(help="And up to here.")] = None,
    release: Annotated[
        Release | None,
        typer.Option(
            help="How counts are hidden, only with noise from the server.",
            show_default="sample-threshold of a trie, noise of a histogram",
        ),
    ] = None,
    invited: Annotated[
        float,
        typer.Option(help="Each device of a trie of words joins a level with these odds only."),
    ] = 1.0,
    goal: Annotated[
        Literal["worst-mse", "l2"], typer.Option(help="Which error of reports is to be small.")
    ] = "l2",
    most: Annotated[
        float,
        typer.Option(help="No item is held by a larger share (f*); for --goal worst-mse."),
    ] = 1.0,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A field of this mechanism's question."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same result.")] = 1,
    workers: Workers = 1,
    dask: Dask = None,
    json_path: Json = None,
) -> None:
    """Simulate a study over a data file and measure what it finds.

    Example:
      blindtally simulate subsampled-iblt --data words --words 2000 --set t=5
      blindtally simulate triehh --data words --clients 1000000 --epsilon 1
    """
    own: dict[str, Any] = {"data": data, "column": column, "clients": clients, "seed": seed}
    own["epsilon"] = epsilon
    if mechanism not in MECHANISMS:
        raise failed(f"no mechanism {mechanism!r}; there is {', '.join(MECHANISMS)}")
    if mechanism in REPORTING:
        why = ", of strings of any characters," if mechanism == "prefix-extension" else ""
        taken = {*_ALL, *_ALWAYS, *_OF_WORKERS, *taken_by(mechanism)}
        refuse_others(context, taken, f"a simulation of {mechanism}{why}")
        own |= {"mechanism": mechanism, "threshold": threshold, "confidence": confidence}
        own |= {"delta": delta, "goal": goal, "most": most}
        own |= {"alphabet": alphabet, "length": length, "workers": workers, "dask": dask}
        kind: Kind = simulate_reports if mechanism in ORACLES else simulate_heavy
        _play(kind, own, words, sets, json_path)
        return
    others = _OF_REPORTS | (_OF_WORKERS if mechanism in simulate_numbers.LEVELS else _OF_RELEASES)
    known = {option.name for option in context.command.params if option.name is not None}
    is_of_numbers = mechanism != "triehh" or low is not None or high is not None
    whys = dict.fromkeys(_OF_WORKERS, _OF_NUMBERS if is_of_numbers else _OF_A_TRIE)
    refuse_others(context, known - others, f"a simulation of {mechanism}", whys)
    threshold = _THRESHOLD if threshold is None else threshold
    if mechanism in simulate_numbers.LEVELS:
        delta = _DELTA if delta is None else delta
        own |= {"delta": delta, "corrupt": corrupt, "mode": release or _RELEASES[mechanism]}
        own["levels"] = levels or simulate_numbers.LEVELS[mechanism]
        if is_of_numbers:
            refuse_others(context, known - {"invited"} - others, "a simulation of numbers")
            own |= {"mechanism": mechanism, "low": low, "high": high}
            _play(simulate_numbers, own, words, sets, json_path)
            return
        own |= {"threshold": threshold, "contribution": contribution}
        own |= {"alphabet": alphabet, "dropout": dropout, "invited": invited}
        _play(simulate_releases, own, words, sets, json_path)
        return
    words = words or _WORDS
    options = {k: v for k, v in locals().items() if k in Asked.__slots__}
    try:
        asked = Asked(**options, settings=_settings(sets or []))
        setup = prepare(asked)
    except ValueError as error:
        raise failed(error) from None
    with hands(workers, dask) as some:
        result = run(setup, seed, secure=secagg, dropout=dropout, by=some)
    if json_path != "-":
        _show(setup, result)
    # Last, so that a file that cannot be written costs no result.
    write_json(json_path, as_json(asked, setup, result))
    if result.stopped:
        typer.echo(f"stopped; what is there is partial: {_played(setup, result)}", err=True)
        raise typer.Exit(130)


def _play(
    kind: Kind,
    options: dict[str, Any],
    words: int | None,
    sets: list[str] | None,
    json_path: str | None,
) -> None:
    """Run what is asked, show it and write it; fail with what is wrong about it."""
    try:
        wanted = kind.asked(options, words, _settings(sets or []))
        result = kind.run(wanted)
    except ValueError as error:
        raise failed(error) from None
    if json_path != "-":
        kind.show(wanted, result)
    write_json(json_path, kind.as_json(wanted, result))


def taken_by(mechanism: str) -> set[str]:
    """Return which options a mechanism of reports takes beside those that all of them do."""
    if mechanism == "prefix-extension":
        return {"length"}
    taken = {"length", "alphabet"}
    if mechanism not in ORACLES:
        return taken | {"delta"}
    taken |= {"most"} if heeds_bound(mechanism) else set()
    return taken | ({"goal"} if heeds_goal(mechanism) else set())


def run(
    setup: Setup, seed: int, *, secure: bool = False, dropout: float = 0.0, by: Hands = ALONE
) -> Result:
    """Return what the study finds; progress goes to stderr if somebody watches it.

    Ctrl-C ends it: then it is what the rounds found that were over.
    """
    mechanism = SUMMING[setup.question.mechanism]
    people = setup.population.rounds(
        setup.rounds,
        setup.clients,
        setup.question.contribution,
        np.random.default_rng([seed, 0]),
        stretch=STRETCH,
    )
    study = run_study(
        mechanism,
        setup.question,
        setup.terms,
        people,
        Random(seed),
        planned=setup.rounds,
        dropout=dropout,
        secure=secure,
        hands=by,
    )
    return measure(watched(study, "rounds", setup.rounds), setup.question)


def _played(setup: Setup, result: Result) -> str:
    return f"{len(result.thresholds)} rounds of {setup.rounds}"


def as_json(asked: Asked, setup: Setup, result: Result) -> dict[str, Any]:
    """Return what scripts read: the measures, what was found, and what was asked."""
    parameters = asdict(asked) | {
        "data": str(asked.data),
        "clients": setup.clients,
        "domain": setup.question.domain.model_dump(),
        "terms": setup.terms.model_dump(mode="json"),
        "items_left_out": setup.left_out,
    }
    return result.as_json() | {"parameters": parameters}


def prepare(asked: Asked) -> Setup:
    """Return the study that was asked for.

    Raises:
        ValueError: if there is none; says why, and where in the file.
    """
    if asked.mechanism not in MECHANISMS:
        raise ValueError(f"no mechanism {asked.mechanism!r}; there is {', '.join(MECHANISMS)}")
    everything = read(asked.data, asked.column)
    domain = _domain(everything, asked.alphabet, asked.length)
    population = everything.where(domain.__contains__)
    if not population.items:
        raise ValueError(f"{asked.data}: none of its items is in the domain {domain!r}")
    clients = population.clients(asked.rounds, asked.clients)
    if clients < LEAST:
        raise ValueError(too_few(asked.data, population.clients(1, LEAST * asked.rounds)))
    question = parse_question(
        asked.settings
        | {
            "mechanism": asked.mechanism,
            "threshold": asked.threshold,
            "contribution": asked.contribution,
            "domain": domain,
            "words": asked.words,
        }
    )
    terms = _terms(clients, asked.corrupt, asked.dropout, asked.mode)
    # What cannot be asked is told now, not in the middle of a study.
    MECHANISMS[asked.mechanism].first_plan(
        question, terms, "simulation", asked.rounds, Random(asked.seed)
    )
    left_out = len(set(everything.items)) - len(set(population.items))
    return Setup(population, question, terms, asked.rounds, clients, left_out)


def _settings(pairs: list[str]) -> dict[str, Any]:
    """Return the question's own fields: values are JSON, or else the text as it stands.

    Raises:
        ValueError: if one has no value, or is an option of the command.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or name in _OPTIONS:
            raise ValueError(f"--set takes name=value of a mechanism's own field, got {pair!r}")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def _domain(population: Population, alphabet: str | None, length: int | None) -> Alphabet | Utf8:
    if alphabet is None:
        return Utf8(max_bytes=length) if length else cheapest_domain(population.items)
    return strings_of(alphabet, population.items, length)


def _terms(clients: int, corrupt: float, dropout: float, mode: Mode) -> Terms:
    """Return terms that bear a tenth more devices vanishing than will, and at least 0.2."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is a fraction from 0 to below 1, got {dropout}")
    cohorts = min(_COHORTS, -(-clients // _COHORT))
    size = -(-clients // cohorts)
    return Terms(
        cohort_size=size,
        minimum=max(3, size // 2),
        cohorts=cohorts,
        corrupt=corrupt,
        dropout=max(0.2, dropout + 0.1),
        mode=mode,
    )


def _show(setup: Setup, result: Result) -> None:
    compared = result.comparison
    more = len(compared.found) - SHOWN
    told = {
        "heavy": f"{SHOWN} shown, {more:,} more found" if more > 0 else "all shown",
        "missed": f"{len(compared.missed):,} of true count {setup.question.threshold:g} up",
        "rounds": f"{result.rounds_decoded} decoded of {setup.rounds}",
        "devices": f"{result.devices:,} counted, {setup.clients:,} asked a round",
        "words": f"{result.words:,} of 16 bits a device and round",
        "thresholds": " ".join(f"{t:.3g}" for t in result.thresholds),
        "domain": f"{setup.question.domain.kind}, {setup.left_out:,} items left out",
        "precision": f"{compared.score.precision:.4f}",
        "recall": f"{compared.score.recall:.4f}",
        "F1": f"{compared.score.f1:.4f}",
    }
    if result.stopped:
        told = {"partial": f"stopped after {_played(setup, result)}"} | told
    show(heavy_hitters(compared.found), facts(told))
