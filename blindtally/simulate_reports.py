"""A study of locally private reports over a data file, in memory, measured against the truth."""

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from scipy.special import erf

from blindtally import tables
from blindtally.data import Population, read
from blindtally.measures import Found, heavy_hitters
from blindtally.progress import waiting
from blindtally.together import hands
from protocol.domain import Alphabet, Domain, Listed, strings_of
from protocol.hearing import ReportTurn, Said, hear
from protocol.mechanism import Estimate, Terms
from protocol.mechanisms import REPORTING
from protocol.mechanisms.local import LocalPlan, LocalQuestion
from protocol.reporting import RP, H, Reporting
from protocol.stretches import STRETCH
from protocol.tally import NOTHING

_LISTED = 1000
_ODDS = 0.05  # that any item which nobody holds is above the threshold that is taken
# Of a piece, the least: in a single round, workers have to make up for the second that they start.
_PIECE_SECONDS = 1.0
_DEVICES = 100_000  # of one cohort, which is what terms count in


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command's options say."""

    mechanism: str
    data: Path
    column: str | None
    clients: int
    threshold: float | None
    confidence: float
    epsilon: float
    delta: float | None
    goal: str
    most: float
    alphabet: str | None
    length: int | None
    settings: dict[str, Any]
    seed: int
    workers: int
    dask: str | None


@dataclass(frozen=True)
class Reported:
    """What the reports of one round say, beside what is true.

    Errors are of shares of all devices: the greatest square, the sum of absolute ones (l1) and
    of squares (l2), each beside what theory expects. Of the greatest this is the greatest variance,
    which a mean over many runs comes near to, and `expected` what the greatest of so many squares
    is in a single one.
    """

    plan: LocalPlan
    devices: int
    estimates: np.ndarray[Any, np.dtype[np.float64]]
    variances: np.ndarray[Any, np.dtype[np.float64]]
    truth: np.ndarray[Any, np.dtype[np.float64]]
    found: tuple[Estimate, ...]
    threshold: float
    left_out: int  # devices whose item is not in the dictionary

    def measures(self) -> dict[str, float]:
        """Return errors and what theory says of them."""
        errors = (self.estimates - self.truth) / self.devices
        nothing = self.devices - self.truth.sum()
        shares = np.append(self.truth, nothing) / self.devices
        variances = self.plan.oracle.variances(shares, self.devices)[:-1]
        return {
            "worst_mse": float((errors**2).max()),
            "worst_mse_theory": float(variances.max()),
            "worst_mse_expected": greatest_square(variances),
            "l1": float(np.abs(errors).sum()),
            "l1_theory": float(np.sqrt(2 / np.pi) * np.sqrt(variances).sum()),
            "l2": float((errors**2).sum()),
            "l2_theory": float(variances.sum()),
        }


def asked(options: dict[str, Any], words: int | None, settings: dict[str, Any]) -> Wanted:
    """Return what the command's options say; reports are as large as they are."""
    del words
    return Wanted(**options, settings=settings)


def run(wanted: Wanted) -> Reported:
    """Return what one round of reports over a data file says.

    Raises:
        ValueError: if there is none; says why, and where in the file.
    """
    population = read(wanted.data, wanted.column)
    domain = dictionary(wanted, tuple(dict.fromkeys(population.items)))
    question = LocalQuestion.model_validate(
        wanted.settings
        | {
            "mechanism": wanted.mechanism,
            "threshold": wanted.threshold or 1,
            "confidence": wanted.confidence,
            "domain": domain,
            "epsilon": wanted.epsilon,
            "goal": wanted.goal,
            "most": wanted.most,
        }
    )
    clients = population.clients(1, wanted.clients)
    mechanism = REPORTING[wanted.mechanism]
    chance = Random(wanted.seed)
    plan = mechanism.first_plan(question, terms_for(clients), "simulation", 1, chance)
    if wanted.threshold is None:
        bar = plan.oracle.bar(clients, _ODDS / domain.values)
        question = question.model_copy(update={"threshold": max(1.0, math.ceil(clients * bar))})
    said = said_by(population, clients, mechanism, plan, wanted)
    answer, counts = mechanism.decode(plan, said.heard, NOTHING), said.truth
    return Reported(
        plan,
        clients,
        answer.tally.arrays["scores"],
        answer.tally.arrays["variances"],
        np.array([0 if item is None else counts.get(item, 0) for item in _names(domain)], float),
        tuple(mechanism.conclude(question, answer.tally)),
        question.threshold,
        left_out(domain, counts),
    )


def said_by(
    population: Population,
    clients: int,
    mechanism: Reporting[Any, RP, H],
    plan: RP,
    wanted: Wanted,
) -> Said[H]:
    """Return what so many devices report, by as many workers as are wanted, and what they hold.

    Raises:
        typer.Exit: as `blindtally.workers.hired`.
    """
    rng = np.random.default_rng(wanted.seed)
    people = next(population.rounds(1, clients, 1, rng, stretch=STRETCH))
    turn = ReportTurn(mechanism, plan, wanted.seed)
    with hands(wanted.workers, wanted.dask, _PIECE_SECONDS) as some, waiting("reports"):
        return hear(turn, people, rng, some)


def left_out(domain: Domain, truth: dict[str, int]) -> int:
    """Return how many devices hold an item outside the domain."""
    return sum(count for item, count in truth.items() if item not in domain)


def dictionary(wanted: Wanted, items: tuple[str, ...]) -> Listed | Alphabet:
    """Return all strings of an alphabet, or the items, those that are not too long."""
    if wanted.alphabet is not None:
        return strings_of(wanted.alphabet, items, wanted.length)
    most = wanted.length
    some = tuple(item for item in items if most is None or len(item.encode()) <= most)
    if len(some) < 2:
        few = "one item only" if some else "no item"
        of = "" if most is None else f" of {most} bytes at most"
        raise ValueError(f"{wanted.data} has {few}{of}: a dictionary must have 2 or more")
    return Listed(items=some)


def as_json(wanted: Wanted, result: Reported) -> dict[str, Any]:
    """Return what scripts read: errors beside theory, bits, and what was found."""
    plan = result.plan
    asked = {"data": str(wanted.data), "column": wanted.column, "seed": wanted.seed}
    about = {"mechanism": plan.mechanism, "epsilon": wanted.epsilon, "goal": wanted.goal}
    sizes = {
        "clients": result.devices,
        "domain": len(result.truth),
        "bits": plan.oracle.bits,
        "threshold": result.threshold,
        "left_out": result.left_out,
        "found": len(result.found),
    }
    found = [
        {"item": one.item, "estimate": one.count, "standard_error": one.variance**0.5}
        for one in result.found[:_LISTED]
    ]
    return (
        about
        | result.measures()
        | sizes
        | {"parameters": plan.parameters, "heavy_hitters": found, "asked": asked}
    )


def show(wanted: Wanted, result: Reported) -> None:
    """Print the heaviest items, and errors beside what theory expects."""
    domain = result.plan.question.domain
    truth = dict(zip(_names(domain), result.truth.tolist(), strict=True))
    found = [
        Found(one.item, one.count, one.variance**0.5, int(truth[one.item])) for one in result.found
    ]
    plan, measures = result.plan, result.measures()
    why = "" if wanted.threshold is not None else ", reached by nothing in 19 of 20 runs"
    of = ", ".join(f"{k} {v}" for k, v in plan.parameters.items() if k not in ("oracle", "domain"))
    if result.left_out:
        why += f"; {result.left_out:,} devices' items are outside of them"
    rows = [
        (told, f"{measures[name]:.3g}" if name in measures else "", f"{measures[theory]:.3g}")
        for told, name, theory in (
            ("greatest square", "worst_mse", "worst_mse_expected"),
            ("l1", "l1", "l1_theory"),
            ("l2", "l2", "l2_theory"),
            ("greatest variance", "", "worst_mse_theory"),
        )
    ]
    tables.show(
        f"{plan.mechanism}, {of}: {plan.oracle.bits} bits a device, {result.devices:,} devices, "
        f"{len(result.truth):,} items, {len(result.found):,} of {result.threshold:,.0f} up{why}",
        heavy_hitters(found),
        tables.table(["error of shares"], ["measured", "expected"], rows),
    )


def _names(domain: Domain) -> list[str | None]:
    """Return the item of each value of a dictionary; None of one that is none's."""
    return domain.names_of(np.arange(domain.values, dtype=np.uint64))


def greatest_square(variances: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Return the mean of the greatest square of independent normal errors of `variances`."""
    some, times = np.unique(variances[variances > 0], return_counts=True)
    if not len(some):
        return 0.0
    # The mean is the integral of P(greatest > t); beyond the last t none is above, but for 1e-20.
    ends = np.linspace(0, math.sqrt(some[-1] * 2 * (math.log(len(variances)) + 46)), 2001)
    below = np.array([np.sum(times * np.log(erf(end / np.sqrt(2 * some)))) for end in ends[1:]])
    above = np.append(1.0, -np.expm1(below))
    return float(np.trapezoid(above, ends**2))


def terms_for(clients: int) -> Terms:
    """Return terms of as many cohorts as `clients` take."""
    size = min(clients, _DEVICES)
    return Terms(cohort_size=size, minimum=3, cohorts=-(-clients // size), mode="semi-honest")
