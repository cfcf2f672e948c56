"""Forecast of a study of secure sums: its accuracy and sizes, by simulation.

The simulation assumes a population: shares that fall as rank^-s (Zipf), or the shares of a file.
Exponents s of 0.7 and 1.3 bracket most texts.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from blindtally.planning.words_needed import (
    GOALS,
    TRACKED,
    StudyCase,
    StudySetting,
    draw_study,
    f1_over_sizes,
)
from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.token_study import TokenStudy, TooFewWordsError, run_tokens
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet, Domain

DEFAULT_ITEMS: Final = 100_000
MAX_SIZES: Final = TRACKED.max_sizes
DEVICE_RANGE: Final = range(10, 10**6 + 1)  # devices of a study that is simulated
ROUND_RANGE: Final = range(1, 1000 + 1)
_ADAPTIVE_IBLT: Final = "adaptive-iblt"


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over the runs of one mechanism: F1 with its standard deviation, and decoded rounds.

    The bytes are of a device in the largest round: the vector it sends, and the plan it receives.
    """

    mechanism: str
    f1: float
    f1_deviation: float
    rounds_decoded: float
    upload_bytes: int
    download_bytes: int


@dataclass(frozen=True, slots=True)
class StudyForecast:
    """One prediction per mechanism, and the words with which `tracked` reaches each F1.

    The words are None for a goal that needs more than 200,000.
    """

    predictions: list[Prediction]
    words_by_goal: dict[float, float | None]


def forecast_study(
    case: StudyCase,
    setting: StudySetting,
    seeds: Sequence[tuple[int, int]],
    step: Callable[[int], None] = lambda _: None,
) -> StudyForecast:
    """Simulate one study per seed and mechanism, and search for the words of each F1.

    `step` receives the number of sizes done, `MAX_SIZES` in total.

    Raises:
        ValueError: if the words are too few for any mechanism.
    """
    predictions = predict_mechanisms(case, setting, seeds)
    if not predictions:
        raise ValueError(f"{setting.words} words are too few for any mechanism: allow more")
    curve = f1_over_sizes(case, TRACKED, setting, seeds, step)
    return StudyForecast(predictions, {goal: curve.x_reaching(goal) for goal in GOALS})


def predict_mechanisms(
    case: StudyCase, setting: StudySetting, seeds: Iterable[tuple[int, int]]
) -> list[Prediction]:
    """Return a prediction for each mechanism for which `setting.words` suffice."""
    names = [TRACKED.name]
    if case.contribution == 1 and not isinstance(case.known.domain, Hashed):
        names.append(_ADAPTIVE_IBLT)
    runs: dict[str, list[tuple[float, TokenStudy]]] = {}
    for seed in seeds:
        study = draw_study(case, setting, seed)
        for name in names:
            rng = np.random.default_rng([*seed, 1])
            try:
                run = run_tokens(name, study.tokens, setting.words, setting.tau, rng)
            except TooFewWordsError:
                continue
            runs.setdefault(name, []).append((study.f1_of(run.found_items), run))
    return [
        Prediction(
            mechanism=name,
            f1=float(np.mean([score for score, _ in scored])),
            f1_deviation=float(np.std([score for score, _ in scored])),
            rounds_decoded=float(np.mean([run.rounds_decoded for _, run in scored])),
            upload_bytes=max(run.vector_bytes for _, run in scored),
            download_bytes=max(run.plan_bytes for _, run in scored),
        )
        for name, scored in runs.items()
    ]


def zipf_population(domain: Domain, items: int, zipf: float) -> ItemPopulation:
    """Return a population of invented items whose shares fall as rank^-zipf.

    Raises:
        ValueError: if the domain has fewer than `items` of them.
    """
    shares = np.arange(1, items + 1) ** -zipf
    if not isinstance(domain, Alphabet):
        names = tuple(f"item {number}" for number in range(items))
        if names[-1] not in domain:
            raise ValueError(f"{domain} does not have {items:,} items: allow longer ones")
        return ItemPopulation(names, shares / shares.sum(), domain)
    characters, length = domain.characters, domain.length
    if len(characters) ** length < items:
        raise ValueError(
            f"{len(characters)} characters make {len(characters) ** length:,} strings of "
            f"{length}: assume fewer --items"
        )
    grid = np.stack([np.arange(items) // len(characters) ** place for place in range(length)])
    codes = (grid % len(characters)).T.tolist()
    names = tuple("".join(characters[code] for code in row) for row in codes)
    return ItemPopulation(names, shares / shares.sum(), domain)
