"""Which parameters an oracle of a given kind should have: by what is to be small."""

from collections.abc import Callable
from typing import Literal, TypeAlias

from protocol.oracles.apple import AppleSketch
from protocol.oracles.bits import Rappor, SubsetSelection
from protocol.oracles.hadamard import Hadamard, RecursiveHadamard
from protocol.oracles.inner_product import OcmsGf
from protocol.oracles.krr import RandomisedResponse
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.mixture import OcmsMixture
from protocol.oracles.ocms import Ocms
from protocol.oracles.oracle import Oracle

Goal: TypeAlias = Literal["worst-mse", "l2"]
_Make: TypeAlias = Callable[[float, int], Oracle]
_Bounded: TypeAlias = Callable[[float, int, float], Oracle]

_APPLE_FUNCTIONS = 2**12  # of 1024 symbols: 32 MB of cells; 2^16, as of old, take 512 MB


def _apple(epsilon: float, domain: int) -> Oracle:
    return AppleSketch(epsilon, domain, functions=_APPLE_FUNCTIONS)


# For each kind the oracle of the least worst variance, and that of the least sum of variances.
_MAKES: dict[str, tuple[_Make, _Make]] = {
    "krr": (RandomisedResponse, RandomisedResponse),
    "ocms": (Ocms.for_mse, Ocms.for_l2),
    "ocms-gf": (OcmsGf.for_mse, OcmsGf.for_l2),
    "ocms-mixture": (OcmsMixture.for_mse, OcmsMixture.for_mse),
    "hadamard": (Hadamard, Hadamard),
    "recursive-hadamard": (RecursiveHadamard.for_epsilon, RecursiveHadamard.for_epsilon),
    "olh": (LocalHashing.for_l2, LocalHashing.for_l2),
    "apple-cms": (_apple, _apple),
    "subset-selection": (SubsetSelection.for_mse, SubsetSelection.standard),
    "rappor": (
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=True),
        lambda epsilon, domain: Rappor(epsilon, domain, symmetric=False),
    ),
}


# Kinds whose worst variance is less where no frequency is above a known bound.
_BOUNDED: dict[str, _Bounded] = {
    "ocms": Ocms.for_mse,
    "ocms-gf": OcmsGf.for_mse,
    "ocms-mixture": OcmsMixture.for_mse,
}


def heeds_goal(name: str) -> bool:
    """Return whether oracles of kind `name` have other parameters for another goal."""
    worst, squares = _MAKES[name]
    return worst is not squares


def heeds_bound(name: str) -> bool:
    """Return whether a known bound on frequencies may lower an oracle's worst variance."""
    return name in _BOUNDED


def oracle_for(name: str, epsilon: float, domain: int, goal: Goal, most: float = 1.0) -> Oracle:
    """Return the oracle of kind `name` with the parameters that are best for `goal`.

    No frequency is above `most`, if that is below 1: which the greatest variance may gain from.

    Raises:
        ValueError: if there is no such kind, or it does not go with `epsilon` or `domain`, or has
            nothing to gain from `most`.
    """
    if name not in _MAKES:
        raise ValueError(f"oracle must be one of {', '.join(_MAKES)}, not {name!r}")
    if most != 1:
        if name not in _BOUNDED or goal != "worst-mse":
            kinds = ", ".join(_BOUNDED)
            raise ValueError(f"most must be 1 but for goal worst-mse of {kinds}, not {most:g}")
        return _BOUNDED[name](epsilon, domain, most)
    worst, squares = _MAKES[name]
    return (worst if goal == "worst-mse" else squares)(epsilon, domain)
