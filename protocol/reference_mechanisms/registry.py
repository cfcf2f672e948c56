"""All reference mechanisms, as the registry loads them."""

from typing import Any, Final

from protocol.mechanism import Mechanism
from protocol.reference_mechanisms.approximate_histogram import ApproximateHistogram
from protocol.reference_mechanisms.count_sketches import COUNT_MEDIAN, COUNT_SKETCH
from protocol.reference_mechanisms.dictionary import REFERENCE_ORACLE_MECHANISMS
from protocol.reference_mechanisms.hsu2012 import LINEAR_MECHANISMS
from protocol.reference_mechanisms.subsampled_iblt import SubsampledIblt

MECHANISMS: Final[tuple[Mechanism[Any, Any], ...]] = (
    SubsampledIblt(),
    ApproximateHistogram(),
    COUNT_MEDIAN,
    COUNT_SKETCH,
    *REFERENCE_ORACLE_MECHANISMS,
    *LINEAR_MECHANISMS,
)
