"""Options of a study's question that its answer does not list, with words for their counts."""

from collections.abc import Iterable, Sequence

from protocol.api.messages import StudyView
from protocol.api.unlisted import CountedRounds, option_counts
from protocol.mechanisms.registry import mechanism_of
from server.db.repositories.progress import RoundSummary
from server.db.store import Store


async def unlisted_option_counts(store: Store, study: str, listed: Iterable[str]) -> dict[str, str]:
    """Return the options that are not `listed`, each with words; empty before a sum was read."""
    view = await store.studies.show(study)
    if not view.round or not mechanism_of(view.question).options(view.question):
        return {}
    plan = await store.rounds.plan(study, view.round)
    return option_counts(plan, await counted_rounds(store, view), listed)


async def counted_rounds(
    store: Store, study: StudyView, last: Sequence[RoundSummary] = ()
) -> CountedRounds:
    """Return the figures of all rounds, of which the `last` ones may have been read already."""
    if len(last) < study.round:
        last = await store.progress.round_summaries(study.id, study.round)
    return CountedRounds.of(last)
