"""Simulation of `triehh` over strings, whose counts are released with central privacy.

Devices are arrays: the digits of each item, and the item of each holding. They use the same coins
and vote by the same function as a single device (`encode_votes`). The noise is the sum of all noise
shares, cohort by cohort.
"""

import math
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindtally.console import tables
from blindtally.datasets.reader import MIN_ROUND_DEVICES, Dataset, read_dataset
from blindtally.simulate.options import SimulationRequest
from blindtally.simulate.result import (
    SimulationResult,
    epsilon_by_party,
    heavy_hitter_table,
    ledger_of,
    privacy_facts,
)
from blindtally.simulate.rounds import run_rounds, seats_for, terms_for
from blindtally.simulate.scores import Comparison, compare_estimates, vector_words
from protocol.domains.strings import Alphabet, Utf8
from protocol.histograms import Histograms, clip_histograms
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.trie_votes import encode_votes
from protocol.mechanisms.central.triehh import TrieHh
from protocol.numerics.arrays import Integers
from protocol.randomness import bernoulli, seeded_words
from secagg.ring import Vector

_DEFAULT_WORDS = 2**16
_MAX_COHORT_SIZE = 100_000  # the largest of Terms: with noise, each cohort adds all of the noise
_RECALL_RANKS = (50, 100, 300, 1000)
_MAX_SYMBOLS = 256
_MECHANISM = TrieHh()


@dataclass(frozen=True, slots=True)
class _Holdings:
    """Items of devices: in row i, `device_of_holding[i]` holds `items[item_of_holding[i]]`."""

    items: tuple[str, ...]
    device_of_holding: Integers
    item_of_holding: Integers
    devices: int
    truncated_items: int  # items of the file that were cut to fit
    excluded_items: int  # items of the file that are outside the domain

    def truth(self) -> dict[str, int]:
        counts = np.bincount(self.item_of_holding, minlength=len(self.items)).tolist()
        return {item: count for item, count in zip(self.items, counts, strict=True) if count}


@dataclass(frozen=True, slots=True)
class _Study:
    """The last plan, the levels that were run, and the largest vector and number of participants.

    `cpu_seconds` are of all levels, from the first coin to the final estimates.
    """

    plan: TrieHhPlan
    comparison: Comparison
    levels: int
    words: int
    max_participants: int
    cpu_seconds: float


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run the study and compare it with the truth.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    dataset = read_dataset(request.data, request.column)
    question = _question_of(request, dataset)
    rng = np.random.default_rng(request.seed)
    holdings = _assign_holdings(dataset, question, request.devices, rng)
    truth = holdings.truth()
    study = _run(request, question, holdings, truth, rng)
    plan, hitters, release = study.plan, study.comparison.found_items, study.plan.release
    delta, event = request.central_delta, _MECHANISM.dp_event(plan, study.levels)
    epsilons = epsilon_by_party(event, delta)
    scores = {
        rank: _score_at_rank(study.comparison, truth, rank)
        for rank in _RECALL_RANKS
        if rank <= len(truth)
    }
    document = {
        "mechanism": "triehh",
        "mode": release.mode,
        "found": len(hitters),
        "recall_at": {str(rank): recall for rank, (recall, _) in scores.items()},
        "f1_at": {str(rank): f1 for rank, (_, f1) in scores.items()},
        "epsilon": epsilons["public"],
        "epsilon_by_party": epsilons,
        "epsilon_replace_one": ledger_of(event).epsilon(delta, "public", "replace-one"),
        "delta": delta,
        "theta": release.threshold,
        "m": round(release.probability * holdings.devices),
        "probability": release.probability,
        "invited": plan.join_probability,
        "max_participants": study.max_participants,
        "noise_variance": release.variance,
        "levels": study.levels,
        "devices": holdings.devices,
        "cpu_seconds": study.cpu_seconds,
        "words": study.words,
        "threshold": request.sum_threshold,
        **asdict(study.comparison.score),
        "interval_coverage": study.comparison.interval_coverage,
        "items_truncated": holdings.truncated_items,
        "items_outside_domain": holdings.excluded_items,
        "heavy_hitters": [asdict(hitter) for hitter in hitters],
        "question": plan.question.model_dump(mode="json"),
        "parameters": request.source(),
    }
    facts = {"found": f"{len(hitters):,} items in {study.levels} levels"}
    for rank, (recall, f1) in scores.items():
        facts[f"the top {rank:,}"] = f"recall {recall:.3f}, F1 {f1:.3f}"
    facts |= study.comparison.interval_facts()
    facts |= _release_facts(study, holdings) | privacy_facts(epsilons, delta)
    facts |= {
        "words": f"{study.words:,} of 16 bits per device and level, at most",
        "processor": f"{study.cpu_seconds:.3f} s for all levels",
        "domain": f"{holdings.truncated_items:,} items are longer than "
        f"{plan.question.digits.width} symbols and were cut, {holdings.excluded_items:,} are "
        "outside",
    }
    return SimulationResult(document, [heavy_hitter_table(hitters), tables.fact_table(facts)])


def _score_at_rank(comparison: Comparison, truth: dict[str, int], rank: int) -> tuple[float, float]:
    """Return the recall of the `rank` most frequent items, and F1 against the first found ones."""
    heavy = set(sorted(truth, key=lambda item: (-truth[item], item))[:rank])
    items = [hitter.item for hitter in comparison.found_items]
    recall = len(heavy & set(items)) / len(heavy)
    precision = len(heavy & set(items[:rank])) / len(items[:rank]) if items else 0.0
    total = recall + precision
    return recall, 2 * recall * precision / total if total else 0.0


def _release_facts(study: _Study, holdings: _Holdings) -> dict[str, str]:
    release, probability = study.plan.release, study.plan.join_probability
    facts: dict[str, str] = {
        release.mode: f"{release.probability:.2%} of {holdings.devices:,} devices vote in a level, "
        f"shown from {release.threshold:,} votes"
    }
    if probability < 1:
        facts["joined"] = (
            f"{study.max_participants:,} devices in a level at most, each with probability "
            f"{probability:.4g} by its own coin"
        )
    if release.variance:
        facts["noise"] = f"standard deviation {release.variance**0.5:.3g} per cohort"
    return facts


def _run(
    request: SimulationRequest,
    question: TrieHhQuestion,
    holdings: _Holdings,
    truth: dict[str, int],
    rng: np.random.Generator,
) -> _Study:
    terms = terms_for(
        max(3, seats_for(holdings.devices, question.join_probability)),
        _MAX_COHORT_SIZE,
        corrupt=request.corrupt,
        dropout=max(0.1, request.dropout + 0.1),
    )
    plan_rng, levels = Random(request.seed), request.release_levels
    first_plan = _MECHANISM.first_plan(question, terms, "simulation", levels, plan_rng)
    digits, started = question.digits_of(holdings.items), time.process_time()
    sizes: list[tuple[int, int]] = []

    def sum_round(plan: TrieHhPlan) -> tuple[Vector, int]:
        total, participants = _simulate_round(plan, digits, holdings, request.dropout, rng)
        sizes.append((vector_words(plan), participants))
        return total, participants

    plan, state = run_rounds(_MECHANISM, first_plan, levels, plan_rng, sum_round)
    estimates = _MECHANISM.final_estimates(question, state)
    seconds = time.process_time() - started
    comparison = compare_estimates(_MECHANISM, estimates, truth, request.sum_threshold)
    words, max_participants = map(max, zip(*sizes, strict=True))
    return _Study(plan, comparison, len(sizes), words, max_participants, seconds)


def _question_of(request: SimulationRequest, dataset: Dataset) -> TrieHhQuestion:
    """Return the question; items longer than the levels are cut, unless a setting forbids it."""
    stride = request.settings.get("stride", 1)
    length = request.release_levels * (stride if isinstance(stride, int) and stride > 0 else 1)
    fields: dict[str, Any] = {
        "threshold": request.sum_threshold,
        "confidence": request.confidence,
        "contribution": request.contribution,
        "domain": _domain_of(dataset.items, request.alphabet, length),
        "words": request.words or _DEFAULT_WORDS,
        "epsilon": request.epsilon,
        "delta": request.central_delta,
        "mode": request.release_mode,
        "join_probability": request.invited,
        "truncate": True,
    }
    return TrieHhQuestion.model_validate(fields | request.settings)


def _domain_of(items: tuple[str, ...], alphabet: str | None, length: int) -> Alphabet | Utf8:
    symbols = "".join(sorted(set(alphabet or "".join(items)) - {"\0"}))
    if not symbols or len(symbols) >= _MAX_SYMBOLS:
        return Utf8(max_bytes=length)
    return Alphabet(characters="\0" + symbols, length=length, pad="\0")


def _assign_holdings(
    dataset: Dataset, question: TrieHhQuestion, devices: int, rng: np.random.Generator
) -> _Holdings:
    """Return at most `devices` devices of the data, each with the items that it counts.

    Raises:
        ValueError: if no item is within the domain, or there are fewer than three devices.
    """
    canonical = {item: question.canonical(item) for item in dataset.items}
    admitted = {item: name for item, name in canonical.items() if name is not None}
    if not admitted:
        raise ValueError(f"none of the items is in the domain {question.domain!r}")
    devices = dataset.devices_per_round(1, devices)
    if devices < MIN_ROUND_DEVICES:
        raise ValueError(
            f"the data holds {devices} devices: at least {MIN_ROUND_DEVICES} are needed"
        )
    numbers: dict[str, int] = {}
    number_of = {item: numbers.setdefault(name, len(numbers)) for item, name in admitted.items()}
    within = dataset.filter_items(admitted.__contains__)
    drawn = Histograms.concatenated(next(within.rounds([devices], question.contribution, rng)))
    held = clip_histograms(drawn, question.contribution, rng)
    items = np.array([number_of[name] for name in held.items], np.int64)[held.item_indices]
    truncated = sum(item != name for item, name in admitted.items())
    excluded = len(canonical) - len(admitted)
    return _Holdings(tuple(numbers), held.devices, items, devices, truncated, excluded)


def _simulate_round(
    plan: TrieHhPlan,
    digits: NDArray[np.uint8],
    holdings: _Holdings,
    dropout: float,
    rng: np.random.Generator,
) -> tuple[Vector, int]:
    """Return the sum of one round over the devices that did not drop out, and their number."""
    words = seeded_words(rng)
    voters, items = holdings.device_of_holding, holdings.item_of_holding
    participants = holdings.devices
    takes_part = np.ones(holdings.devices, np.bool_)
    if dropout:
        takes_part &= rng.random(holdings.devices) >= dropout
    if plan.join_probability < 1:
        takes_part &= bernoulli(words, math.floor(plan.join_probability * 2**64), holdings.devices)
    if not takes_part.all():
        participants = int(takes_part.sum())
        voters, items = voters[takes_part[voters]], items[takes_part[voters]]
    total = encode_votes(plan, digits, items, words, voters)
    shares = _MECHANISM.noise_shares(plan, plan.terms.cohort_size)
    if shares is not None:
        total = plan.simulate_noise(total[0], float(shares.share * participants), rng)
    return total, participants
