"""Federated analytics: the public names of blindtally, for analysts and devices.

    from blindtally import Analyst, Device, Policy, Tracked, Utf8

Programs import these names and those of `blindtally.errors`; docs/sdk.md explains them. Each is
imported at its first use, so `import blindtally` takes a few milliseconds. Modules below `client`,
`protocol`, `secagg` and `server` may change at any time.

The other modules of this folder are the command line; `cli.py` lists its commands.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from blindtally.own_packages import import_own

if TYPE_CHECKING:
    from blindtally.local_service import LocalService
    from blindtally.planning.recommended_size import recommend_message_bytes
    from client.analyst.analyst import Analyst, Study
    from client.analyst.async_analyst import AsyncAnalyst, AsyncStudy
    from client.analyst.result_table import ResultTable
    from client.committee.registrar import DrawRecord, Registrar, seating_rounds
    from client.device.blocking_device import Device
    from client.device.committee_service import CommitteeOutcome, CommitteeState
    from client.device.device import DeviceStep
    from client.device.device_state import DeviceState
    from client.device.driver import EndState
    from client.device.encoding import LeftOut, LeftOutReason
    from client.device.repeated_participation import take_part_repeatedly
    from client.device.take_part import ParticipationOutcome, take_part
    from client.http.transport import Transport, http_client
    from protocol.api.events import Event
    from protocol.api.messages import HeavyHitter, QueryResult, RoundView, StudyView, Timeouts
    from protocol.api.rates import ItemChanges, RoundRate
    from protocol.api.segments import SegmentSummary
    from protocol.committee_terms import CommitteeTerms, VolunteerTerms
    from protocol.device_policy.policy import Policy
    from protocol.domains.hashed import Hashed, HashedProduct
    from protocol.domains.numeric import NumericInterval
    from protocol.domains.product import Product
    from protocol.domains.strings import Alphabet, Listed, Utf8
    from protocol.estimation.estimates import ListQuality
    from protocol.estimation.number_summary import NumberSummary
    from protocol.mechanisms.central.hierarchical_histogram import (
        HierarchicalHistogramQuestion as HierarchicalHistogram,
    )
    from protocol.mechanisms.central.trie_plan import TrieHhQuestion as TrieHH
    from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion as AdaptiveIblt
    from protocol.mechanisms.number_sums import NumberSumsQuestion as NumberSums
    from protocol.mechanisms.quality_goal import QualityGoal
    from protocol.mechanisms.reports.dictionary import DictionaryQuestion as FrequencyOracle
    from protocol.mechanisms.reports.prefix_extension import PrefixQuestion as PrefixExtension
    from protocol.mechanisms.tracked.plan import TrackedQuestion as Tracked
    from protocol.privacy.ledger import Budget, Statement
    from protocol.question_and_plan import Plan, Terms
    from protocol.reference_mechanisms.approximate_histogram import (
        ApproximateHistogramQuestion as ApproximateHistogram,
    )
    from protocol.reference_mechanisms.count_sketches import (
        FrequencySketchQuestion as FrequencySketch,
    )
    from protocol.reference_mechanisms.dictionary import ReferenceOracleQuestion as ReferenceOracle
    from protocol.reference_mechanisms.hsu2012 import BucketQuestion as Bucket
    from protocol.reference_mechanisms.hsu2012 import GlpsQuestion as Glps
    from protocol.reference_mechanisms.hsu2012 import JlQuestion as JohnsonLindenstrauss
    from protocol.reference_mechanisms.subsampled_iblt import (
        SubsampledIbltQuestion as SubsampledIblt,
    )
    from secagg.keys import Identity

_NAMES = {  # names by module; "public = name" where the name in the module differs
    "blindtally.local_service": "LocalService",
    "blindtally.planning.recommended_size": "recommend_message_bytes",
    "client.analyst.analyst": "Analyst Study",
    "client.analyst.async_analyst": "AsyncAnalyst AsyncStudy",
    "client.analyst.result_table": "ResultTable",
    "client.device.blocking_device": "Device",
    "client.device.committee_service": "CommitteeOutcome CommitteeState",
    "client.device.device": "DeviceStep",
    "client.device.device_state": "DeviceState",
    "client.device.driver": "EndState",
    "client.device.encoding": "LeftOut LeftOutReason",
    "client.device.repeated_participation": "take_part_repeatedly",
    "protocol.device_policy.policy": "Policy",
    "client.device.take_part": "ParticipationOutcome take_part",
    "client.committee.registrar": "DrawRecord Registrar seating_rounds",
    "client.http.transport": "Transport http_client",
    "protocol.api.events": "Event",
    "protocol.api.messages": "HeavyHitter QueryResult RoundView StudyView Timeouts",
    "protocol.api.rates": "ItemChanges RoundRate",
    "protocol.api.segments": "SegmentSummary",
    "protocol.committee_terms": "CommitteeTerms VolunteerTerms",
    "protocol.domains.hashed": "Hashed HashedProduct",
    "protocol.domains.numeric": "NumericInterval",
    "protocol.domains.product": "Product",
    "protocol.domains.strings": "Alphabet Listed Utf8",
    "protocol.estimation.estimates": "ListQuality",
    "protocol.mechanisms.central.hierarchical_histogram": (
        "HierarchicalHistogram=HierarchicalHistogramQuestion"
    ),
    "protocol.mechanisms.central.trie_plan": "TrieHH=TrieHhQuestion",
    "protocol.reference_mechanisms.count_sketches": "FrequencySketch=FrequencySketchQuestion",
    "protocol.mechanisms.iblt.adaptive": "AdaptiveIblt=AdaptiveIbltQuestion",
    "protocol.reference_mechanisms.approximate_histogram": (
        "ApproximateHistogram=ApproximateHistogramQuestion"
    ),
    "protocol.reference_mechanisms.subsampled_iblt": "SubsampledIblt=SubsampledIbltQuestion",
    "protocol.estimation.number_summary": "NumberSummary",
    "protocol.mechanisms.number_sums": "NumberSums=NumberSumsQuestion",
    "protocol.mechanisms.quality_goal": "QualityGoal",
    "protocol.mechanisms.reports.dictionary": "FrequencyOracle=DictionaryQuestion",
    "protocol.reference_mechanisms.dictionary": "ReferenceOracle=ReferenceOracleQuestion",
    "protocol.reference_mechanisms.hsu2012": (
        "Bucket=BucketQuestion Glps=GlpsQuestion JohnsonLindenstrauss=JlQuestion"
    ),
    "protocol.mechanisms.reports.prefix_extension": "PrefixExtension=PrefixQuestion",
    "protocol.mechanisms.tracked.plan": "Tracked=TrackedQuestion",
    "protocol.privacy.ledger": "Budget Statement",
    "protocol.question_and_plan": "Plan Terms",
    "secagg.keys": "Identity",
}
_SOURCES = {
    public: (module, name or public)
    for module, names in _NAMES.items()
    for public, _, name in (entry.partition("=") for entry in names.split())
}

__all__ = [
    "AdaptiveIblt",
    "Alphabet",
    "Analyst",
    "ApproximateHistogram",
    "AsyncAnalyst",
    "AsyncStudy",
    "Bucket",
    "Budget",
    "CommitteeOutcome",
    "CommitteeState",
    "CommitteeTerms",
    "Device",
    "DeviceState",
    "DeviceStep",
    "DrawRecord",
    "EndState",
    "Event",
    "FrequencyOracle",
    "FrequencySketch",
    "Glps",
    "Hashed",
    "HashedProduct",
    "HeavyHitter",
    "HierarchicalHistogram",
    "Identity",
    "ItemChanges",
    "JohnsonLindenstrauss",
    "LeftOut",
    "LeftOutReason",
    "ListQuality",
    "Listed",
    "LocalService",
    "NumberSummary",
    "NumberSums",
    "NumericInterval",
    "ParticipationOutcome",
    "Plan",
    "Policy",
    "PrefixExtension",
    "Product",
    "QualityGoal",
    "QueryResult",
    "ReferenceOracle",
    "Registrar",
    "ResultTable",
    "RoundRate",
    "RoundView",
    "SegmentSummary",
    "Statement",
    "Study",
    "StudyView",
    "SubsampledIblt",
    "Terms",
    "Timeouts",
    "Tracked",
    "Transport",
    "TrieHH",
    "Utf8",
    "VolunteerTerms",
    "http_client",
    "recommend_message_bytes",
    "seating_rounds",
    "take_part",
    "take_part_repeatedly",
]

import_own()


__version__: str  # read at its first use, as the names above are


def __getattr__(name: str) -> object:
    """Import a public name at its first use [PEP 562]."""
    if name == "__version__":
        return str(import_module("importlib.metadata").version(__name__))
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    if name.startswith("take_part"):
        value = import_module("client.lazy_modules").LazyCoroutineFunction(module, attribute)
    else:
        value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
