"""All oracles by name, of given parameters or of the best ones for a goal."""

from collections.abc import Callable
from dataclasses import fields
from typing import Literal, TypeAlias

from protocol.oracles.hadamard import Hadamard, RecursiveHadamard
from protocol.oracles.hcms import HadamardCountMeanSketch
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle, OracleParameters
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection

ParameterGoal: TypeAlias = Literal["worst-mse", "l2"]
_Factory: TypeAlias = Callable[[float, int], Oracle]
_BoundedFactory: TypeAlias = Callable[[float, int, float], Oracle]

_APPLE_FUNCTIONS = 2**12  # of 1024 symbols: 32 MB of cells; 2^16 would take 512 MB


def _apple_sketch(epsilon: float, domain: int) -> Oracle:
    return HadamardCountMeanSketch(epsilon, domain, functions=_APPLE_FUNCTIONS)


# For each kind: the oracle of the smallest worst variance, and that of the smallest total variance.
_FACTORIES: dict[type[Oracle], tuple[_Factory, _Factory]] = {
    KaryRandomizedResponse: (KaryRandomizedResponse, KaryRandomizedResponse),
    Ocms: (Ocms.for_mse, Ocms.for_l2),
    OcmsGf: (OcmsGf.for_mse, OcmsGf.for_l2),
    OcmsMixture: (OcmsMixture.for_mse, OcmsMixture.for_mse),
    Hadamard: (Hadamard, Hadamard),
    RecursiveHadamard: (RecursiveHadamard.for_epsilon, RecursiveHadamard.for_epsilon),
    LocalHashing: (LocalHashing.for_l2, LocalHashing.for_l2),
    HadamardCountMeanSketch: (_apple_sketch, _apple_sketch),
    SubsetSelection: (SubsetSelection.for_mse, SubsetSelection.standard),
    Rappor: (
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=True),
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=False),
    ),
}
ORACLES: dict[str, type[Oracle]] = {kind.name: kind for kind in _FACTORIES}

# Oracles whose worst variance is smaller if no frequency is above a known bound.
_BOUNDED_FACTORIES: dict[str, _BoundedFactory] = {
    "ocms": Ocms.for_mse,
    "ocms-gf": OcmsGf.for_mse,
    "ocms-mixture": OcmsMixture.for_mse,
}


def depends_on_goal(name: str) -> bool:
    """Return whether the parameters of oracle `name` differ between goals."""
    for_mse, for_l2 = _FACTORIES[ORACLES[name]]
    return for_mse != for_l2  # each access of a method makes another object


def uses_frequency_bound(name: str) -> bool:
    """Return whether a known bound on frequencies may lower the worst variance."""
    return name in _BOUNDED_FACTORIES


def oracle_for(
    name: str, epsilon: float, domain: int, goal: ParameterGoal, max_frequency: float = 1.0
) -> Oracle:
    """Return the oracle `name` with the parameters that are best for `goal`.

    A bound `max_frequency` below 1 on all frequencies may lower the worst variance. Raises
    ValueError if the oracle is unknown or does not allow a parameter.
    """
    if name not in ORACLES:
        raise ValueError(f"oracle must be one of {', '.join(ORACLES)}, not {name!r}")
    if max_frequency != 1:
        if name not in _BOUNDED_FACTORIES or goal != "worst-mse":
            kinds = ", ".join(_BOUNDED_FACTORIES)
            raise ValueError(
                "max_frequency must be 1 except for goal worst-mse of "
                f"{kinds}, not {max_frequency:g}"
            )
        return _BOUNDED_FACTORIES[name](epsilon, domain, max_frequency)
    for_mse, for_l2 = _FACTORIES[ORACLES[name]]
    return (for_mse if goal == "worst-mse" else for_l2)(epsilon, domain)


def oracle_from_parameters(parameters: OracleParameters) -> Oracle:
    """Return the oracle with these `parameters`.

    Raises ValueError if no oracle has that name, or a parameter is not of it or out of range.
    """
    rest = dict(parameters)
    name = str(rest.pop("oracle", ""))
    if name not in ORACLES:
        raise ValueError(f"oracle must be one of {', '.join(ORACLES)}, not {name!r}")
    for field in fields(ORACLES[name]):
        key = field.name
        if field.type in (int, bool) and key in rest and type(rest[key]) is not field.type:
            raise ValueError(f"{key} must be of type {field.type.__name__}")
    try:
        return ORACLES[name](**rest)  # type: ignore[arg-type]  # checked by the class
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def check_parameters(parameters: OracleParameters, name: str, epsilon: float, domain: int) -> None:
    """Raise ValueError unless `parameters` are all those of the oracle that a question names."""
    oracle = oracle_from_parameters(parameters)
    expected = name, epsilon, domain
    actual = oracle.name, oracle.epsilon, oracle.domain
    if actual != expected or oracle.parameters != parameters:
        raise ValueError("the parameters are not those of the question's oracle")
