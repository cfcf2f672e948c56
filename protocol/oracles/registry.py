"""All oracles by name, and the oracle of given parameters."""

from dataclasses import fields

from protocol.oracles.hadamard import Hadamard, RecursiveHadamard
from protocol.oracles.hcms import HadamardCountMeanSketch
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.ocms.galois import OcmsGf
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.mixture import OcmsMixture
from protocol.oracles.oracle import Oracle, OracleParameters
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection

ORACLES: dict[str, type[Oracle]] = {
    kind.name: kind
    for kind in (
        KaryRandomizedResponse,
        Ocms,
        OcmsGf,
        OcmsMixture,
        Hadamard,
        RecursiveHadamard,
        LocalHashing,
        HadamardCountMeanSketch,
        SubsetSelection,
        Rappor,
    )
}


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
