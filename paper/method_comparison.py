"""F1 of `tracked` compared with the paper's adaptive tables, with the same number of words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from blindtally.planning.f1_curves import StudySetting
from blindtally.planning.word_budget import TRACKED, Method, StudyCase, draw_study, score_method
from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.token_rounds import KeyedPopulation
from paper.gascon23 import run_paper_adaptive

# Algorithm 4 at the paper's price.
PAPER: Final = Method("adaptive IBLT", 300, run_paper_adaptive)


@dataclass(frozen=True, slots=True)
class MethodComparison:
    """F1 of the paper's method and of `tracked`, with the same number of words."""

    setting: StudySetting
    paper_f1: float
    tracked_f1: float


def compare_methods(
    population: ItemPopulation, seed: Sequence[int], setting: StudySetting
) -> MethodComparison:
    """Return both methods' F1 in `setting`, of one run each."""
    case = StudyCase(KeyedPopulation.of(population, setting.tokens), "none", 1)
    study = draw_study(case, setting, seed)
    scores = [
        score_method(method, study, setting.words, setting.tau, np.random.default_rng(seed))
        for method in (PAPER, TRACKED)
    ]
    return MethodComparison(setting, *scores)
