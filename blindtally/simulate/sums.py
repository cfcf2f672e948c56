"""Simulation of a study of secure sums over a data file, compared with the true counts."""

from random import Random
from typing import Any

import numpy as np

from blindtally.console.progress import with_progress
from blindtally.console.tables import fact_table
from blindtally.datasets.reader import (
    MIN_ROUND_DEVICES,
    Dataset,
    read_dataset,
    too_few_devices_message,
)
from blindtally.parallel import open_round_executor
from blindtally.simulate.options import SimulationRequest
from blindtally.simulate.result import SimulationResult, heavy_hitter_table, shown_share
from blindtally.simulate.rounds import terms_for
from blindtally.simulate.scores import StudyScore, score_study
from protocol.domains.strings import Alphabet, Domain, Utf8, alphabet_of, smallest_domain
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyQuestion, parse_question
from protocol.simulation.chunks import CHUNK_DEVICES
from protocol.simulation.study import run_study
from protocol.study import Terms

_COHORT_SIZE = 1000  # devices of a secure sum; a larger one only costs its devices more
_MAX_COHORTS = 1000  # cohorts of a round; beyond a million devices cohorts are larger
_DEFAULT_WORDS = 2000
_PARAMETERS = (  # fields of the request in the JSON document
    *("mechanism", "column", "rounds", "threshold", "words", "contribution", "alphabet", "length"),
    *("secagg", "corrupt", "dropout", "mode", "settings", "seed"),
)


def simulate(request: SimulationRequest) -> SimulationResult:
    """Run the study and score it.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    whole = read_dataset(request.data, request.column)
    domain = _domain_of(whole, request.alphabet, request.length)
    dataset = whole.filter_items(domain.__contains__)
    clients = _clients_per_round(request, dataset, domain)
    fields: dict[str, Any] = {
        "mechanism": request.mechanism,
        "threshold": request.sum_threshold,
        "contribution": request.contribution,
        "domain": domain,
        "words": request.words or _DEFAULT_WORDS,
    }
    question = parse_question(request.settings | fields)
    if not 0 <= request.dropout < 1:
        raise ValueError(f"dropout is a fraction from 0 to below 1, got {request.dropout}")
    terms = terms_for(
        clients,
        _COHORT_SIZE,
        _MAX_COHORTS,
        corrupt=request.corrupt,
        dropout=max(0.2, request.dropout + 0.1),
        mode=request.mode,
    )
    # Fails now, and not in the middle of a study, if no plan exists.
    mechanism = SUM_MECHANISMS[request.mechanism]
    mechanism.first_plan(question, terms, "simulation", request.rounds, Random(request.seed))
    with open_round_executor(request.workers, request.dask) as executor:
        rng = np.random.default_rng([request.seed, 0])
        rounds = dataset.rounds(
            request.rounds, clients, question.contribution, rng, chunk_devices=CHUNK_DEVICES
        )
        outcomes = run_study(
            mechanism,
            question,
            terms,
            rounds,
            Random(request.seed),
            planned=request.rounds,
            dropout=request.dropout,
            secure=request.secagg,
            executor=executor,
        )
        score = score_study(with_progress(outcomes, "rounds", request.rounds), question)
    excluded = len(set(whole.items)) - len(set(dataset.items))
    return _result(request, question, terms, clients, excluded, score)


def _result(
    request: SimulationRequest,
    question: AnyQuestion,
    terms: Terms,
    clients: int,
    excluded: int,
    score: StudyScore,
) -> SimulationResult:
    parameters = {name: getattr(request, name) for name in _PARAMETERS} | {
        "data": str(request.data),
        "threshold": request.sum_threshold,
        "words": request.words or _DEFAULT_WORDS,
        "clients": clients,
        "domain": question.domain.model_dump(),
        "terms": terms.model_dump(mode="json"),
        "items_outside_domain": excluded,
    }
    comparison = score.comparison
    done = f"{len(score.thresholds)} rounds of {request.rounds}" if score.is_partial else None
    facts = {
        **({"partial": f"stopped after {done}"} if done else {}),
        "heavy": shown_share(comparison.found_items),
        "missed": f"{len(comparison.missed):,} with a true count of at least "
        f"{question.threshold:g}",
        "rounds": f"{score.rounds_decoded} decoded of {request.rounds}",
        "devices": f"{score.devices:,} counted, {clients:,} selected per round",
        "words": f"{score.words:,} of 16 bits per device and round",
        "thresholds": " ".join(f"{t:.3g}" for t in score.thresholds),
        "domain": f"{question.domain.kind}, {excluded:,} items outside",
        **comparison.score.facts(),
    }
    return SimulationResult(
        score.as_json() | {"parameters": parameters},
        [heavy_hitter_table(comparison.found_items), fact_table(facts)],
        done,
    )


def _domain_of(dataset: Dataset, alphabet: str | None, length: int | None) -> Alphabet | Utf8:
    if alphabet is None:
        return Utf8(max_bytes=length) if length else smallest_domain(dataset.items)
    return alphabet_of(alphabet, dataset.items, length)


def _clients_per_round(request: SimulationRequest, dataset: Dataset, domain: Domain) -> int:
    if not dataset.items:
        raise ValueError(f"{request.data}: none of its items is in the domain {domain!r}")
    clients = dataset.clients_per_round(request.rounds, request.clients)
    if clients < MIN_ROUND_DEVICES:
        devices = dataset.clients_per_round(1, MIN_ROUND_DEVICES * request.rounds)
        raise ValueError(too_few_devices_message(request.data, devices))
    return clients
