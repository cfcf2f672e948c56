"""Every oracle by name, and back from the parameters that define one."""

from dataclasses import fields

from protocol.oracles.apple import AppleSketch
from protocol.oracles.bits import Rappor, SubsetSelection
from protocol.oracles.counts import Parameters
from protocol.oracles.hadamard import Hadamard, RecursiveHadamard
from protocol.oracles.inner_product import OcmsGf
from protocol.oracles.krr import RandomisedResponse
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.mixture import OcmsMixture
from protocol.oracles.ocms import Ocms
from protocol.oracles.oracle import Oracle

ORACLES: dict[str, type[Oracle]] = {
    kind.name: kind
    for kind in (
        RandomisedResponse,
        Ocms,
        OcmsGf,
        OcmsMixture,
        Hadamard,
        RecursiveHadamard,
        LocalHashing,
        AppleSketch,
        SubsetSelection,
        Rappor,
    )
}


def oracle_of(parameters: Parameters) -> Oracle:
    """Return the oracle that these are the `parameters` of.

    Raises:
        ValueError: if there is none of that name, or a parameter is missing, unknown, of
            another type or out of range.
    """
    rest = dict(parameters)
    name = str(rest.pop("oracle", ""))
    if name not in ORACLES:
        raise ValueError(f"oracle must be one of {', '.join(ORACLES)}, not {name!r}")
    for one in fields(ORACLES[name]):
        if one.type in (int, bool) and one.name in rest and type(rest[one.name]) is not one.type:
            raise ValueError(f"{one.name} must be of type {one.type.__name__}")
    try:
        return ORACLES[name](**rest)  # type: ignore[arg-type]  # checked by the class
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def check_as_asked(parameters: Parameters, name: str, epsilon: float, domain: int) -> None:
    """Check that these are the `parameters`, all of them, of an oracle as a question asks for it.

    Raises:
        ValueError: if they are another's, or some are left to defaults. Also as `oracle_of`.
    """
    made = oracle_of(parameters)
    asked = name, epsilon, domain
    if (made.name, made.epsilon, made.domain) != asked or made.parameters != parameters:
        raise ValueError("the parameters are not those of the oracle that is asked for")
