"""One oracle of each kind and then some, small enough to list every report of."""

from protocol.oracles.hadamard import Hadamard
from protocol.oracles.krr import KaryRandomizedResponse
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.oracles.rappor import Rappor
from protocol.oracles.subset_selection import SubsetSelection
from protocol.reference_mechanisms.oracles.apple_cms import HadamardCountMeanSketch
from protocol.reference_mechanisms.oracles.local_hashing import LocalHashing
from protocol.reference_mechanisms.oracles.recursive_hadamard import RecursiveHadamard


def small(epsilon: float) -> list[Oracle]:
    """Return oracles over 10 to 12 values, with at most 2^20 reports each."""
    return [
        KaryRandomizedResponse(epsilon, 10),
        Ocms(epsilon, 10, 3, 101),
        OcmsGf(epsilon, 10, 2),
        OcmsGf(epsilon, 10, 3),
        OcmsGf(epsilon, 10, 4),
        OcmsGf(epsilon, 10, 8),
        OcmsMixture(epsilon, 10, 3, 5, 0.4),
        OcmsMixture(epsilon, 10, 2, 3, 0.3, "prime"),
        Hadamard(epsilon, 10),
        RecursiveHadamard(epsilon, 12, 4),
        LocalHashing(epsilon, 10, 4, seed_bits=8),
        HadamardCountMeanSketch(epsilon, 10, m=4, functions=8),
        Rappor(epsilon, 10, symmetric=True),
        Rappor(epsilon, 10, symmetric=False),
        SubsetSelection(epsilon, 10, 3),
    ]


def name(oracle: Oracle) -> str:
    rest = [str(value) for key, value in oracle.parameters.items() if key != "oracle"]
    return "-".join([oracle.name, *rest])


def usual() -> list[Oracle]:
    """Return oracles over 60 to 90 values, with hash functions as good as they claim."""
    return [
        KaryRandomizedResponse(3.0, 60),
        Ocms.for_mse(1.0, 60),
        Ocms.for_l2(2.0, 90),
        Ocms(1.0, 60, 13, 101),
        OcmsGf(1.0, 60, 3),
        OcmsGf(2.0, 70, 4),
        OcmsGf(3.0, 90, 7),
        OcmsGf(4.0, 90, 16),
        OcmsMixture.for_mse(2.0, 80),
        OcmsMixture.for_mse(3.0, 80, hashing="prime"),
        Hadamard(1.5, 90),
        LocalHashing.for_l2(1.0, 70),
        HadamardCountMeanSketch(2.0, 70, m=16, functions=2**12),
        Rappor(2.0, 60, symmetric=True),
        Rappor(2.0, 60, symmetric=False),
        SubsetSelection.standard(1.0, 60),
        SubsetSelection.for_mse(2.0, 60),
    ]
