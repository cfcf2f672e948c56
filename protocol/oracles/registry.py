"""Oracles by name, of given parameters or of the best ones for a goal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal, TypeAlias

from protocol.oracles.hadamard import Hadamard
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle, OracleParameters
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection

ParameterGoal: TypeAlias = Literal["worst-mse", "l2"]
_Factory: TypeAlias = Callable[[float, int], Oracle]
_BoundedFactory: TypeAlias = Callable[[float, int, float], Oracle]


@dataclass(frozen=True, slots=True)
class OracleKind:
    """An oracle, with its makers by goal: the smallest worst and the smallest total variance.

    `bounded` makes the one of the smallest worst variance if no frequency is above a bound.
    """

    oracle: type[Oracle]
    for_mse: _Factory
    for_l2: _Factory
    bounded: _BoundedFactory | None = None


OracleKinds: TypeAlias = Mapping[str, OracleKind]


def kinds_by_name(*kinds: OracleKind) -> OracleKinds:
    """Return `kinds` by the names of their oracles."""
    return {kind.oracle.name: kind for kind in kinds}


ORACLES: Final = kinds_by_name(
    OracleKind(KaryRandomizedResponse, KaryRandomizedResponse, KaryRandomizedResponse),
    OracleKind(Ocms, Ocms.for_mse, Ocms.for_l2, Ocms.for_mse),
    OracleKind(OcmsGf, OcmsGf.for_mse, OcmsGf.for_l2, OcmsGf.for_mse),
    OracleKind(OcmsMixture, OcmsMixture.for_mse, OcmsMixture.for_mse, OcmsMixture.for_mse),
    OracleKind(Hadamard, Hadamard, Hadamard),
    OracleKind(SubsetSelection, SubsetSelection.for_mse, SubsetSelection.standard),
    OracleKind(
        Rappor,
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=True),
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=False),
    ),
)


def oracle_for(
    name: str,
    epsilon: float,
    domain: int,
    goal: ParameterGoal,
    max_frequency: float = 1.0,
    kinds: OracleKinds = ORACLES,
) -> Oracle:
    """Return the oracle `name` with the parameters that are best for `goal`.

    A bound `max_frequency` below 1 on all frequencies may lower the worst variance. Raises
    ValueError if the oracle is unknown or does not allow a parameter.
    """
    kind = _kind(name, kinds)
    if max_frequency != 1:
        if kind.bounded is None or goal != "worst-mse":
            bounded = ", ".join(name for name, each in ORACLES.items() if each.bounded)
            raise ValueError(
                "max_frequency must be 1 except for goal worst-mse of "
                f"{bounded}, not {max_frequency:g}"
            )
        return kind.bounded(epsilon, domain, max_frequency)
    return (kind.for_mse if goal == "worst-mse" else kind.for_l2)(epsilon, domain)


def oracle_from_parameters(parameters: OracleParameters, kinds: OracleKinds = ORACLES) -> Oracle:
    """Return the oracle with these `parameters`.

    Raises ValueError if no oracle has that name, or a parameter is not of it or out of range.
    """
    rest = dict(parameters)
    name = str(rest.pop("oracle", ""))
    oracle = _kind(name, kinds).oracle
    for field in fields(oracle):
        key = field.name
        if field.type in (int, bool) and key in rest and type(rest[key]) is not field.type:
            raise ValueError(f"{key} must be of type {field.type.__name__}")
    try:
        return oracle(**rest)  # type: ignore[arg-type]  # checked by the class
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _kind(name: str, kinds: OracleKinds) -> OracleKind:
    if name not in kinds:
        raise ValueError(f"oracle must be one of {', '.join(kinds)}, not {name!r}")
    return kinds[name]


def check_parameters(
    parameters: OracleParameters,
    name: str,
    epsilon: float,
    domain: int,
    kinds: OracleKinds = ORACLES,
) -> None:
    """Raise ValueError unless `parameters` are all those of the oracle that a question names."""
    oracle = oracle_from_parameters(parameters, kinds)
    expected = name, epsilon, domain
    actual = oracle.name, oracle.epsilon, oracle.domain
    if actual != expected or oracle.parameters != parameters:
        raise ValueError("the parameters are not those of the question's oracle")
