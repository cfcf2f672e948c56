"""What a study found, as its page shows it: heavy hitters, or how values are distributed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from protocol.distribution import Distribution
from protocol.domain import Domain
from protocol.hashed import MARK, Hashed
from protocol.interval import Interval
from protocol.knots import EmptyTreeError
from protocol.mechanisms import AnyPlan
from protocol.mechanisms.hierarchical_histogram import HierarchicalHistogramPlan
from protocol.mechanisms.queries import distribution
from protocol.messages import HeavyHitter, StudyView
from protocol.tally import Tally
from server.pages.charts import Chart, Series, Spark, spark
from server.pages.history import Past
from server.store import Store

MOST_SHOWN: Final = 100
_POINTS = 101
_RANKS: Final = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, slots=True)
class Row:
    """An item, and how its estimate grew if that is known; `rank` counts from 1."""

    rank: int
    heavy: HeavyHitter
    spark: Spark | None


@dataclass(frozen=True, slots=True)
class Table:
    """The first rows of those that hold what is searched for.

    If it `has_keys`, some of them seem to stand for strings that were not fetched.
    """

    rows: tuple[Row, ...]
    matching: int
    found: int
    has_keys: bool


def table(every: Sequence[HeavyHitter], past: Past | None, search: str, domain: Domain) -> Table:
    """Return the items that contain `search`, whatever its case, most frequent first."""
    sought = search.casefold()
    ranked = [(rank, one) for rank, one in enumerate(every, 1) if sought in one.item.casefold()]
    rows = tuple(
        Row(rank, one, spark(past.of(one.item)) if past else None)
        for rank, one in ranked[:MOST_SHOWN]
    )
    keys = isinstance(domain, Hashed) and any(row.heavy.item.startswith(MARK) for row in rows)
    return Table(rows, len(ranked), len(every), keys)


@dataclass(frozen=True, slots=True)
class Quantile:
    """The value below which a share `rank` of devices is, and the ends of its interval."""

    rank: float
    value: float | str
    low: float | str
    high: float | str


@dataclass(frozen=True, slots=True)
class Curve:
    """How values are distributed: some quantiles, and a picture where values are numbers."""

    quantiles: tuple[Quantile, ...]
    chart: Chart | None


async def curve(store: Store, study: StudyView) -> Curve | None:
    """Return how values are distributed; None if the mechanism does not say, or nothing yet."""
    if not study.round or study.question.mechanism not in ("hierarchical-histogram", "triehh"):
        return None
    plan = await store.rounds.plan(study.id, study.round)
    tally = await store.answers.tally(study.id)
    return await asyncio.to_thread(_curve, plan, tally)


def _curve(plan: AnyPlan, tally: Tally) -> Curve | None:
    try:
        found = distribution(plan, tally)
        told = found.quantile(_RANKS)
    except (EmptyTreeError, ValueError):
        return None
    parts = (told.values.tolist(), told.low.tolist(), told.high.tolist())
    quantiles = tuple(Quantile(*row) for row in zip(_RANKS, *parts, strict=True))
    is_number = isinstance(plan, HierarchicalHistogramPlan)
    is_number = is_number and isinstance(plan.question.domain, Interval)
    return Curve(quantiles, _picture(found) if is_number else None)


def _picture(found: Distribution) -> Chart:
    places, ranks = found.cdf(_POINTS)
    series = [
        Series("share of devices below", ranks.values.tolist()),
        Series("95% interval, low", ranks.low.tolist(), "band"),
        Series("95% interval, high", ranks.high.tolist(), "band"),
    ]
    return Chart(
        "cdf",
        "Cumulative distribution",
        [float(place) for place in places.tolist()],
        series,
        x_label="value",
        scale="share",
        note="The share of devices whose value is below x, with its 95% interval.",
    )
