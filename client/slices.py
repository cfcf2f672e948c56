"""A fleet over several processes: each plays a slice of a round's devices before the service.

A slice is plain data. It has all that its devices are: the secrets of their identities, what they
hold and gave so far, and after which step each is lost; what comes back is how their parts ended,
and what they gave by then. So no process keeps anything from round to round, any process plays any
slice, and which devices play, give and are lost hangs on the fleet's seed alone.

All slices are played at a time, since their devices wait for one another: there must be as many
processes, or threads, as slices. Those of a process that dies are gone, as devices may be.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from client.habits import Behaviour
from client.journal import Given

T = TypeVar("T")
_DIED: Final = "KilledWorker"  # Dask's, by name: it may not be there


class LostWorkersError(RuntimeError):
    """Processes that played devices are gone, and their devices with them."""


@dataclass(frozen=True, slots=True)
class Member:
    """A device as it goes to the process that plays it: see `Device`."""

    index: int
    secret: bytes = field(repr=False)  # of its identity
    given: tuple[Given, ...]
    enrolment: bytes
    credential: str = field(repr=False)
    is_known: bool  # to a closed service
    behaviour: Behaviour


@dataclass(frozen=True, slots=True)
class Slicing:
    """Processes, or threads, that play so many slices at a time."""

    executor: Executor
    slices: int

    def cut(self, things: Sequence[T]) -> list[Sequence[T]]:
        """Return slices that differ by one of `things` at most, and are not empty."""
        return [part for n in range(self.slices) if (part := things[n :: self.slices])]


def is_of_dead_worker(error: Exception) -> bool:
    """Return whether an executor's `error` is that a worker died of its work."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == _DIED


async def gathered(futures: Sequence[asyncio.Future[T]]) -> list[T]:
    """Return all results.

    Raises:
        LostWorkersError: if whoever was to compute them is gone.
    """
    me = asyncio.current_task()
    try:
        return list(await asyncio.gather(*futures))
    except (asyncio.CancelledError, CancelledError):
        if me is not None and me.cancelling():
            raise
        raise LostWorkersError("the workers are lost, and their devices with them") from None
    except Exception as error:
        if is_of_dead_worker(error):
            why = "a worker died, perhaps for lack of memory, and its devices with it"
            raise LostWorkersError(why) from None
        raise
    finally:
        for future in futures:
            future.cancel()
