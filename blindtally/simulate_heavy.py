"""A study of reports without a dictionary, in memory: what was found of what is really heavy."""

from collections import Counter
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from blindtally.data import read
from blindtally.measures import Comparison, compare
from blindtally.simulate_reports import Wanted, terms_for
from protocol.chance import seeded
from protocol.domain import Domain, Listed, Utf8, cheapest_domain
from protocol.mechanisms import REPORTING, AnyPlan, parse_question
from protocol.sampling import clip
from protocol.tally import NOTHING

_SHOWN = 20
_MOST_VALUES = 2**64


@dataclass(frozen=True)
class Heavy:
    """What the reports of one round find, beside what is true; what a report takes and costs."""

    plan: AnyPlan
    devices: int
    compared: Comparison
    nbytes: int
    epsilon: float
    delta: float


def asked(options: dict[str, Any], words: int | None, settings: dict[str, Any]) -> Wanted:
    """Return what the command's options say; reports are as large as they are."""
    del words
    return Wanted(**options, settings=settings)


def run(wanted: Wanted) -> Heavy:
    """Return what one round of reports over a data file finds.

    Raises:
        ValueError: if there is none; says why, and where in the file.
    """
    population = read(wanted.data, wanted.column)
    domain = _domain(wanted.mechanism, population.items)
    asked = {"mechanism": wanted.mechanism, "threshold": wanted.threshold, "domain": domain}
    question = parse_question(wanted.settings | asked | {"epsilon": wanted.epsilon})
    clients = population.clients(1, wanted.clients)
    rng = np.random.default_rng(wanted.seed)
    held = [clip(one, 1, rng) for one in next(population.rounds(1, clients, 1, rng))]
    truth = Counter(item for one in held for item in one)
    mechanism = REPORTING[wanted.mechanism]
    terms, chance = terms_for(clients), Random(wanted.seed)
    plan: AnyPlan = mechanism.first_plan(question, terms, "simulation", 1, chance)
    heard = mechanism.gather(plan, mechanism.encode(plan, held, seeded(rng)))
    tally = mechanism.decode(plan, heard, NOTHING).tally
    found = mechanism.conclude(question, tally)
    return Heavy(
        plan,
        clients,
        compare(((e.item, e.count, e.variance**0.5) for e in found), truth, wanted.threshold),
        mechanism.nbytes(plan),
        mechanism.epsilon(plan),
        mechanism.delta(plan),
    )


def as_json(wanted: Wanted, result: Heavy) -> dict[str, Any]:
    """Return what scripts read: how much was found, what was, and what was missed."""
    compared = result.compared
    return {
        "mechanism": wanted.mechanism,
        "epsilon": result.epsilon,
        "delta": result.delta,
        **asdict(compared.score),
        "clients": result.devices,
        "bytes": result.nbytes,
        "threshold": wanted.threshold,
        "heavy_hitters": [asdict(one) for one in compared.found],
        "missed": compared.missed,
        "question": result.plan.question.model_dump(mode="json", exclude={"domain": {"items"}}),
        "asked": {"data": str(wanted.data), "column": wanted.column, "seed": wanted.seed},
    }


def show(wanted: Wanted, result: Heavy) -> None:
    """Print the heaviest items, what was missed, and precision and recall."""
    compared, score = result.compared, result.compared.score
    hitters = Table("item", "estimate", "std. error", "true", title="Heavy hitters")
    for one in compared.found[:_SHOWN]:
        cells = f"{one.estimate:,.0f}", f"{one.standard_error:,.0f}", f"{one.true_count:,}"
        hitters.add_row(Text(repr(one.item)), *cells)
    missed = ", ".join(f"{item!r} {count:,}" for item, count in [*compared.missed.items()][:5])
    facts = Table(box=None, show_header=False, pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_row("found", f"{len(compared.found):,} estimated at {wanted.threshold:g} or more")
    facts.add_row("missed", Text(f"{len(compared.missed):,} of true count so high: {missed}"))
    facts.add_row("precision", f"{score.precision:.4f}")
    facts.add_row("recall", f"{score.recall:.4f}")
    facts.add_row("F1", f"{score.f1:.4f}")
    cost = f"epsilon {result.epsilon:.3g}, delta {result.delta:.3g}"
    domain = result.plan.question.domain.kind
    about = f"{result.nbytes:,} bytes a device, {cost}, {result.devices:,} devices, domain {domain}"
    Console().print(f"{wanted.mechanism}: {about}", hitters, facts, sep="\n\n")


def _domain(mechanism: str, items: tuple[str, ...]) -> Domain:
    """Return a domain of all items that is no list of them, if the mechanism has one."""
    if mechanism == "prefix-extension":
        return Utf8(max_bytes=max(2, *(len(item.encode()) for item in items)))
    if mechanism != "jl-hh":  # which asks for all values
        cheapest = cheapest_domain(items)
        if cheapest.values < _MOST_VALUES:
            return cheapest
    return Listed(items=tuple(dict.fromkeys(items)))
