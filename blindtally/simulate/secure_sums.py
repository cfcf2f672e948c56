"""Simulation of a study of secure sums over a data file, compared with the true counts."""

from collections.abc import Sequence
from random import Random
from typing import Any

from blindtally.console.progress import with_progress
from blindtally.console.tables import fact_table
from blindtally.datasets.reader import read_dataset
from blindtally.simulate.domain_choice import choose_domain
from blindtally.simulate.options import SimulationRequest
from blindtally.simulate.result import SimulationResult, heavy_hitter_table, shown_share
from blindtally.simulate.round_schedule import RoundSchedule
from blindtally.simulate.rounds import study_terms
from blindtally.simulate.scores import Comparison, StudyScore, score_study
from blindtally.workers import open_round_executor
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.estimation.estimates import ListQuality
from protocol.mechanisms.quality_goal import goal_fault, parse_goal
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyQuestion, parse_question
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study

_DEFAULT_WORDS = 2000
_PARAMETERS = (  # fields of the request in the JSON document
    *("mechanism", "column", "rounds", "threshold", "words", "contribution", "alphabet", "length"),
    *("confidence", "drift", "devices_by_round", "stop_at"),
    *("secagg", "sum_kind", "corrupt", "dropout", "mode", "settings", "seed"),
)


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run the study and score it.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    whole = read_dataset(request.data, request.column)
    schedule = RoundSchedule.of(request, whole)
    terms = study_terms(request, max(schedule.sizes))
    domain = choose_domain(
        request.domain,
        whole.items,
        mechanism=request.mechanism,
        max_tokens=terms.max_devices * request.contribution,
        words=request.words or _DEFAULT_WORDS,
        rounds=request.rounds,
        alphabet=request.alphabet,
        length=request.length,
    )
    dataset = whole.filter_items(domain.__contains__)
    if not dataset.items:
        raise ValueError(f"{request.data}: none of its items is in the domain {domain!r}")
    fields: dict[str, Any] = {
        "mechanism": request.mechanism,
        "threshold": request.sum_threshold,
        "contribution": request.contribution,
        "confidence": request.confidence,
        "domain": domain,
        "words": request.words or _DEFAULT_WORDS,
    }
    question = parse_question(request.settings | fields)
    stop_at = parse_goal(request.stop_at)
    if stop_at is not None and (fault := goal_fault(question)):
        raise ValueError(fault)
    # Fails now, and not in the middle of a study, if no plan exists.
    mechanism = SUM_MECHANISMS[request.mechanism]
    mechanism.first_plan(question, terms, "simulation", request.rounds, Random(request.seed))
    with open_round_executor(request.workers, request.dask) as executor:
        rounds = schedule.rounds(dataset, question.contribution, request.seed)
        outcomes = run_study(
            mechanism,
            question,
            terms,
            rounds,
            Random(request.seed),
            planned=request.rounds,
            stop_at=stop_at,
            dropout=request.dropout,
            secure=request.secagg,
            executor=executor,
        )
        shown = with_progress(outcomes, "rounds", request.rounds)
        score = score_study(shown, question, stop_at)
    excluded = len(set(whole.items)) - len(set(dataset.items))
    return _result(request, question, terms, schedule, excluded, score)


def _result(
    request: SimulationRequest,
    question: AnyQuestion,
    terms: Terms,
    schedule: RoundSchedule,
    excluded: int,
    score: StudyScore,
) -> SimulationResult:
    parameters = {name: getattr(request, name) for name in _PARAMETERS} | {
        "data": str(request.data),
        "threshold": request.sum_threshold,
        "words": request.words or _DEFAULT_WORDS,
        "devices": max(schedule.sizes),
        "lost_rounds": sorted(schedule.lost),
        "domain": question.domain.model_dump(),
        "terms": terms.model_dump(mode="json"),
        "items_outside_domain": excluded,
    }
    comparison = score.comparison
    lost = f", {score.rounds_lost} lost" if score.rounds_lost else ""
    unread = "" if score.rounds_decoded else ": no table could be read; try more --words"
    done = f"{len(score.thresholds)} rounds of {request.rounds}" if score.is_partial else None
    facts = {
        **({"partial": f"stopped after {done}"} if done else {}),
        **({"goal": _goal_text(score, request.rounds)} if request.stop_at else {}),
        "heavy": shown_share(comparison.found_items),
        "missed": f"{len(comparison.missed):,} with a true count of at least "
        f"{question.threshold:g}" + _note_without_heavy_items(comparison),
        "rounds": f"{score.rounds_decoded} decoded of {request.rounds}{lost}{unread}",
        "devices": f"{score.devices:,} counted, {_shown_sizes(schedule.sizes)} selected per round",
        "words": f"{score.words:,} of 16 bits per device and round",
        "sampling thresholds": " ".join(f"{t:.3g}" for t in score.thresholds),
        "domain": f"{_describe_domain(question.domain)}, {excluded:,} items outside",
        **comparison.interval_facts(),
        **_expectation_facts(score.quality),
        **comparison.score.facts(),
    }
    return SimulationResult(
        score.as_json() | {"parameters": parameters},
        [heavy_hitter_table(comparison.found_items), fact_table(facts)],
        done,
    )


def _note_without_heavy_items(comparison: Comparison) -> str:
    is_empty = not comparison.missed and not comparison.found_items
    return ", which no item has: precision and recall have no meaning" if is_empty else ""


def _goal_text(score: StudyScore, rounds: int) -> str:
    if score.goal_round is None:
        return "not reached"
    return f"reached in round {score.goal_round} of at most {rounds}"


def _expectation_facts(quality: ListQuality | None) -> dict[str, str]:
    """Return the line that compares with precision and recall, if the mechanism expects them."""
    if quality is None:
        return {}
    precision, recall = quality.expected_precision, quality.expected_recall
    return {"expected": f"precision {precision:.4f}, recall {recall:.4f}, by the model of counts"}


def _shown_sizes(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _describe_domain(domain: Domain) -> str:
    if isinstance(domain, Hashed):
        return f"hashed: keys of {domain.key_bits} bits, and strings are fetched"
    return f"{domain.kind}: keys of {domain.key_bit_count} bits"
