"""The path of one item in CONTRIBUTING.md is walked: each function runs, in few modules."""

import re
import sys
from collections import Counter
from pathlib import Path
from random import Random
from types import CodeType, FrameType

import numpy as np

from protocol.domains.strings import Alphabet
from protocol.mechanisms.tracked.mechanism import Tracked
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from protocol.simulation.study import run_study
from tools import budget

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| `([a-z_/]+\.pyx?)` \| `([A-Za-z_.]+)` \|", re.MULTILINE)
COMPILED = {"protocol/sketches/iblt/peeling_kernel.pyx"}  # no Python runs in it


def functions_of_a_study() -> set[tuple[str, str]]:
    """Play a secure study of 3 rounds of 16 devices; return the functions that ran."""
    domain = Alphabet(characters="abcdefghij", length=2)
    items = [a + b for a in domain.characters for b in domain.characters]
    shares = 1 / np.arange(1, len(items) + 1)
    drawn = np.random.default_rng(1).choice(len(items), (3, 16), p=shares / shares.sum())
    rounds = [[[{items[item]: 1} for item in of_round]] for of_round in drawn]
    question = TrackedQuestion(threshold=3, contribution=1, domain=domain, message_bytes=2324)
    terms = Terms(cohort_size=16, minimum=8)
    ran = set[CodeType]()

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        ran.add(frame.f_code)

    sys.setprofile(note)
    try:
        study = run_study(Tracked(), question, terms, rounds, Random(1), planned=3, secure=True)
        (*_, last) = study
        listed = Tracked().final_estimates(question, last.study_state)
    finally:
        sys.setprofile(None)
    assert listed[0].item == "aa"
    return {(code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname) for code in ran}


def test_the_path_of_one_item_is_as_contributors_read_it() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    path = ROW.findall(page)
    assert len(path) > 30
    ran = functions_of_a_study()
    assert [row for row in path if row not in ran and row[0] not in COMPILED] == []
    visits = Counter(module for module, _ in path)
    assert len(visits) < 35
    assert max(visits.values()) <= 3


def test_a_round_over_http_enters_all_its_parts_also_in_threads() -> None:
    """Otherwise the figure of the budget, the number of these modules, would be too small."""
    modules = budget.modules_of_a_round()
    assert len(modules) == len(set(modules))
    assert {
        "client/device/participation.py",
        "protocol/sketches/iblt/decoding.py",
        "secagg/participant.py",
        "server/api/devices/uploads.py",
        "server/db/repositories/arrivals.py",
        "server/rounds/cohort_sums.py",
    } <= set(modules)
