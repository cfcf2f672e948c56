"""Request of a simulation: the question's fields that are given, and the scenario that it plays.

A scenario has what no question has: how the items drift, which rounds are lost, how many devices
drop out, and which keys the items have. For example, `--set drift=gradual --set dropout=0.1`.

Without secure sums a cohort only sets the noise of a release: each cohort adds all of the noise, so
cohorts are as large as possible. A cohort of secure sums has 1,000 devices, because a larger one
only costs its devices more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from blindtally.console.field_options import parse_field
from blindtally.simulate.populations import DriftKind
from protocol.committee_terms import CommitteeTerms
from protocol.domains.known_items import DomainChoice
from protocol.mechanism import Mechanism
from protocol.public_model import PublicModel
from protocol.question_and_plan import Terms
from protocol.round_sizes import terms_for
from secagg.keys import Identity

DEFAULT_DEVICES = 10_000
_SECURE_COHORT_SIZE: Final = 1000
_MAX_COHORTS: Final = 1000  # of a round; beyond a million devices secure cohorts are larger
_DROPOUT_MARGIN: Final = 0.1  # dropouts in addition to those that the scenario causes
_OPERATORS: Final = 7  # of the simulated committee of one-shot sums


def _parse_numbers(value: object) -> object:
    """Return the numbers of a text such as "2000,200", or one number; other values as they are."""
    if isinstance(value, int):
        return (value,)
    if not isinstance(value, str):
        return value
    parts = value.removesuffix(",").split(",")
    return tuple(int(part) if part.strip().isdecimal() else part for part in parts)


_Numbers = Annotated[tuple[int, ...], BeforeValidator(_parse_numbers)]


class Scenario(PublicModel):
    """Play of a study, and the keys of its items (`KnownItems`).

    `devices_by_round` are repeated until the last round. `lost_rounds` is a number of rounds that
    fail, drawn at random, or the rounds themselves. A part `dropout` of the devices drops out, and
    a part `corrupt` is assumed to work for the server. `sum` is `plain` addition, or every message
    of a secure sum. The study ends when its list is expected to reach the goal `stop_at`.
    """

    drift: DriftKind = "none"
    devices_by_round: Annotated[_Numbers, Field(min_length=1)] | None = None
    lost_rounds: int | _Numbers = ()
    dropout: float = Field(default=0.0, ge=0, lt=0.9)
    corrupt: float = 0.1
    sum: Literal["plain", "pairwise", "one-shot"] = "plain"
    stop_at: str | None = None
    domain: DomainChoice = "auto"
    alphabet: Annotated[str, BeforeValidator(str)] | None = None
    low: float | None = None
    high: float | None = None
    alpha: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """A mechanism, the data of its devices, fields of its question, and the scenario."""

    mechanism: Mechanism[Any, Any]
    data: Path
    column: str | None = None
    rounds: int | None = None
    devices: int | None = None
    levels: int | None = None
    words: int | None = None  # of 16 bits, of a vector
    fields: Mapping[str, Any] = field(default_factory=dict)
    scenario: Scenario = field(default_factory=Scenario)
    seed: int = 1
    workers: int = 1
    dask: str | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parts of the request that the JSON document repeats."""
        return {
            "data": str(self.data),
            "column": self.column,
            "seed": self.seed,
            **self.scenario.model_dump(mode="json"),
        }


def _check_field(name: str, field: FieldInfo, value: object) -> None:
    try:
        kind: Any = Annotated[field.annotation, field]
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"].endswith(("_parsing", "_type")):  # the question checks ranges later
            raise ValueError(f"{name}: {fault['msg']}, got {value!r}") from None


def parse_settings(
    pairs: Sequence[str], mechanism: Mechanism[Any, Any]
) -> tuple[dict[str, Any], Scenario]:
    """Return the question's fields in NAME=VALUE `pairs`, and the scenario of the others.

    Raises:
        ValueError: if a pair is malformed, or its name is of neither.
    """
    known = mechanism.question_type.model_fields
    fields, scenario = dict[str, Any](), dict[str, Any]()
    for name, value in map(parse_field, pairs):
        is_choice = name == "domain" and isinstance(value, str)
        is_of_scenario = name in Scenario.model_fields and (name not in known or is_choice)
        (scenario if is_of_scenario else fields)[name] = value
    for name, value in fields.items():
        if name in known and name != "domain":  # other values are computed from these
            _check_field(name, known[name], value)
    return fields, Scenario.model_validate(scenario)


def study_terms(scenario: Scenario, devices: int) -> Terms:
    """Return the terms of a study with at most `devices` in a round.

    Raises:
        ValueError: if the rates are not possible.
    """
    assumptions: dict[str, Any] = {
        "corrupt": scenario.corrupt,
        "dropout": scenario.dropout + _DROPOUT_MARGIN,
    }
    if scenario.sum == "plain":
        return terms_for(devices, **assumptions)
    if scenario.sum == "pairwise":
        return terms_for(devices, _SECURE_COHORT_SIZE, _MAX_COHORTS, **assumptions)
    keys = (Identity.of(bytes([number]) * 32).public for number in range(_OPERATORS))
    committee = CommitteeTerms(members=tuple(key.hex() for key in keys))
    return terms_for(devices, devices, **assumptions, sum="one-shot", committee=committee)
