"""Vectors of devices by each mechanism, and plans that a policy refuses, as `protocol` has them."""

import json
import re
from random import Random
from typing import Any

from protocol.mechanisms.registry import SUM_MECHANISMS
from tests.js.random_plans import MECHANISMS, answer, changes, random_case, refusal_of
from tests.protocol.mechanism_examples import ONE_SHOT_EXAMPLES

_OF_ONE_FIELD = "$|Input|Unable|Field|Extra|String|Tuple|the plan's text"
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
        "impossible_plans": _impossible_plans(),
        "encodings": [each for name in dict.fromkeys(MECHANISMS) for each in _cases(name)],
        "plans_to_refuse": [refused[limit] for limit in sorted(refused)],
        "plans_to_refuse_in_javascript": [
            {"comment": name, "plan": _example(name), "limit": limit}
            for name, limit in _UNANSWERED.items()
        ],
    }


def _impossible_plans() -> list[dict[str, str]]:
    """Return a changed plan for each reason, apart from its numbers, why Python refuses some."""
    by_reason, rng = dict[str, dict[str, str]](), Random("impossible plans 9")
    for name in MECHANISMS:
        drawn = (random_case(rng, name)["plan"] for _ in range(3))
        texts = sorted({each for plan in drawn for each in changes(plan)})
        for text in sorted(texts, key=len):
            reason = refusal_of(text) or ""
            if not re.match(_OF_ONE_FIELD, reason):
                key = re.sub(r"[\d.,+-]+", "", reason)
                by_reason.setdefault(key, {"comment": reason, "text": text})
    return [*by_reason.values()]


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
