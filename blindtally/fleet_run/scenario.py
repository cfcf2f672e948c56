"""Scenario of a fleet: how its devices behave, what they accept, and the terms of a new study.

`--set dropout=0.1` sets a field of `FleetScenario`, and `--set min_cohort=5` one of the devices'
`Policy`. Parties that a policy names come from options: `--registrar` and `--member`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, get_type_hints

from pydantic import BeforeValidator, Field

from blindtally.console.errors import parse_public_keys
from blindtally.console.field_options import annotations_of, collect_fields, validated
from blindtally.console.options import DEFAULT_DEVICES, DEFAULT_IDLE_SECONDS
from blindtally.fleet_run.fleet_setup import DEFAULT_MIN_COHORT, min_cohort_for, new_operators
from client.fleet.behaviour import MAX_DROPOUT, Arrivals, FleetBehaviour, dropouts_by_step
from client.fleet.config_and_results import FleetConfig
from protocol.api.phases import Phase
from protocol.device_policy.policy import Policy
from protocol.public_model import PublicModel
from protocol.question_and_plan import SumKind

_PARTIES: Final = {"registrar", "committee", "trust_server_identities"}
POLICY_FIELDS: Final[Mapping[str, object]] = {
    name: kind for name, kind in get_type_hints(Policy).items() if name not in _PARTIES
}
_Shares = Annotated[  # by phase, from pairs PHASE=SHARE
    dict[Phase, float],
    BeforeValidator(lambda pairs: dict(pair.partition("=")[::2] for pair in pairs)),
]


class FleetScenario(PublicModel):
    """Behaviour of the devices, and terms of the study that `--create` makes.

    In a round, a part `dropout` of the devices drops out, or a part of each phase in `dropout_in`,
    such as "sharing=0.1". Devices arrive `over` this many seconds, and a part `slow` of them needs
    `pause` seconds for each answer, on average. They know the committee of each `member`, a public
    key, and trust the server's identities if there is `no_registrar`. Workers of the scheduler at
    `dask` share the devices. A new study has sums of the kind `sum`, one-shot sums if it has
    members, ends a phase with a quorum after `idle` seconds without a message, and ends at the goal
    `stop_at`. `numbers`, `strings`, `options` and `private` are presets of its question, as those
    of `studies create`.
    """

    dropout: float = Field(default=0.0, ge=0, le=0.4)  # a phase without them lasts seconds longer
    dropout_in: _Shares = Field({}, validate_default=False)
    arrivals: Arrivals = Arrivals.AT_ONCE
    over: float = Field(default=0.0, ge=0)
    slow: float = Field(default=0.0, ge=0, le=MAX_DROPOUT)
    pause: float = Field(default=2.0, ge=0)
    member: tuple[str, ...] = ()
    no_registrar: bool = False
    dask: str | None = None
    sum: SumKind = "pairwise"
    idle: float = Field(default=DEFAULT_IDLE_SECONDS, ge=0)
    stop_at: str | None = None
    numbers: str | None = None
    strings: int | None = None
    options: str | None = None
    private: float | None = None

    @property
    def kind(self) -> SumKind:
        """Return the kind of the sums in a new study."""
        return "one-shot" if self.member else self.sum


FIELDS: Final[Mapping[str, object]] = {**annotations_of(FleetScenario), **POLICY_FIELDS}


def parse_scenario(
    pairs: Sequence[str], devices: int | None, seed: int, *, is_new: bool
) -> tuple[FleetScenario, FleetConfig]:
    """Return the scenario in NAME=VALUE `pairs`, and the configuration of its fleet.

    If its study `is_new` and has one-shot sums without members, the fleet also runs operators.

    Raises:
        ValueError: if a pair is malformed, names no field, or has an invalid value.
        typer.Exit: if a member is not a key.
    """
    values = collect_fields("a fleet", pairs, FIELDS)
    policy = {name: values.pop(name) for name in POLICY_FIELDS if name in values}
    scenario = validated(FleetScenario, values)
    members = [*parse_public_keys(scenario.member, "--member")]
    operators = new_operators(scenario.kind) if is_new and not members else ()
    count = devices or DEFAULT_DEVICES
    settings = {
        "min_cohort": min_cohort_for(count) if is_new else DEFAULT_MIN_COHORT,
        "accept_exact_estimates": True,  # simulated devices have no secrets
        **policy,
        "committee": frozenset([*(operator.public for operator in operators), *members]),
        "trust_server_identities": scenario.no_registrar,
    }
    dropouts_by_step(scenario.dropout_in, scenario.kind)  # fails now, and not in a round
    config = FleetConfig(
        count,
        scenario.dropout,
        seed,
        validated(Policy, settings),
        behaviour=FleetBehaviour(
            scenario.arrivals, scenario.over, scenario.slow, scenario.pause, scenario.dropout_in
        ),
        operators=operators,
    )
    return scenario, config
