"""Devices encode without the compiler that decoding takes."""

import subprocess
import sys

ENCODE = """
import sys
from random import Random
import numpy as np
import client.device.participation
from protocol.randomness import seeded_words
from protocol.domains.strings import Utf8
from protocol.study import Terms
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion

question = AdaptiveIbltQuestion(threshold=5, contribution=2, domain=Utf8(max_bytes=5), words=900)
terms, mechanism = Terms(cohort_size=10, minimum=5), AdaptiveIblt()
plan = mechanism.first_plan(question, terms, "study", 1, Random(1))
vector = mechanism.encode(plan, {"apple": 2}, seeded_words(np.random.default_rng(1)))
assert mechanism.fault(plan, vector, 1) is None
print(sorted({"numba", "llvmlite"} & set(sys.modules)))
"""


def test_who_encodes_does_not_import_numba() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENCODE], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
