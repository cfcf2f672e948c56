"""Fleets over several processes: each process runs a shard of a round's devices.

A shard is plain data with everything about its devices, and the process returns their results and
journals. So no process keeps state from round to round, and the fleet's seed alone determines which
devices take part, contribute and drop out.

All shards run at the same time, because their devices wait for one another: there must be one
process or thread per shard. The devices of a process that dies have dropped out.
"""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from client.device.journal import JournalEntry
from client.fleet.config_and_results import DeviceResult, FleetConfig
from client.fleet.devices import ClientFactory, DeviceSnapshot, FleetDevices
from protocol.api.messages import RoundView, StudyView
from protocol.histograms import Histogram

T = TypeVar("T")
ShardResults: TypeAlias = list[tuple[DeviceResult, tuple[JournalEntry, ...]]]
_DASK_WORKER_DIED: Final = "KilledWorker"  # the name of Dask's class, as Dask is optional


class LostWorkersError(RuntimeError):
    """Processes that ran devices have ended, and their devices with them."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Some devices of one round, with their items."""

    connect: ClientFactory
    study: StudyView
    view: RoundView
    config: FleetConfig
    holdings: Mapping[int, Histogram] = field(repr=False)
    devices: Sequence[DeviceSnapshot]


def run_shard(shard: Shard) -> ShardResults:
    """Return the result and the journal of each device of a shard."""
    devices = FleetDevices(shard.connect, shard.study, shard.holdings, shard.config)
    for snapshot in shard.devices:
        devices.restore(snapshot)
    behaviours = {snapshot.index: snapshot.behaviour for snapshot in shard.devices}
    results = asyncio.run(devices.run_round(shard.view, behaviours))
    return [(result, devices.journal_entries(result.device)) for result in results]


@dataclass(frozen=True, slots=True)
class ShardPool:
    """Processes, or threads, that run `shards` shards at the same time."""

    executor: Executor
    shards: int

    def split(self, items: Sequence[T]) -> list[Sequence[T]]:
        """Return non-empty parts of `items` whose sizes differ by at most one."""
        return [part for n in range(self.shards) if (part := items[n :: self.shards])]


def is_worker_death(error: Exception) -> bool:
    """Return whether an executor raised `error` because a worker process died."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == _DASK_WORKER_DIED


async def gather_results(futures: Sequence[asyncio.Future[T]]) -> list[T]:
    """Return all results; raises LostWorkersError if a worker process has ended."""
    task = asyncio.current_task()
    try:
        return list(await asyncio.gather(*futures))
    except (asyncio.CancelledError, CancelledError):
        if task is not None and task.cancelling():
            raise
        raise LostWorkersError("the workers have ended, and their devices with them") from None
    except Exception as error:
        if is_worker_death(error):
            reason = "a worker died, perhaps because it ran out of memory, and its devices with it"
            raise LostWorkersError(reason) from None
        raise
    finally:
        for future in futures:
            future.cancel()
