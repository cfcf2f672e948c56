"""Bytes of a vector with the prime lanes of a one-shot sum, for every mechanism of sums.

Sizes of tables are those of a pairwise sum, whose lanes are modulo 2^b.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from protocol.committee_terms import AnyCommitteeTerms, CommitteeTerms, VolunteerTerms
from protocol.mechanisms.registry import SUM_MECHANISMS, AnyPlan, parse_question
from protocol.question_and_plan import Terms
from protocol.round_sizes import message_bytes_of
from protocol.simulation.study import run_study
from secagg.keys import Identity

ROUNDS, CONTRIBUTION, VOCABULARY = 6, 3, 5_000
KEYS = tuple(Identity.of(bytes([number]) * 32).public.hex() for number in range(7))
COMMITTEES: Mapping[str, AnyCommitteeTerms] = {
    "7 operators": CommitteeTerms(members=KEYS),
    "30 of 60 volunteers": VolunteerTerms(volunteers=60, size=30),
    "100 of 200 volunteers": VolunteerTerms(volunteers=200, size=100, dropout=0.2),
    "300 of 1,000 volunteers": VolunteerTerms(volunteers=1_000, size=300),
}
WORDS = {"kind": "alphabet", "characters": "w0123456789", "length": 5}
LETTERS = {"kind": "alphabet", "characters": "abcdefgh", "length": 3, "pad": "a"}
NUMBERS = {"kind": "interval", "low": 0, "high": 100, "alpha": 10, "length": 3}
TRACKED = {"mechanism": "tracked", "domain": WORDS}
CASES: Mapping[str, tuple[int, dict[str, Any]]] = {  # devices of a round, and fields
    "tracked, 60 devices": (60, TRACKED | {"vector": 734}),
    "tracked, 1,000 devices": (1_000, TRACKED | {"vector": 734}),
    "tracked, 1,000 devices, 1,000 words": (1_000, TRACKED | {"vector": 2_000}),
    "tracked, 10,000 devices": (10_000, TRACKED | {"vector": 10_000}),
    "adaptive-iblt": (1_000, {"mechanism": "adaptive-iblt", "domain": WORDS}),
    "subsampled-iblt": (1_000, {"mechanism": "subsampled-iblt", "domain": WORDS}),
    "approximate-histogram": (1_000, {"mechanism": "approximate-histogram", "domain": WORDS}),
    "count-median": (1_000, {"mechanism": "count-median", "domain": LETTERS}),
    "count-sketch": (1_000, {"mechanism": "count-sketch", "domain": LETTERS}),
    "triehh, noise": (1_000, {"mechanism": "triehh", "domain": LETTERS, "mode": "noise"}),
    "triehh, vote table": (
        1_000,
        {"mechanism": "triehh", "domain": LETTERS, "stride": 3, "vote_tables": True},
    ),
    "hierarchical-histogram": (1_000, {"mechanism": "hierarchical-histogram", "domain": NUMBERS}),
    "number-sums": (1_000, {"mechanism": "number-sums", "domain": NUMBERS}),
}


def terms_of(devices: int, committee: str | None) -> Terms:
    """Return terms of one sum of `devices`, pairwise or with one of `COMMITTEES`."""
    sizes = {"cohort_size": devices, "minimum": devices // 2}
    if committee is None:
        return Terms(**sizes)
    members = COMMITTEES[committee]
    registrar = KEYS[0] if isinstance(members, VolunteerTerms) else None
    return Terms(**sizes, sum="one-shot", committee=members, registrar=registrar)


def plans_of(case: str, committee: str | None) -> list[Any]:
    """Return the plans of a case: the first, and for `tracked` those of all rounds."""
    devices, own = CASES[case]
    terms, mechanism = terms_of(devices, committee), SUM_MECHANISMS[own["mechanism"]]
    question = parse_question(_fields(own, terms))
    if own["mechanism"] != "tracked":
        return [mechanism.first_plan(question, terms, "lanes", ROUNDS, Random(1))]
    rng = np.random.default_rng(1)
    rounds = [[_histograms(devices, rng)] for _ in range(ROUNDS)]
    outcomes = run_study(mechanism, question, terms, rounds, Random(1), planned=ROUNDS)
    return [outcome.plan for outcome in outcomes]


def _fields(own: dict[str, Any], terms: Terms) -> dict[str, Any]:
    tokens = terms.cohort_size * CONTRIBUTION * ROUNDS
    size, own = message_bytes_of(terms, own.get("vector", 4_000)), own | {}
    own.pop("vector", None)
    shared: dict[str, Any] = {"threshold": max(10, tokens // 300), "message_bytes": size}
    if own["mechanism"] in ("triehh", "hierarchical-histogram"):
        return shared | {"contribution": 1, "epsilon": 4, "delta": 1e-6} | own
    return shared | {"contribution": 1 if own["domain"] is NUMBERS else CONTRIBUTION} | own


def _histograms(devices: int, rng: np.random.Generator) -> list[dict[str, int]]:
    """Return the items of devices: words whose frequencies fall as 1 / rank."""
    weights = 1 / np.arange(1, VOCABULARY + 1)
    drawn = rng.choice(VOCABULARY, (devices, CONTRIBUTION), p=weights / weights.sum())
    rows = (np.unique(row, return_counts=True) for row in drawn)
    return [
        {f"w{word:04}": count for word, count in zip(*map(np.ndarray.tolist, row), strict=True)}
        for row in rows
    ]


def largest_ratio(plans: Sequence[AnyPlan], committee: str) -> tuple[int, int]:
    """Return the bytes with prime lanes and modulo 2^b, of the plan with the largest ratio."""

    def sizes(plan: Any) -> tuple[int, int]:
        mechanism = SUM_MECHANISMS[plan.mechanism]
        terms = terms_of(plan.terms.cohort_size, committee)
        prime = plan.model_copy(update={"terms": terms})
        return mechanism.vector_bytes(prime), mechanism.vector_bytes(plan)

    return max(map(sizes, plans), key=lambda pair: pair[0] / pair[1])
