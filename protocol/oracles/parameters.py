"""The best parameters of each oracle for a goal: the worst or the total variance."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from protocol.oracles.hadamard import Hadamard, RecursiveHadamard
from protocol.oracles.hcms import HadamardCountMeanSketch
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.ocms.galois import OcmsGf
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.mixture import OcmsMixture
from protocol.oracles.oracle import Oracle
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection

ParameterGoal: TypeAlias = Literal["worst-mse", "l2"]
_Factory: TypeAlias = Callable[[float, int], Oracle]
_BoundedFactory: TypeAlias = Callable[[float, int, float], Oracle]

_APPLE_FUNCTIONS = 2**12  # of 1024 symbols: 32 MB of cells; 2^16 would take 512 MB


def _apple_sketch(epsilon: float, domain: int) -> Oracle:
    return HadamardCountMeanSketch(epsilon, domain, functions=_APPLE_FUNCTIONS)


# For each name: the oracle of the smallest worst variance, and that of the smallest total variance.
_FACTORIES: dict[str, tuple[_Factory, _Factory]] = {
    "krr": (KaryRandomizedResponse, KaryRandomizedResponse),
    "ocms": (Ocms.for_mse, Ocms.for_l2),
    "ocms-gf": (OcmsGf.for_mse, OcmsGf.for_l2),
    "ocms-mixture": (OcmsMixture.for_mse, OcmsMixture.for_mse),
    "hadamard": (Hadamard, Hadamard),
    "recursive-hadamard": (RecursiveHadamard.for_epsilon, RecursiveHadamard.for_epsilon),
    "olh": (LocalHashing.for_l2, LocalHashing.for_l2),
    "apple-cms": (_apple_sketch, _apple_sketch),
    "subset-selection": (SubsetSelection.for_mse, SubsetSelection.standard),
    "rappor": (
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=True),
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=False),
    ),
}


# Oracles whose worst variance is smaller if no frequency is above a known bound.
_BOUNDED_FACTORIES: dict[str, _BoundedFactory] = {
    "ocms": Ocms.for_mse,
    "ocms-gf": OcmsGf.for_mse,
    "ocms-mixture": OcmsMixture.for_mse,
}


def depends_on_goal(name: str) -> bool:
    """Return whether the parameters of oracle `name` differ between goals."""
    for_mse, for_l2 = _FACTORIES[name]
    return for_mse is not for_l2


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
    if name not in _FACTORIES:
        raise ValueError(f"oracle must be one of {', '.join(_FACTORIES)}, not {name!r}")
    if max_frequency != 1:
        if name not in _BOUNDED_FACTORIES or goal != "worst-mse":
            kinds = ", ".join(_BOUNDED_FACTORIES)
            raise ValueError(
                "max_frequency must be 1 except for goal worst-mse of "
                f"{kinds}, not {max_frequency:g}"
            )
        return _BOUNDED_FACTORIES[name](epsilon, domain, max_frequency)
    for_mse, for_l2 = _FACTORIES[name]
    return (for_mse if goal == "worst-mse" else for_l2)(epsilon, domain)
