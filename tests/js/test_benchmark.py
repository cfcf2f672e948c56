"""The benchmark of JavaScript runs, and its messages have the sizes that Python expects."""

from benchmarks.javascript import MESSAGES, given_messages
from protocol.device_policy.sizes_and_losses import upload_bytes
from protocol.mechanisms.registry import parse_plan
from tests.js.node import run_node


def test_the_messages_of_the_benchmark_have_the_expected_sizes() -> None:
    given = given_messages(runs=1)
    made = {name: each["bytes"] for name, each in run_node(MESSAGES, given).items()}
    assert made.pop("plan") == upload_bytes(parse_plan(given["plan"]))
    assert made == {"490": 1_532, "1000": 2_900, "drawn": 3_852}
