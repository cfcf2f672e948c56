"""How a fleet's devices behave in a round, and what became of them: plain data, and one choice.

`seed` drives selection, losses and clipping: two runs choose and lose the same devices.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from client.encoding import Contribution
from client.habits import Habits, last_steps
from client.part import End
from client.participation import Step, steps
from client.policy import Policy, PolicyError
from client.transport import Traffic
from protocol.messages import CohortView, RoundView
from protocol.round import Phase, phases
from secagg.keys import Identity
from secagg.parameters import Mode
from secagg.ring import Vector


@dataclass(frozen=True, slots=True)
class Crew:
    """How a fleet behaves: `devices` a round, of which a share `dropout` vanishes.

    `habits` say when they come, how fast they answer, and in which phases they are lost if not in
    all alike. `registrar` enrols the devices for their study; without it they have no enrolment. A
    closed service lets them in by `token`, and shows the fleet its rounds by an API `key`.
    """

    devices: int
    dropout: float = 0.0
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    patience: float = 120.0
    registrar: Identity | None = None
    token: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    habits: Habits = field(default_factory=Habits)


@dataclass(frozen=True, slots=True)
class Entry:
    """One device's part in one round; `last` is the last step that it took."""

    device: int
    end: End
    last: Step | None
    cohort: int
    slot: int
    traffic: Traffic
    contribution: Contribution = field(repr=False)
    vector: Vector | None = field(repr=False)  # None if it was lost before it masked
    error: str = ""
    refused: PolicyError | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Played:
    """One round as its devices saw it, and as the service shows it afterwards."""

    view: RoundView
    entries: tuple[Entry, ...]

    def in_sum(self, cohort: CohortView) -> list[Entry]:
        """Return the entries whose vectors the service says are in the sum of `cohort`."""
        kept = set(cohort.survivors)
        mine = (entry for entry in self.entries if entry.cohort == cohort.number)
        return [entry for entry in mine if entry.slot in kept]

    def losses(self) -> Mapping[Phase, int]:
        """Return how many devices were lost in each phase."""
        where = lost_in(self.view.plan.terms.mode)
        unlost = (End.FINISHED, End.STAYED_AWAY)
        lost = (entry for entry in self.entries if entry.end not in unlost)
        return Counter(where[entry.last] for entry in lost if entry.last in where)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a round is: how many of its `devices` have taken each step, or are gone.

    Those whose coins do not invite them are none of its devices, once they know.
    """

    view: RoundView
    devices: int
    done: Mapping[Step, int]
    gone: int


def losable(mode: Mode) -> tuple[Step, ...]:
    """Return the steps after which a device may vanish: all but the last."""
    return steps(mode)[:-1]


def lost_in(mode: Mode) -> dict[Step | None, Phase]:
    """Return in which phase a device is missed, by the last step that it took."""
    return dict(zip((None, *losable(mode)), phases(mode), strict=True))


def select(
    crew: Crew, number: int, mode: Mode, free: Sequence[int]
) -> tuple[list[int], dict[int, Step]]:
    """Return the devices of round `number` among the `free`, and the last step of the lost."""
    rng, possible = np.random.default_rng([crew.seed, number]), losable(mode)
    size = min(crew.devices, len(free))
    chosen = [free[place] for place in rng.permutation(len(free))[:size]]
    order = rng.permutation(size)
    if crew.habits.losses:
        shares = last_steps(crew.habits.losses, mode)
        ends = np.rint(np.cumsum([0.0, *shares.values()]) * size).astype(int).tolist()
        cut = zip(shares, pairwise(ends), strict=True)
        return chosen, {chosen[p]: step for step, (a, b) in cut for p in order[a:b]}
    lost = order[: round(crew.dropout * size)]
    last = rng.integers(len(possible), size=len(lost))
    pairs = zip(lost, last, strict=True)
    return chosen, {chosen[place]: possible[step] for place, step in pairs}
