"""Configuration and results of a fleet, and the selection of the devices of a round."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from client.credentials import checked_secret
from client.device.device import DeviceStep, steps_in_sum
from client.device.driver import EndState
from client.device.encoding import Contribution
from client.fleet.behaviour import FleetBehaviour, dropouts_by_step
from client.http.exchange import Traffic
from protocol.api.messages import CohortView, RoundView
from protocol.api.phases import DEVICE_PHASES, Phase
from protocol.device_policy.policy import Policy, PolicyError
from protocol.question_and_plan import SumKind
from secagg.keys import Identity
from secagg.ring import Vector


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Configuration of a fleet.

    Attributes:
        devices: devices per round.
        dropout: the fraction of them that drops out, before any phase with equal probability.
            `behaviour` can set it by phase instead.
        registrar: enrols the devices for their study; None leaves them without an enrolment.
        operators: the members of the committee of one-shot sums, if the fleet runs them itself.
        committee_dropout: the fraction of volunteers for a committee that register a key and leave.
            The fleet's devices volunteer if it has the registrar's key.
        token: registers the devices at a closed service.
        api_key: lets the fleet read the rounds of a closed service.
    """

    devices: int
    dropout: float = 0.0
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    patience: float = 120.0
    registrar: Identity | None = None
    operators: tuple[Identity, ...] = ()
    committee_dropout: float = 0.0
    token: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    behaviour: FleetBehaviour = field(default_factory=FleetBehaviour)

    def __post_init__(self) -> None:
        """Refuse what cannot be a token or a key."""
        checked_secret(self.token, "enrolment token")
        checked_secret(self.api_key, "API key")


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """The part of one device in one round; `cohort` and `slot` are -1 without a cohort.

    A device of a one-shot sum is in cohort 0, without a slot.
    """

    device: int
    state: EndState
    last_step: DeviceStep | None
    cohort: int
    slot: int
    traffic: Traffic
    contribution: Contribution = field(repr=False)
    vector: Vector | None = field(repr=False)  # None if it dropped out before it masked
    error: str = ""
    policy_error: PolicyError | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class FleetRound:
    """One round: the results of its devices, and the service's view after its end."""

    view: RoundView
    results: tuple[DeviceResult, ...]

    def results_in_sum(self, cohort: CohortView) -> list[DeviceResult]:
        """Return the results of the devices that the service lists as survivors of `cohort`.

        A one-shot sum lists none: those whose messages were accepted.
        """
        if self.view.plan.terms.is_one_shot:
            return [result for result in self.results if result.last_step is DeviceStep.SENT]
        survivors = set(cohort.survivors)
        results = (result for result in self.results if result.cohort == cohort.number)
        return [result for result in results if result.slot in survivors]

    @property
    def others_in_sum(self) -> int:
        """Return the number of devices in a one-shot sum that are not the fleet's."""
        own = sum(result.last_step is DeviceStep.SENT for result in self.results)
        participants = self.view.participants if self.view.plan.terms.is_one_shot else 0
        return max(0, (participants or 0) - own)

    def dropouts_by_phase(self) -> Mapping[Phase, int]:
        missed = missed_phases(self.view.plan.terms.sum)
        present = (EndState.FINISHED, EndState.NOT_INVITED)
        last_steps = (result.last_step for result in self.results if result.state not in present)
        return Counter(missed[step] for step in last_steps if step in missed)


@dataclass(frozen=True, slots=True)
class FleetProgress:
    """Progress of a round: the numbers of devices that took each step, and of dropouts.

    `devices` does not count devices that know they are not invited.
    """

    view: RoundView
    devices: int
    steps_taken: Mapping[DeviceStep, int]
    dropped_out: int


def droppable_steps(kind: SumKind) -> tuple[DeviceStep, ...]:
    """Return the steps after which a device may drop out: all except the last."""
    return steps_in_sum(kind)[:-1]


def missed_phases(kind: SumKind) -> dict[DeviceStep | None, Phase]:
    """Return the phase in which a device is missing, by its last step."""
    return dict(zip((None, *droppable_steps(kind)), DEVICE_PHASES[kind], strict=True))


def select_devices(
    config: FleetConfig, number: int, kind: SumKind, eligible: Sequence[int]
) -> tuple[list[int], dict[int, DeviceStep]]:
    """Return the devices of round `number`, and the last step of each dropout among them."""
    rng = np.random.default_rng([config.seed, number])
    possible = droppable_steps(kind) or steps_in_sum(kind)  # one that never begins its only step
    size = min(config.devices, len(eligible))
    selected = [eligible[place] for place in rng.permutation(len(eligible))[:size]]
    order = rng.permutation(size)
    if config.behaviour.dropout_by_phase:
        fractions = dropouts_by_step(config.behaviour.dropout_by_phase, kind)
        ends = np.rint(np.cumsum([0.0, *fractions.values()]) * size).astype(int).tolist()
        parts = zip(fractions, pairwise(ends), strict=True)
        return selected, {selected[p]: step for step, (a, b) in parts for p in order[a:b]}
    dropouts = order[: round(config.dropout * size)]
    last_steps = rng.integers(len(possible), size=len(dropouts))
    pairs = zip(dropouts, last_steps, strict=True)
    return selected, {selected[place]: possible[step] for place, step in pairs}
