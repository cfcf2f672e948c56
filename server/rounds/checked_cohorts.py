"""The end of checking in each protocol: who complained, and what follows from it.

In a pairwise sum devices complain about shares, and the accused dealers answer. In a one-shot sum
members complain about messages, and the set of messages to sum leaves these out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from protocol.api.phases import MemberMessageKind, Phase
from secagg.aggregator import complaints_by_dealer
from secagg.oneshot.member_messages import ComplaintList
from secagg.oneshot.opening import choose_messages
from server.db.repositories.cohorts import CheckedCohort
from server.db.repositories.pending_cohorts import PendingCohort
from server.db.store import Store
from server.rounds.cohort_messages import read_complaints
from server.rounds.one_shot_sums import read_one_shot_sum


async def check_shares(store: Store, cohort: PendingCohort) -> CheckedCohort:
    """Return the accused dealers of a pairwise sum, which answer if there are any.

    Raises:
        ProblemError: if the study was stopped meanwhile, and its bodies deleted.
    """
    complaints = complaints_by_dealer(await read_complaints(store.messages, cohort.id))
    pairs = sorted((dealer, holder) for dealer in complaints for holder in complaints[dealer])
    to = Phase.ANSWERING if complaints else Phase.MASKING
    return CheckedCohort(to, accused=sorted(complaints), accusations=pairs)


async def check_messages(store: Store, cohort: PendingCohort) -> CheckedCohort:
    """Return the set of messages that the members of a one-shot sum are to sum.

    Raises:
        OpeningError: if too few members checked their columns, or too few messages remain.
        ProblemError: if the study was deleted meanwhile.
    """
    served = await read_one_shot_sum(store, cohort.study, cohort.round)
    complaints = await store.committees.bodies(cohort.id, MemberMessageKind.COMPLAINTS)
    digests = await store.one_shot_messages.digests(cohort.id)
    by_number = served.by_number(complaints)
    lists = ((number, ComplaintList.unpack(body)) for number, body in by_number.items())
    chosen = await asyncio.to_thread(choose_messages, served.session, digests, lists)
    return CheckedCohort(Phase.AGREEING, message_set=b"".join(chosen.included))


_Check: TypeAlias = Callable[[Store, PendingCohort], Awaitable[CheckedCohort]]
CHECKS: Mapping[str, _Check] = {"pairwise": check_shares, "one-shot": check_messages}
