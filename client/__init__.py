"""The device, the analyst and whole fleets of devices: the parties that talk to the service.

What programs of others use is named here, and told in `docs/sdk.md`: `Analyst` and `AsyncAnalyst`
ask and read, `take_part` is a device's whole part.

Read in this order: `policy` (what a device will take part in), `participation` (one device
in one round), `journal` (what it gave, so that it gives nothing else), `encoding` (from records
to a vector), `transport` and `problems` (HTTP, and what its refusals mean), `part` (how a round
ends for a device), `kept` and `taking_part` (a device that comes again), `crew`, `habits` and
`fleet` (hundreds of devices in one process), `slices` (or in several); `calls` (what an analyst
may ask), `asking`, `analyst` and `async_analyst` (who asks), `tables` (what is answered).
"""

from client.analyst import Analyst, Study
from client.async_analyst import AsyncAnalyst, AsyncStudy
from client.journal import JournalError
from client.kept import Kept
from client.part import End
from client.participation import Step
from client.policy import Policy
from client.problems import ServiceError
from client.tables import HeavyHitter, Table, Told
from client.taking_part import Outcome, take_part

__all__ = [
    "Analyst",
    "AsyncAnalyst",
    "AsyncStudy",
    "End",
    "HeavyHitter",
    "JournalError",
    "Kept",
    "Outcome",
    "Policy",
    "ServiceError",
    "Step",
    "Study",
    "Table",
    "Told",
    "take_part",
]
