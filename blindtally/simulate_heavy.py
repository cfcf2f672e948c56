"""A study of reports without a dictionary, in memory: what was found of what is really heavy."""

import math
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from blindtally import tables
from blindtally.data import read
from blindtally.measures import Comparison, compare, heavy_hitters
from blindtally.progress import waiting
from blindtally.simulate_reports import Wanted, dictionary, left_out, said_by, terms_for
from protocol.domain import Domain, Utf8, cheapest_domain
from protocol.hashed import Hashed
from protocol.mechanism import VARIANCE
from protocol.mechanisms import REPORTING, parse_question
from protocol.mechanisms.linear import LinearPlan
from protocol.mechanisms.prefix_extension import PrefixPlan
from protocol.tally import NOTHING, Tally

_LISTED = 1000
_ERRORS = 4
_LONGEST = 1024
_MOST_VALUES = 2**64


@dataclass(frozen=True)
class Heavy:
    """What the reports of one round find, beside what is true; what a report takes and costs."""

    plan: LinearPlan | PrefixPlan
    devices: int
    compared: Comparison
    nbytes: int
    epsilon: float
    delta: float
    threshold: float
    least: float | None  # count from which on a string is found with odds of 95%, if predicted
    left_out: int  # devices whose item is outside the domain


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
    domain = _domain(wanted, population.items)
    asked: dict[str, Any] = {"mechanism": wanted.mechanism, "domain": domain}
    asked |= {"threshold": wanted.threshold or 1, "confidence": wanted.confidence}
    if wanted.delta is not None:
        asked["delta"] = wanted.delta
    question = parse_question(wanted.settings | asked | {"epsilon": wanted.epsilon})
    clients = population.clients(1, wanted.clients)
    mechanism = REPORTING[wanted.mechanism]
    terms, chance = terms_for(clients), Random(wanted.seed)
    plan: LinearPlan | PrefixPlan = mechanism.first_plan(question, terms, "simulation", 1, chance)
    said = said_by(population, clients, mechanism, plan, wanted)
    with waiting("what they name"):
        tally = mechanism.decode(plan, said.heard, NOTHING).tally
    least = plan.extension.sure_count(clients) if isinstance(plan, PrefixPlan) else None
    if wanted.threshold is None:
        taken = _threshold(plan, clients, tally)
        question = question.model_copy(update={"threshold": taken})
    named = _items(domain, population.items)
    found = [
        (named.get(one.item, one.item), one.count, one.variance**0.5)
        for one in mechanism.conclude(question, tally)
    ]
    return Heavy(
        plan,
        clients,
        compare(found, said.truth, question.threshold),
        mechanism.nbytes(plan),
        mechanism.epsilon(plan),
        mechanism.delta(plan),
        question.threshold,
        least,
        left_out(domain, said.truth),
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
        "threshold": result.threshold,
        "least_count": result.least if result.least and math.isfinite(result.least) else None,
        "left_out": result.left_out,
        "found": len(compared.found),
        "heavy_hitters": [asdict(one) for one in compared.found[:_LISTED]],
        "missed": compared.missed,
        "question": result.plan.question.model_dump(mode="json", exclude={"domain": {"items"}}),
        "asked": {"data": str(wanted.data), "column": wanted.column, "seed": wanted.seed},
    }


def show(wanted: Wanted, result: Heavy) -> None:
    """Print the heaviest items, what was missed, and precision and recall."""
    compared, score = result.compared, result.compared.score
    why = "" if wanted.threshold is not None else ", several standard errors of nothing"
    found = f"{len(compared.found):,} estimated at {result.threshold:,.0f} or more{why}"
    told = {"found": found}
    if result.least is not None:
        told["predicted"] = _predicted(result)
    if result.left_out:
        told["left out"] = f"{result.left_out:,} devices' items, outside of the domain"
    missed = ", ".join(f"{item!r} {count:,}" for item, count in [*compared.missed.items()][:5])
    told["missed"] = f"{len(compared.missed):,} of true count so high: {missed}"
    heavy = any(one.true_count >= result.threshold for one in compared.found) or compared.missed
    told |= {
        "precision": f"{score.precision:.4f}" if compared.found else "n/a (nothing was found)",
        "recall": f"{score.recall:.4f}" if heavy else "n/a (nothing was heavy)",
        "F1": f"{score.f1:.4f}",
    }
    cost = f"epsilon {result.epsilon:.3g}, delta {result.delta:.3g}"
    domain = result.plan.question.domain.kind
    about = f"{result.nbytes:,} bytes a device, {cost}, {result.devices:,} devices, domain {domain}"
    tables.show(f"{wanted.mechanism}: {about}", heavy_hitters(compared.found), tables.facts(told))


def _predicted(result: Heavy) -> str:
    least, devices = result.least, result.devices
    if least is None or not math.isfinite(least):
        return "not even what all devices hold is found with odds of 95%: take more of them"
    told = f"a count of {least:,.0f} ({least / devices:.2%}) is found with odds of 95%"
    return told + ("; the threshold is below it" if result.threshold < least else "")


def _threshold(plan: LinearPlan | PrefixPlan, clients: int, tally: Tally) -> float:
    """Return the count that nothing hardly reaches: 4 deviations, or what is listed at all."""
    if isinstance(plan, PrefixPlan):
        return max(1.0, math.ceil(plan.extension.least_count(clients)))
    variances = tally.column(VARIANCE)
    of_noise = plan.projection.variance(clients, 0, 0)
    return max(1.0, math.ceil(_ERRORS * math.sqrt(variances.max(initial=of_noise))))


def _items(domain: Domain, items: tuple[str, ...]) -> dict[str, str]:
    """Return the item of each key's name, where only keys are found."""
    return {domain.name(item): item for item in items} if isinstance(domain, Hashed) else {}


def _domain(wanted: Wanted, items: tuple[str, ...]) -> Domain:
    """Return a domain of all items, or as asked, that is no list, if the mechanism has one."""
    if wanted.mechanism == "prefix-extension":
        return Utf8(max_bytes=wanted.length or max(2, *(len(item.encode()) for item in items)))
    if wanted.alphabet is not None or wanted.mechanism == "jl-hh":  # which asks for all values
        return dictionary(wanted, tuple(dict.fromkeys(items)))
    if len(set(items)) < 2:
        raise ValueError("the file has one item only: 2 or more are needed")
    if wanted.length is not None:
        short = Utf8(max_bytes=wanted.length)
        return short if short.values < _MOST_VALUES else Hashed(max_bytes=wanted.length)
    for domain in (cheapest_domain(items), Hashed(max_bytes=_LONGEST)):
        if domain.values < _MOST_VALUES and all(item in domain for item in items):
            return domain
    return dictionary(wanted, tuple(dict.fromkeys(items)))
