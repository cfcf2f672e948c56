"""A device or an analyst imports and runs without the dependencies of servers and simulations."""

import json
import subprocess
import sys
from typing import Any

from client.extras_installation import COMPILED_MODULES
from tests.protocol import mechanism_examples, test_report_laws

# Of the extras `server` and `simulate`, and of those who have a C compiler.
MODULES_OF_EXTRAS = {
    *("scipy", "dp_accounting", "absl"),
    *("sqlalchemy", "alembic", "fastapi", "uvicorn", "structlog", "prometheus_client"),
    *("cachetools", "limits", "jinja2", "opentelemetry", "typer", "pydantic_settings"),
    *COMPILED_MODULES,
}
CLIENT = "from blindtally import Analyst, take_part\nAnalyst('http://127.0.0.1:1')"
# Checks each plan, encodes one item, and prints what a device sends.
DEVICE = f"""
import json, sys
{CLIENT}
import numpy as np
from client.device.encoding import Contribution, encode
from protocol.device_policy.policy import Policy
from protocol.device_policy.plan_check import plan_violations
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_plan
from protocol.randomness import seeded_words

for document, held in json.load(sys.stdin):
    plan, chance = parse_plan(document), seeded_words(np.random.default_rng(3))
    print(*plan_violations(Policy(), plan, plan.study, plan.round))
    if plan.mechanism in REPORT_MECHANISMS:
        sent = REPORT_MECHANISMS[plan.mechanism].encode(plan, [held], chance)
    else:
        sent = encode(plan, Contribution(held), plan.terms.cohort_size, chance)
    print(json.dumps([part.tolist() for part in sent]))
"""
BLOCKED_IMPORTS = (
    f"import sys\nsys.modules |= dict.fromkeys({MODULES_OF_EXTRAS})"  # an import of them fails
)


def run(code: str, **options: Any) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True, **options
    ).stdout


def test_the_client_imports_no_module_of_an_extra() -> None:
    check = f"import sys\n{CLIENT}\nprint(*(sys.modules.keys() & {MODULES_OF_EXTRAS}))"
    assert run(check).split() == []


def test_a_device_without_extras_sends_what_a_device_with_all_of_them_sends() -> None:
    of_mechanisms = {each.question.mechanism: each for each in mechanism_examples.EXAMPLES.values()}
    cases: list[tuple[Any, dict[str, int]]] = [
        (example.plan().model_dump(mode="json"), example.held({"ab": 1}))
        for example in of_mechanisms.values()
    ]
    cases += [
        (example.plan().model_dump(mode="json"), {"07": 1})
        for example in test_report_laws.EXAMPLES.values()
    ]
    document = json.dumps(cases)
    sent = run(BLOCKED_IMPORTS + DEVICE, input=document)
    assert len(sent.splitlines()) == 2 * len(cases)
    assert sent == run(DEVICE, input=document)
