"""Forecast of a study of secure sums: its accuracy and sizes, by simulation.

The simulation has the items of a file, or an assumed population with shares that fall as rank^-s
(Zipf). F1 depends on the population, so that an assumed one is simulated together with others that
bracket reality (`bracketing_populations.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from blindtally.planning.bracketing_populations import NamedCase
from blindtally.planning.f1_by_words import (
    GOALS,
    TRACKED,
    StudyCase,
    StudySetting,
    draw_study,
    f1_over_sizes,
)
from blindtally.simulate.token_study import TokenStudy, TooFewWordsError, run_tokens
from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import SUM_MECHANISMS

DEVICE_RANGE: Final = range(10, 10**6 + 1)  # devices of a study that is simulated
ROUND_RANGE: Final = range(1, 1000 + 1)
_GRID_STEP: Final = 4  # steps of the grid of sizes before the search bisects
_Run: TypeAlias = dict[str, tuple[float, TokenStudy]]  # F1 and study by mechanism


@dataclass(frozen=True, slots=True)
class Prediction:
    """Means over the runs of one mechanism: F1 with its standard deviation, and decoded rounds.

    The bytes are of a device in the largest round: the vector it sends, and the plan it receives.
    `f1_low` and `f1_high` are the lowest and highest F1 over populations, each with its population;
    None for items of a file.
    """

    mechanism: str
    f1: float
    f1_deviation: float
    rounds_decoded: float
    upload_bytes: int
    download_bytes: int
    f1_low: float | None = None
    f1_low_population: str | None = None
    f1_high: float | None = None
    f1_high_population: str | None = None

    @property
    def described_range(self) -> str:
        """Return the range over populations, or an empty text if there is none."""
        if self.f1_low is None or self.f1_high is None:
            return ""
        return f"{self.f1_low:.2f} to {self.f1_high:.2f}"


class NoHeavyItemError(ValueError):
    """No item of a simulated study reaches the threshold."""


@dataclass(frozen=True, slots=True)
class StudyForecast:
    """One prediction per mechanism, and the words with which `tracked` reaches each F1.

    The words are None for a goal that needs more than 200,000. `f1_by_population` has the F1 of
    each simulated population by mechanism.
    """

    predictions: list[Prediction]
    words_by_goal: dict[float, float | None]
    f1_by_population: dict[str, dict[str, float]]


def max_steps(runs: int, brackets: int) -> int:
    """Return the largest number of steps of a forecast."""
    return runs + brackets + TRACKED.max_sizes


def forecast_study(
    middle: NamedCase,
    setting: StudySetting,
    seeds: Sequence[tuple[int, int]],
    brackets: Sequence[NamedCase] = (),
    step: Callable[[int], None] = lambda _: None,
    report: Callable[[Sequence[Prediction]], None] = lambda _: None,
) -> StudyForecast:
    """Simulate one study per seed and mechanism, and search for the words of each F1.

    Each of `brackets` is simulated once. `step` receives the number of steps done, `max_steps` in
    total, and `report` the predictions of the first study, and then those of all studies.

    Raises:
        ValueError: if the words are too few for any mechanism, or no item is heavy.
    """
    runs = list[_Run]()
    for seed in seeds:
        runs.append(_simulate(middle.case, setting, seed))
        if not runs[0]:
            raise ValueError(f"{setting.words} words are too few for any mechanism: allow more")
        if seed is seeds[0]:
            report(_predictions(runs))
        step(1)
    predictions = _predictions(runs)
    f1_by_population = {middle.name: {row.mechanism: row.f1 for row in predictions}}
    for bracket in brackets:
        with suppress(NoHeavyItemError):
            run = _simulate(bracket.case, setting, seeds[0])
            f1_by_population[bracket.name] = {name: f1 for name, (f1, _) in run.items()}
        step(1)
    if brackets:
        predictions = [_with_range(row, f1_by_population) for row in predictions]
    if len(seeds) + len(brackets) > 1:
        report(predictions)
    curve = f1_over_sizes(middle.case, TRACKED, setting, seeds, step, _GRID_STEP)
    words = {goal: curve.x_reaching(goal) for goal in GOALS}
    return StudyForecast(predictions, words, f1_by_population)


def _with_range(
    prediction: Prediction, f1_by_population: Mapping[str, Mapping[str, float]]
) -> Prediction:
    name = prediction.mechanism
    f1 = {population: row[name] for population, row in f1_by_population.items() if name in row}
    low, high = min(f1, key=f1.__getitem__), max(f1, key=f1.__getitem__)
    return replace(
        prediction, f1_low=f1[low], f1_low_population=low, f1_high=f1[high], f1_high_population=high
    )


def _simulate(case: StudyCase, setting: StudySetting, seed: tuple[int, int]) -> _Run:
    """Return a study of each mechanism for which `setting.words` suffice, with its F1.

    Raises:
        NoHeavyItemError: if there is nothing to find, so that F1 has no meaning.
    """
    is_hashed = isinstance(case.known.domain, Hashed)
    names = [
        name
        for name, mechanism in SUM_MECHANISMS.items()
        if mechanism.is_planned and (mechanism.question_type.fetches_strings or not is_hashed)
    ]
    study, run = draw_study(case, setting, seed), _Run()
    if not study.heavy.any():
        raise NoHeavyItemError(
            f"no item reaches {setting.tau:g} in a simulated study, so that its list would be "
            "empty: lower the threshold, or ask more devices or rounds"
        )
    for name in names:
        rng = np.random.default_rng([*seed, 1])
        try:
            result = run_tokens(name, study.tokens, setting.words, setting.tau, rng)
        except TooFewWordsError:
            continue
        run[name] = study.f1_of(result.found_items), result
    return run


def _predictions(runs: Sequence[_Run]) -> list[Prediction]:
    """Return a prediction for each mechanism of the first run, which all runs have."""
    predictions = []
    for name in runs[0]:
        scores, studies = zip(*(run[name] for run in runs if name in run), strict=True)
        predictions.append(
            Prediction(
                mechanism=name,
                f1=float(np.mean(scores)),
                f1_deviation=float(np.std(scores)),
                rounds_decoded=float(np.mean([study.rounds_decoded for study in studies])),
                upload_bytes=max(study.vector_bytes for study in studies),
                download_bytes=max(study.plan_bytes for study in studies),
            )
        )
    return predictions
