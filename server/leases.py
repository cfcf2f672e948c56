"""Work under a lease: claimed, renewed while it lasts, given back however it ends.

A process that ends in good order gives its leases back at once; of one that is killed they run
out. One that was frozen finds at its next renewal, or when it publishes, that another took over.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

import structlog

from server.database import UNAVAILABLE
from server.store.leases import Lease, Leases, StaleLeaseError, Work

_RENEWALS = 3  # in the time that a lease lasts: two may fail
_log = structlog.get_logger(__name__)


def process_name() -> str:
    """Return a name for this process that no other has, and that tells people where it runs."""
    return f"{socket.gethostname()[:32]}-{os.getpid()}-{token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Holder:
    """Who claims, and for how many seconds at a time."""

    leases: Leases
    name: str
    seconds: float

    async def do(self, work: Work, action: Callable[[Lease], Awaitable[None]]) -> None:
        """Do `action` if nobody else does this work, as long as the lease of it is ours."""
        lease = await self.leases.claim(work, self.name, self.seconds)
        if lease is None:
            return
        _log.debug("work claimed", work=work.name, version=lease.version)
        tasks = (
            asyncio.ensure_future(_publishing(action, lease)),
            asyncio.ensure_future(self._renew(lease)),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(*UNAVAILABLE):  # then it runs out
                await self.leases.release(lease)

    async def _renew(self, lease: Lease) -> None:
        """Renew `lease` until cancelled; return once it is lost."""
        while True:
            await asyncio.sleep(self.seconds / _RENEWALS)
            renewing = asyncio.ensure_future(self.leases.renew(lease, self.seconds))
            try:
                with suppress(*UNAVAILABLE):  # the next time, perhaps
                    if not await asyncio.shield(renewing):
                        _log.warning("lease lost", work=lease.work, version=lease.version)
                        return
            except asyncio.CancelledError:
                # Its thread goes on: committed after the release, it would take the lease again.
                await asyncio.gather(renewing, return_exceptions=True)
                raise


async def _publishing(action: Callable[[Lease], Awaitable[None]], lease: Lease) -> None:
    try:
        await action(lease)
    except StaleLeaseError:
        _log.warning("work of a stale lease dropped", work=lease.work, version=lease.version)
