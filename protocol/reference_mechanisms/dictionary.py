"""Frequency oracles for comparison as mechanisms; `plan reports` never recommends them.

They are used as those of `protocol/mechanisms/reports/dictionary.py`, and differ by their oracles
only. Another oracle is better than each of them in bits, in time or in error.
"""

from typing import Final, Literal

from protocol.mechanisms.reports.dictionary import OracleMechanism, OraclePlan, OracleQuestion
from protocol.oracles.oracle import Oracle
from protocol.oracles.registry import OracleKind, kinds_by_name
from protocol.reference_mechanisms.oracles.apple_cms import HadamardCountMeanSketch
from protocol.reference_mechanisms.oracles.local_hashing import LocalHashing
from protocol.reference_mechanisms.oracles.recursive_hadamard import RecursiveHadamard

ReferenceOracleName = Literal["recursive-hadamard", "olh", "apple-cms"]
# 1024 symbols for each function take 32 MB of cells. The paper's 2^16 functions would take 512 MB.
_APPLE_FUNCTIONS: Final = 2**12


def _apple_sketch(epsilon: float, domain: int) -> Oracle:
    return HadamardCountMeanSketch(epsilon, domain, functions=_APPLE_FUNCTIONS)


REFERENCE_ORACLES: Final = kinds_by_name(
    OracleKind(RecursiveHadamard, RecursiveHadamard.for_epsilon, RecursiveHadamard.for_epsilon),
    OracleKind(LocalHashing, LocalHashing.for_l2, LocalHashing.for_l2),
    OracleKind(HadamardCountMeanSketch, _apple_sketch, _apple_sketch),
)


class ReferenceOracleQuestion(OracleQuestion):
    """Question for an oracle that others are compared with."""

    mechanism: ReferenceOracleName


class ReferenceOraclePlan(OraclePlan):
    """Plan of a round for such an oracle."""

    kinds = REFERENCE_ORACLES
    mechanism: ReferenceOracleName
    question: ReferenceOracleQuestion


class ReferenceOracle(OracleMechanism):
    """Mechanism of such an oracle."""

    question_type = ReferenceOracleQuestion
    plan_type = ReferenceOraclePlan
    is_recommended = False


REFERENCE_ORACLE_MECHANISMS: Final = (
    ReferenceOracle("recursive-hadamard", "all counts; a baseline", "log2 d + 1 bits"),
    ReferenceOracle("olh", "all counts by a hash seed; a baseline", "40 + log2 m bits"),
    ReferenceOracle(
        "apple-cms", "all counts by 2^16 hash functions; biased, a baseline", "17 + log2 m bits"
    ),
)
