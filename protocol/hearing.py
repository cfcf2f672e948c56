"""A simulated round of locally private reports: what is heard of its devices, stretch by stretch.

    devices -> clip -> encode (each device) -> reports -> gather, +

As in a round of sums (`stretches.py`), a stretch has chance of its own, for what is clipped and
what is said, so that what is heard of it is the same whoever plays it, and adds up. The first
goes on by the generator that drew its devices, as a round that has one stretch only.

Nobody is lost, and the noise is in each report already: there are no cohorts here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic

import numpy as np

from protocol.chance import seeded
from protocol.histograms import Histograms, Total
from protocol.reporting import RP, H, Reporting
from protocol.sampling import clip_all
from protocol.simulation import ALONE, Hands
from protocol.stretches import Block, Blocks, People, Stretch, generator


@dataclass(frozen=True, slots=True)
class Said(Generic[H]):
    """What is heard of stretches, and what their devices hold together."""

    heard: H
    truth: dict[str, int]


@dataclass(frozen=True, slots=True)
class ReportTurn(Generic[RP, H]):
    """One round as its devices report in it: its plan, and the seed of their chance."""

    mechanism: Reporting[Any, RP, H]
    plan: RP
    seed: int = field(repr=False)

    def chance(self, stretch: int) -> np.random.Generator:
        """Return what devices of a stretch that is not the first clip and report by."""
        return generator(self.seed, stretch)


class Hearing(Generic[RP, H]):
    """What is heard in a round as it grows; `chance` is a generator for each stretch."""

    def __init__(
        self, turn: ReportTurn[RP, H], chance: Callable[[int], np.random.Generator]
    ) -> None:
        self._turn, self._chance = turn, chance
        self._heard: H | None = None
        self._truth = Total()

    def play(self, stretch: int, blocks: Blocks) -> None:
        """Add a stretch, of one block or more."""
        mechanism, plan, rng = self._turn.mechanism, self._turn.plan, self._chance(stretch)
        held = clip_all(Histograms.joined(map(Histograms.of, blocks)), 1, rng)
        inside = held.within(plan.question.domain.__contains__)
        self._hear(mechanism.gather(plan, mechanism.encode(plan, inside, seeded(rng))))
        self._truth.add(held)

    def add(self, part: Said[H]) -> None:
        """Add stretches that were played elsewhere."""
        self._hear(part.heard)
        self._truth.add_counts(part.truth)

    @property
    def elsewhere(self) -> Callable[[Sequence[Stretch]], Said[H]]:
        """Return what plays stretches elsewhere."""
        return partial(_played, self._turn)

    @property
    def said(self) -> Said[H]:
        """Return all that was added."""
        assert self._heard is not None  # a round has one stretch at least
        return Said(self._heard, self._truth.counts())

    def _hear(self, heard: H) -> None:
        self._heard = heard if self._heard is None else self._heard + heard


def _played(turn: ReportTurn[RP, H], stretches: Sequence[Stretch]) -> Said[H]:
    """Return what these stretches of a round add to it: what a worker does."""
    hearing = Hearing(turn, turn.chance)
    for one in stretches:
        hearing.play(one.number, one.blocks())
    return hearing.said


def hear(
    turn: ReportTurn[RP, H],
    people: People[Block],
    first: np.random.Generator,
    hands: Hands = ALONE,
) -> Said[H]:
    """Return what is heard of `people`, each holding one item once it is clipped, and the truth.

    `first` draws what the first stretch clips and reports by. On whose `hands` do the work
    nothing hangs but time.
    """
    hearing = Hearing(turn, lambda stretch: turn.chance(stretch) if stretch else first)
    hearing.play(0, people.first)
    hands.add(hearing, [Stretch(number, later) for number, later in enumerate(people.later, 1)])
    return hearing.said
