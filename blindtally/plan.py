"""`blindtally plan`: which mechanism and parameters suit a study, and what it will find.

The prediction is a simulation of the study on a population that is assumed: shares that fall as
rank^-s (Zipf), or those of a file. It says what a few such studies found, not a formula; real
devices may hold something else, which `--zipf` 0.7 and 1.3 bracket for most texts.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import typer

from blindtally import completion, plan_releases
from blindtally.figures.budgets import TRACKED, Case, most_steps, needed
from blindtally.figures.curves import GOALS, Setting, f1
from blindtally.figures.devices import Known, Mask, TooFewWordsError, deal, tracked
from blindtally.figures.ours import adaptive, ask, terms_for
from blindtally.figures.populations import Population, load
from blindtally.output import Json, failed, refuse_others, write_json
from blindtally.plan_reports import advise
from blindtally.progress import steps, watched
from blindtally.tables import show, table
from protocol.domain import Alphabet, Domain
from protocol.hashed import Hashed
from protocol.mechanisms import MECHANISMS, AnyQuestion, parse_question

_ADAPTIVE = "adaptive-iblt"
# The options that each kind of plan takes.
_RELEASES = {"devices", "mechanism", "epsilon", "delta", "levels", "contribution", "json_path"}
_REPORTS = {"devices", "domain", "epsilon", "goal", "most", "json_path"}
_SUMS = {
    *("devices", "rounds", "threshold", "words", "domain", "max_bytes", "alphabet", "length"),
    *("contribution", "zipf", "items", "data", "runs", "seed", "json_path"),
}
_FEWEST, _MOST = 10, 10**6  # devices of a study that is simulated


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over runs: F1 with its standard deviation, rounds read; bytes up and down a round."""

    mechanism: str
    f1: float
    deviation: float
    rounds_read: float
    upload: int
    download: int


def plan(
    context: typer.Context,
    devices: Annotated[
        int, typer.Option("--devices", "--users", min=1, help="Devices in a round (n).")
    ],
    rounds: Annotated[int | None, typer.Option(min=1, max=1000, help="Rounds (R).")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=1, help="An item is heavy from this count on, over all rounds."),
    ] = None,
    words: Annotated[
        int | None, typer.Option(min=1, help="16-bit words that a device may send a round.")
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="triehh: compare ways to release counts for a central epsilon.",
            autocompletion=lambda: ["triehh"],
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Ask for locally private reports, which cost this; for no sums."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Of a central epsilon, in all levels.")] = 1e-6,
    levels: Annotated[int, typer.Option(help="Rounds of a trie.")] = 10,
    goal: Annotated[
        str,
        typer.Option(
            help="What reports are for: worst-mse, l1, l2 or heavy.",
            autocompletion=lambda: ["worst-mse", "l1", "l2", "heavy"],
        ),
    ] = "l2",
    most: Annotated[
        float,
        typer.Option(help="No item is held by a larger share (f*); for --goal worst-mse."),
    ] = 1.0,
    domain: Annotated[
        str,
        typer.Option(help="strings of any length; alphabet: short ones; a number: of values."),
    ] = "strings",
    max_bytes: Annotated[int, typer.Option(min=1, max=4096, help="Of a string, at most.")] = 64,
    alphabet: Annotated[
        str, typer.Option(help="The characters of the short strings.", show_default="a to z")
    ] = "abcdefghijklmnopqrstuvwxyz",
    length: Annotated[int, typer.Option(min=1, max=16, help="Of the short strings.")] = 3,
    contribution: Annotated[
        int, typer.Option(min=1, max=1000, help="Items a device adds (m).")
    ] = 1,
    zipf: Annotated[float, typer.Option(min=0.1, max=3, help="How steep shares fall (s).")] = 1.0,
    items: Annotated[int, typer.Option(min=10, max=10**6, help="Items that exist.")] = 100_000,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Take items and shares from this CSV file instead.",
            autocompletion=completion.data,
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Studies that are simulated.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same plan.")] = 1,
    json_path: Json = None,
) -> None:
    """Recommend a mechanism and its parameters, and predict what a study will find.

    Example:
      blindtally plan --devices 10000 --rounds 30 --threshold 50 --words 1000
      blindtally plan --users 100000 --domain 100000 --epsilon 2 --goal heavy
      blindtally plan --mechanism triehh --users 1000000 --epsilon 1 --levels 10
    """
    if mechanism is not None:
        if mechanism != "triehh" or epsilon is None:
            raise failed("--mechanism is triehh or left out, and triehh takes --epsilon")
        refuse_others(context, _RELEASES, "a plan of triehh")
        plan_releases.advise(devices, epsilon, delta, levels, contribution, json_path)
        return
    if epsilon is not None:
        taken = _REPORTS | ({"max_bytes"} if domain == "strings" else set())
        refuse_others(context, taken, f"a plan of reports over {domain} with --epsilon")
        advise(devices, domain, max_bytes, epsilon, goal, most, json_path)
        return
    refuse_others(context, _SUMS, "a plan of sums")
    rounds, threshold, words = _asked(devices, rounds, threshold, words, domain)
    try:
        if data is not None:
            people = load(data)
        else:
            kind: Domain = Hashed(max_bytes=max_bytes)
            if domain == "alphabet":
                kind = Alphabet(characters=alphabet, length=length)
            people = assumed(kind, items, zipf)
    except ValueError as error:
        raise failed(error) from None
    case = Case(people, "none", contribution)
    setting = Setting(rounds, threshold, devices * contribution, words)
    seeds = [(seed, run) for run in range(runs)]
    found = predict(case, setting, seeds)
    if not found:
        raise failed(f"{words} words are too few for any mechanism: ask for more")
    best = max(found, key=lambda one: one.f1)
    with steps("sizes, at most", most_steps(TRACKED)) as step:
        enough = needed(case, TRACKED, setting, seeds, step)
    goals = {goal: enough.reaches(goal) for goal in GOALS}
    question = parse_question(
        {
            "mechanism": best.mechanism,
            "threshold": threshold,
            "contribution": contribution,
            "words": words,
            "domain": Known.of(people, setting.tokens).domain.model_dump(),
        }
    )
    if json_path != "-":
        _show(found, question, goals)
    document: dict[str, Any] = {"question": question.model_dump(mode="json")}
    document["words"] = {str(goal): size for goal, size in goals.items()}
    write_json(json_path, document | {"predictions": [asdict(one) for one in found]})


def _asked(
    devices: int, rounds: int | None, threshold: float | None, words: int | None, domain: str
) -> tuple[int, float, int]:
    """Return what sums cannot be planned without; fail if it is not there, or out of range."""
    if rounds is None or threshold is None or words is None:
        raise failed("sums take --rounds, --threshold and --words; reports take --epsilon")
    if domain not in ("strings", "alphabet"):
        raise failed(f"--domain is strings or alphabet without --epsilon, not {domain!r}")
    if not _FEWEST <= devices <= _MOST:
        raise failed(f"--devices must be within {_FEWEST} and {_MOST:,}, not {devices}")
    return rounds, threshold, words


def assumed(domain: Domain, items: int, zipf: float) -> Population:
    """Return a population whose shares fall as rank^-zipf, its items made up.

    Raises:
        ValueError: if the domain does not have so many.
    """
    shares = np.arange(1, items + 1) ** -zipf
    if not isinstance(domain, Alphabet):
        names = tuple(f"item {number}" for number in range(items))
        if names[-1] not in domain:
            raise ValueError(f"no {items:,} items of {domain}: allow longer ones")
        return Population(names, shares / shares.sum(), domain)
    characters, length = domain.characters, domain.length
    if len(characters) ** length < items:
        raise ValueError(
            f"{len(characters)} characters make {len(characters) ** length:,} strings of "
            f"{length}: assume no more --items"
        )
    grid = np.stack([np.arange(items) // len(characters) ** place for place in range(length)])
    codes = (grid % len(characters)).T.tolist()
    names = tuple("".join(characters[code] for code in row) for row in codes)
    return Population(names, shares / shares.sum(), domain)


def predict(case: Case, setting: Setting, seeds: list[tuple[int, int]]) -> list[Prediction]:
    """Return what each mechanism finds, the mechanisms that `setting.words` are enough for."""
    known = Known.of(case.population, setting.tokens)
    scored: dict[str, list[tuple[float, int, int, int]]] = {}
    for seed in watched(seeds, "studies"):
        rng = np.random.default_rng([*seed, 0])
        rounds = list(case.population.rounds(setting.rounds, setting.tokens, rng))
        heavy: Mask = np.sum(rounds, axis=0) >= setting.tau
        held = [deal(counts, case.contribution, rng) for counts in rounds]
        try:
            found = tracked(held, known, setting.words, setting.tau, rng)
            wrong = np.zeros(len(found.mask) - len(heavy), np.bool_)
            score = f1(found.mask, np.concatenate([heavy, wrong]))
            scored.setdefault(TRACKED, []).append((score, found.read, found.vector, found.plan))
        except TooFewWordsError:
            pass
        if case.contribution == 1 and not isinstance(known.domain, Hashed):
            row = _adaptive(case.population, rounds, setting, heavy, rng)
            if row is not None:
                scored.setdefault(_ADAPTIVE, []).append(row)
    return [
        Prediction(
            name,
            float(np.mean([row[0] for row in rows])),
            float(np.std([row[0] for row in rows])),
            float(np.mean([row[1] for row in rows])),
            max(row[2] for row in rows),
            max(row[3] for row in rows),
        )
        for name, rows in scored.items()
    ]


def _adaptive(
    people: Population,
    rounds: list[Any],
    setting: Setting,
    heavy: Mask,
    rng: np.random.Generator,
) -> tuple[float, int, int, int] | None:
    question = ask(people, setting.tau, setting.words, "steady")
    try:
        estimates, loads = adaptive(people, rounds, question, setting.tokens, rng)
    except ValueError:  # too few words
        return None
    read = sum(load.is_read for load in loads)
    terms, chance = terms_for(setting.tokens), Random(0)
    first = MECHANISMS[_ADAPTIVE].first_plan(question, terms, "plan", setting.rounds, chance)
    score = f1(estimates >= setting.tau, heavy)
    return score, read, question.nbytes, len(first.model_dump_json())


def _show(found: list[Prediction], question: AnyQuestion, goals: dict[float, float | None]) -> None:
    rows = [
        (
            one.mechanism,
            f"{one.f1:.3f} \u00b1 {one.deviation:.3f}",
            f"{one.rounds_read:.1f}",
            f"{one.upload:,}",
            f"{one.download:,}",
        )
        for one in found
    ]
    numbers = ["F1", "rounds read", "bytes sent", "heard, at most"]
    show(table(["mechanism"], numbers, rows, "A study, and each of its devices in a round"), "")
    for goal, size in goals.items():
        what = "more than 200,000 words" if size is None else f"about {size:,.0f} words"
        show(f"An F1 of {goal:g} takes {what} by {TRACKED}.")
    show(
        "Bytes are those of vector and plan; `blindtally params` adds the secure sum's.",
        "To ask it, create a study with this question:",
    )
    typer.echo(question.model_dump_json(indent=2))
