"""Devices and those who keep a ledger load no decoders and accountants."""

import subprocess
import sys

import pytest

IBLT_ENCODING = """
from random import Random
import numpy as np
import client.device.participation
from protocol.randomness import seeded_words
from protocol.domains.strings import Utf8
from protocol.question_and_plan import Terms
from protocol.mechanisms.iblt.adaptive import AdaptiveIblt, AdaptiveIbltQuestion

domain = Utf8(max_bytes=5)
question = AdaptiveIbltQuestion(threshold=5, contribution=2, domain=domain, message_bytes=3194)
terms, mechanism = Terms(cohort_size=10, minimum=5), AdaptiveIblt()
plan = mechanism.first_plan(question, terms, "study", 1, Random(1))
mechanism.encode(plan, {"apple": 2}, seeded_words(np.random.default_rng(1)))
"""
ORACLE_REPORT = """
import numpy as np
from protocol.randomness import system_words
from protocol.oracles.registry import oracle_from_parameters

ocms = {"oracle": "ocms", "epsilon": 1.0, "domain": 50, "m": 3, "prime": 101}
oracle_from_parameters(ocms).perturb(np.array([3], np.uint64), system_words)
"""
NOISE_SHARE = """
from protocol.randomness import system_words
from protocol.privacy.noise_shares import NoiseShares

NoiseShares(180.0, 1000).draw(system_words, 100)
"""
KERNEL = "protocol.sketches.iblt.peeling_kernel"
ORACLE_KERNEL = "protocol.oracles.report_counting_kernel"
EMPTY_LEDGER = """
from protocol.privacy.parameters_for_budget import best_design
from protocol.privacy.ledger import Ledger

Ledger()
"""


@pytest.mark.parametrize(
    ("code", "left_out"),
    [
        (IBLT_ENCODING, {KERNEL}),
        (ORACLE_REPORT, {ORACLE_KERNEL, "scipy.fft", "scipy.stats"}),
        (NOISE_SHARE, {"dp_accounting", "absl", "scipy", KERNEL}),
        (EMPTY_LEDGER, {"dp_accounting", "absl", "scipy.stats"}),
    ],
    ids=["an encoded vector", "a report", "a noise share", "a ledger"],
)
def test_what_is_not_needed_is_not_imported(code: str, left_out: set[str]) -> None:
    check = f"import sys\n{code}\nassert not {left_out} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)
