"""The answer of a simulated study against the truth: by the kind of the answer, and never by name.

Items are scored by F1, a distribution by the errors of its ranks, and means are shown next to those
of the data. Each kind gives fields of the JSON document, tables, and lines of facts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from blindtally.console.tables import Printable, result_table
from blindtally.datasets.item_counts import ItemCounts
from blindtally.datasets.reader import Dataset
from blindtally.simulate.scores import Comparison, FoundItem, compare_estimates, scores_at_ranks
from blindtally.simulate.study import PlayedStudy
from protocol.api.unlisted import limits_of_list, why_nothing_is_listed
from protocol.description import AnswerKind
from protocol.domains.base import SEGMENT_SEPARATOR
from protocol.domains.numeric import NumericInterval
from protocol.estimation.estimates import ListQuality
from protocol.estimation.number_summary import SEGMENTS_NOTE, segment_label
from protocol.numerics.array_types import Floats, Integers
from protocol.quantiles.distribution import Distribution
from protocol.report_mechanism import ReportMechanism

_MAX_SHOWN_ITEMS = 20  # heavy hitters in a table
_SHOWN_RANKS = np.array((0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99))
_EVALUATED_RANKS = np.arange(1, 1000) / 1000


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """Fields of a JSON document, tables with notes, and lines of facts before and after others."""

    document: dict[str, Any]
    tables: Sequence[Printable]
    facts: Mapping[str, str]
    scores: Mapping[str, str] = field(default_factory=dict)


def answer_of(study: PlayedStudy, dataset: Dataset) -> AnswerParts:
    """Return the answer of a study whose devices hold the items of `dataset`.

    Raises:
        ValueError: if no round has an answer of this kind.
    """
    kind = study.mechanism.answer_kind(study.question)
    if kind is AnswerKind.DISTRIBUTION:
        return _distribution(study)
    if kind is AnswerKind.MEANS:
        return _means(study, dataset)
    if kind is AnswerKind.NUMBER:
        return _number(study)
    return _items(study, dataset)


def compare_study(study: PlayedStudy, items: Sequence[str] = ()) -> Comparison:
    """Return the items that a study found, compared with the truth.

    A report has no second message that could fetch the string of a hashed key. So the key of one of
    `items` stands for this item there.
    """
    estimates, domain = study.final.heavy_hitters, study.question.domain
    if isinstance(study.mechanism, ReportMechanism):
        item_of = {domain.name(item): item for item in items if item in domain}
        estimates = tuple(replace(e, item=item_of.get(e.item, e.item)) for e in estimates)
    threshold = study.question.threshold
    return compare_estimates(study.mechanism, estimates, study.truth, threshold, domain)


def _items(study: PlayedStudy, dataset: Dataset) -> AnswerParts:
    comparison, quality = compare_study(study, dataset.items), study.final.quality
    by_rank = scores_at_ranks(comparison, study.truth)
    is_empty = not comparison.missed and not comparison.found_items
    scored = asdict(comparison.score)
    document = {
        **(dict.fromkeys(scored) if is_empty else scored),
        "expected_precision": quality and quality.expected_precision,
        "expected_recall": quality and quality.expected_recall,
        "recall_at": {str(rank): recall for rank, (recall, _) in by_rank.items()},
        "f1_at": {str(rank): f1 for rank, (_, f1) in by_rank.items()},
        "interval_coverage": comparison.interval_coverage,
        "threshold": study.question.threshold,
        "found": len(comparison.found_items),
        "heavy_hitters": [asdict(hitter) for hitter in comparison.found_items],
        "missed": comparison.missed,
    }
    meaning = ", which no item has: precision and recall have no meaning" if is_empty else ""
    facts = {
        "heavy": _shown_share(comparison.found_items),
        "missed": f"{len(comparison.missed):,} with a true count of at least "
        f"{study.question.threshold:,.6g}{meaning}{_first_missed(comparison.missed)}",
    }
    at_ranks = {
        f"the top {rank:,}": f"recall {recall:.3f}, F1 {f1:.3f}"
        for rank, (recall, f1) in by_rank.items()
        if rank <= len(comparison.found_items)
    }
    scores = {} if is_empty else at_ranks | _expectation(quality) | comparison.score.facts()
    if scores and not comparison.found_items:
        scores["precision"] = "n/a (nothing was found)"
    if scores and not comparison.missed and document["precision"] == 0:
        scores["recall"] = "n/a (nothing was heavy)"
    tables = [*_item_table(comparison.found_items), *_notes(study, comparison)]
    return AnswerParts(document, tables, facts, comparison.interval_facts() | scores)


def _number(study: PlayedStudy) -> AnswerParts:
    """Return the estimate with the true count of its item, without items to find or to miss."""
    comparison = compare_study(study)
    document = {
        "interval_coverage": comparison.interval_coverage,
        "heavy_hitters": [asdict(hitter) for hitter in comparison.found_items],
    }
    tables = _item_table(comparison.found_items, "Answer")
    if not comparison.found_items:
        tables += _notes(study, comparison)
    return AnswerParts(document, tables, comparison.interval_facts())


def _item_table(hitters: Sequence[FoundItem], title: str = "Heavy hitters") -> list[Printable]:
    """Return the first found items as a table, each item as Python writes it."""
    rows = [
        (
            repr(hitter.item),
            f"{hitter.estimate:,.0f}",
            f"{hitter.standard_error:,.0f}",
            f"{hitter.true_count:,}",
        )
        for hitter in hitters[:_MAX_SHOWN_ITEMS]
    ]
    table = result_table(["item"], ["estimate", "± s.e.", "true"], rows, title)
    return [table] if rows else []


def _notes(study: PlayedStudy, comparison: Comparison) -> list[str]:
    """Return the reason for an empty list, by the true counts, or the items it may miss."""
    if comparison.found_items:
        return limits_of_list(study.plan, study.counted)
    largest = max(study.truth.values(), default=0)
    return [why_nothing_is_listed(study.plan, study.counted, is_over=True, largest=largest)]


def _shown_share(hitters: Sequence[FoundItem]) -> str:
    if not hitters:
        return "none found"
    hidden = len(hitters) - _MAX_SHOWN_ITEMS
    return f"{_MAX_SHOWN_ITEMS} shown, {hidden:,} more found" if hidden > 0 else "all shown"


def _first_missed(missed: Mapping[str, int]) -> str:
    first = ", ".join(f"{item!r} {count:,}" for item, count in [*missed.items()][:3])
    return f": {first}" if first else ""


def _expectation(quality: ListQuality | None) -> dict[str, str]:
    """Return the line that compares with precision and recall, if the mechanism expects them."""
    if quality is None or quality.expected_precision is None or quality.expected_recall is None:
        return {}
    precision, recall = quality.expected_precision, quality.expected_recall
    return {"expected": f"precision {precision:.4f}, recall {recall:.4f}, by the model of counts"}


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Ranks and quantiles of a study, against the true counts of the cells that devices report."""

    study: PlayedStudy

    @property
    def domain(self) -> NumericInterval:
        domain = self.study.question.domain
        assert isinstance(domain, NumericInterval)  # as answers of this kind have
        return domain

    @property
    def distribution(self) -> Distribution:
        return self.study.mechanism.distribution(self.study.plan, self.study.state)

    @property
    def cell_counts(self) -> Integers:
        items, counts = zip(*self.study.truth.items(), strict=True)
        cells = self.domain.cells_of(np.array([float(item) for item in items]))
        return np.bincount(cells, counts, self.domain.cells).astype(np.int64)

    @property
    def ends(self) -> Floats:
        """Return the true rank of the end of each cell, after that of the first one's start."""
        sums = np.concatenate(([0], np.cumsum(self.cell_counts)))
        return np.asarray(sums / sums[-1], np.float64)

    def true_quantiles(self, ranks: Floats) -> Floats:
        """Return the middle of the cell that contains each rank."""
        cells = np.searchsorted(self.ends[1:], ranks, side="left")
        return self.domain.values_at((cells + 0.5) / self.domain.cells)

    def rank_errors(self) -> Floats:
        """Return the errors of the ranks of 999 quantiles; any rank within a cell is correct."""
        ends, values = self.ends, self.true_quantiles(_EVALUATED_RANKS)
        cells, ranks = self.domain.cells_of(values), self.distribution.rank(values).values
        errors = np.maximum(ends[cells] - ranks, ranks - ends[cells + 1])
        return np.asarray(np.maximum(errors, 0.0), np.float64)


def _distribution(study: PlayedStudy) -> AnswerParts:
    compared = RankComparison(study)
    answer = compared.distribution.quantile(_SHOWN_RANKS)
    true = compared.true_quantiles(_SHOWN_RANKS)
    columns = (each.tolist() for each in (_SHOWN_RANKS, answer.values, answer.low, answer.high))
    rows = [
        {"rank": rank, "value": value, "low": low, "high": high, "true": exact}
        for rank, value, low, high, exact in zip(*columns, true.tolist(), strict=True)
    ]
    errors = compared.rank_errors()
    document = {
        "quantiles": rows,
        "rank_error_max": float(errors.max()),
        "rank_error_mean": float(errors.mean()),
    }
    cells = [[f"{row['rank']:g}", *(f"{row[n]:.6g}" for n in [*row][1:])] for row in rows]
    headings = ["rank", "value", "95% from", "to", "true"]
    table = result_table([], headings, cells, f"Quantiles by {study.plan.mechanism}")
    facts = {"errors of ranks": f"{errors.max():.2g} at most, {errors.mean():.2g} on average"}
    return AnswerParts(document, [table], facts)


def _means(study: PlayedStudy, dataset: Dataset) -> AnswerParts:
    rows, results = (
        list[dict[str, Any]](),
        study.mechanism.number_summaries(study.plan, study.state).results,
    )
    truth = _true_moments(study, dataset, {each.segment for each in results})
    for summary in results:
        mean, deviation = truth[summary.segment]
        rows.append(summary.model_dump() | {"true_mean": mean, "true_deviation": deviation})
    names = "mean", "mean_low", "mean_high", "true_mean", "standard_deviation", "true_deviation"
    cells = [
        [segment_label(row["segment"], len(rows) > 1), f"{row['devices']:,}"]
        + ["" if row[name] is None else f"{row[name]:.6g}" for name in names]
        for row in rows
    ]
    headings = ["devices", "mean", "95% from", "to", "true", "s.d.", "true"]
    table = result_table(["segment"], headings, cells, f"Means by {study.plan.mechanism}")
    facts = {"rounding": f"{rows[0]['rounding']:.3g} per device, at most"}
    if len(rows) > 1:
        facts["all shown"] = SEGMENTS_NOTE
    return AnswerParts({"numbers": rows}, [table], facts)


def _true_moments(
    study: PlayedStudy, dataset: Dataset, shown: Collection[str | None]
) -> dict[str | None, tuple[float, float]]:
    """Return mean and standard deviation of the numbers of `shown` segments, together and each."""
    totals = _item_totals(dataset)
    inside = [item for item in totals if study.question.canonical(item) is not None]
    if len(shown) > 1:
        inside = [item for item in inside if item.rpartition(SEGMENT_SEPARATOR)[0] in shown]
    pairs = [item.rpartition(SEGMENT_SEPARATOR) for item in inside]
    values = np.array([float(number) for _, _, number in pairs])
    counts = np.array([totals[item] for item in inside])
    moments: dict[str | None, tuple[float, float]] = {None: _moments(values, counts)}
    for segment in {segment for segment, _, _ in pairs if segment}:
        rows = np.array([segment == other for other, _, _ in pairs])
        moments[segment] = _moments(values[rows], counts[rows])
    return moments


def _item_totals(dataset: Dataset) -> Mapping[str, int]:
    if isinstance(dataset, ItemCounts):
        return dict(zip(dataset.items, dataset.counts.tolist(), strict=True))
    return dataset.item_totals()


def _moments(values: Floats, counts: Integers) -> tuple[float, float]:
    mean = float(np.average(values, weights=counts))
    return mean, float(np.average((values - mean) ** 2, weights=counts) ** 0.5)
