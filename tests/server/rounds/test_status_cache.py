"""Cached status of a cohort while the cohort changes."""

from dataclasses import replace

from server.db.channels import cohort_channel
from server.rounds.caches import StatusCache
from tests.server.harness import Served


async def test_no_cached_status_is_used_while_a_cohort_changes(served: Served) -> None:
    """Between the commit of a change and its notification the cached status is out of date."""
    await served.join(await served.create(), 1)  # the others are missing, so its phase stays
    service, cohort = served.service, 1
    cache = StatusCache(service.store, service.notifier)
    before = await cache.status(cohort)
    cache.statuses.remember(cohort, replace(before, failure="out of date"))
    assert (await cache.status(cohort)).failure == "out of date"
    cache.on_change([cohort_channel(cohort)])
    assert await cache.status(cohort) == before
    cache.after_change([cohort_channel(cohort)])
    service.notifier.notify(cohort_channel(cohort))
    assert await cache.status(cohort) == before
