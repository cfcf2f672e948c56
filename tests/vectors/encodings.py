"""Vectors of devices by each mechanism, and plans that a policy refuses, as `protocol` has them."""

import json
from random import Random
from typing import Any

from protocol.mechanisms.registry import SUM_MECHANISMS
from tests.js.random_plans import MECHANISMS, answer, random_case
from tests.protocol.mechanism_examples import ONE_SHOT_EXAMPLES

_UNANSWERED = {  # examples that a device in JavaScript does not answer, by the limit it names
    "adaptive-iblt, text": "mechanism",
    "subsampled-iblt, sampled": "mechanism",
    "approximate-histogram, practical": "mechanism",
    "triehh, in a table": "mechanism",
    "triehh, in noise": "epsilon",
    "hierarchical-histogram, both": "epsilon",
    "count-median": "mechanism",
    "number-sums": "domain",
}


def encodings() -> dict[str, Any]:
    """Return vectors of plans, plans that policies refuse, and plans that JavaScript refuses."""
    rng = Random("encodings")
    refused = dict[str, Any]()
    for _ in range(300):
        case = random_case(rng)
        if limit := answer(case)["refusal"]:
            shown = {name: case[name] for name in ("plan", "policy")}
            refused.setdefault(limit, {"comment": f"by {limit}", "limit": limit} | shown)
    return {
        "encodings": [each for name in dict.fromkeys(MECHANISMS) for each in _cases(name)],
        "plans_to_refuse": [refused[limit] for limit in sorted(refused)],
        "plans_to_refuse_in_javascript": [
            {"comment": name, "plan": _example(name), "limit": limit}
            for name, limit in _UNANSWERED.items()
        ],
    }


def _cases(mechanism: str) -> list[dict[str, Any]]:
    """Return the two shortest vectors of some random plans, of devices with several items."""
    rng = Random(mechanism)
    drawn = (random_case(rng, mechanism) for _ in range(12))
    cases = [case | {"answer": answer(case)} for case in drawn if len(case["items"]) > 2]
    return sorted(cases, key=lambda case: int(case["answer"]["length"]))[:2]


def _example(name: str) -> Any:
    example = ONE_SHOT_EXAMPLES[f"{name}, in a one-shot sum"]
    assert example.question.mechanism in SUM_MECHANISMS
    return json.loads(example.plan().canonical_text())
