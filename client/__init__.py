"""Clients of the service: devices, analysts, and fleets of simulated devices.

Programs import the names below, which `docs/sdk.md` explains: an `Analyst` or `AsyncAnalyst`
creates studies and reads answers, and `take_part` is the whole part of a device.
"""

from client.analyst.analyst import Analyst, Study
from client.analyst.async_analyst import AsyncAnalyst, AsyncStudy
from client.analyst.result_table import ResultTable
from client.device.device import DeviceStep
from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.journal import JournalError
from client.device.policy import Policy
from client.device.take_part import ParticipationOutcome, take_part
from client.errors import ServiceError, ServiceUnreachableError
from protocol.api.messages import HeavyHitter, QueryResult
from protocol.mechanisms.quality_goal import QualityGoal
from secagg.errors import UnsafeRequestError

__all__ = [
    "Analyst",
    "AsyncAnalyst",
    "AsyncStudy",
    "DeviceState",
    "DeviceStep",
    "EndState",
    "HeavyHitter",
    "JournalError",
    "ParticipationOutcome",
    "Policy",
    "QualityGoal",
    "QueryResult",
    "ResultTable",
    "ServiceError",
    "ServiceUnreachableError",
    "Study",
    "UnsafeRequestError",
    "take_part",
]
