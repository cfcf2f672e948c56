"""From options to a study that can be run: who holds what, what is asked, on which terms.

Threshold and room grow with the fleet unless they are given, so that any size shows the same
picture: a table with less room than there are devices, so that t begins above 1 and finds
its place from round to round, and a threshold between the items that many devices hold and
the long tail. `python -m benchmarks.demo` tells how often the defaults reach F1 of 0.9.
"""

import math
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from blindtally.data import Devices, Population, read
from blindtally.demo.play import Setup
from client.crew import Crew
from client.policy import Policy
from protocol.domain import Alphabet, cheapest_domain
from protocol.mechanism import Histogram, Terms
from protocol.mechanisms import MECHANISMS, SUMMING
from protocol.mechanisms.adaptive_iblt import AdaptiveIbltQuestion
from protocol.messages import Timeouts
from protocol.sketches.capacity import cells_for
from secagg.keys import Identity
from secagg.parameters import Mode

# What a demo is unless told otherwise; the sizes below were chosen for it.
DEVICES: Final = 160
ROUNDS: Final = 7
DROPOUT: Final = 0.1
CONTRIBUTION: Final = 2
DATA_SET: Final = "link_user_domains"
# Chosen before anybody's items are seen, as for a real study: domain names, in lower case.
DOMAIN_NAMES: Final = Alphabet(
    characters="\0abcdefghijklmnopqrstuvwxyz0123456789-._", length=40, pad="\0"
)
HEAVY_SHARE: Final = 0.015  # of all devices, where no threshold is given
ROOM: Final = 0.8  # items in the first round's table for each device, where no words are given
LEAST_ROOM: Final = 12
PLENTY: Final = 2**20  # words, to see what a cell takes
TIMEOUTS: Final = Timeouts(enrolling=120, patience=0.5)
FEWEST: Final = 20  # devices in a sum, unless told otherwise
MARGIN: Final = 0.1  # by which losses may exceed those that we cause


def choose(
    data: Path | None,
    *,
    devices: int,
    rounds: int,
    dropout: float,
    seed: int,
    threshold: float | None,
    contribution: int,
    words: int | None,
    mode: Mode = "active",
    registrar: Identity | None = None,
) -> Setup:
    """Return the study that was asked for, its devices enrolled by `registrar` if there is one.

    Raises:
        ValueError: if the data cannot be read, holds too few devices, or there is no such
            study; says why.
    """
    population = load(data)
    domain = DOMAIN_NAMES if data is None else cheapest_domain(population.items)
    terms = Terms(
        cohort_size=devices,
        minimum=max(3, devices // 2),
        corrupt=0.1,
        dropout=max(0.2, dropout + MARGIN),
        mode=mode,
        registrar=registrar.public.hex() if registrar else None,
    )
    question = AdaptiveIbltQuestion(
        threshold=threshold or max(5.0, round(devices * rounds * HEAVY_SHARE)),
        contribution=contribution,
        domain=domain,
        words=words or PLENTY,
    )
    if words is None:
        question = question.model_copy(update={"words": _words(question, terms)})
    # What cannot be asked is told before a server is started.
    plan = MECHANISMS[question.mechanism].first_plan(question, terms, "demo", rounds, Random(seed))
    holdings = hold(population, rounds, devices, contribution, seed)
    policy = Policy(
        max_contribution=contribution,
        min_cohort=least_cohort(devices),
        modes=frozenset({mode}),
        registrar=registrar.public if registrar else None,
    )
    for refusal in policy.refusals(plan, plan.study, plan.round):
        raise ValueError(f"its devices would refuse: {refusal}: ask for fewer --words")
    crew = Crew(devices, dropout, seed, policy, registrar=registrar)
    return Setup(question, terms, rounds, TIMEOUTS, crew, holdings)


def least_cohort(devices: int) -> int:
    """Return with how few others simulated devices are summed, in a study made for so many."""
    return max(2, min(FEWEST, devices // 4))


def _words(question: AdaptiveIbltQuestion, terms: Terms) -> int:
    """Return the words of a table with room for `ROOM` items a device."""
    mechanism = SUMMING[question.mechanism]
    plan = mechanism.first_plan(question, terms, "demo", 1, Random(0))
    a_cell: float = mechanism.ring(plan).nbytes / plan.cells / 2
    return math.ceil(cells_for(max(LEAST_ROOM, round(ROOM * terms.devices))) * a_cell)


def load(data: Path | None) -> Population:
    """Return what the file `data` holds, or else the data set that comes with us."""
    if data is not None:
        return read(data)
    return read(Path(DATA_SET))


def hold(
    population: Population, rounds: int, devices: int, contribution: int, seed: int
) -> Sequence[Histogram]:
    """Return a histogram for each device of a fleet that has enough of them.

    Raises:
        ValueError: if the data has too few devices; says how many.
    """
    if isinstance(population, Devices):
        held = population.histograms
        if len(held) < rounds * devices:
            raise ValueError(
                f"{rounds} rounds of {devices} devices need {rounds * devices:,} of them and "
                f"the data has {len(held):,}: ask for fewer rounds or devices"
            )
        return held
    rng = np.random.default_rng([seed, 0])
    blocks = chain.from_iterable(population.rounds(rounds, devices, contribution, rng))
    return list(chain.from_iterable(blocks))
