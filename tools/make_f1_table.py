"""Simulated studies of `tracked`, from which the form of a new study reads its expected F1.

`python tools/make_f1_table.py` simulates studies of random settings, with fixed seeds, fits the
Gaussian process between them (`server/pages/forms/expected_f1.py`), and writes `f1_table.json`.
Run it again when `tracked` changes: a slow test compares the table with new simulations.

`--compare 40` prints the errors of the table for 40 other settings, as users of the form choose
them, and how many simulated studies are inside the range that the form shows.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from blindtally.planning.f1_by_words import StudyCase, StudySetting, draw_study
from blindtally.simulate.populations import ItemPopulation
from blindtally.simulate.token_study import KeyedPopulation, TooFewWordsError, run_tokens
from protocol.domains.hashed import Hashed
from server.pages.forms.expected_f1 import (
    HEAVY_RANGE,
    SHORT_BYTES,
    TABLE_FILE,
    WORD_RANGE,
    ZIPF_EXPONENTS,
    StudyPoint,
    expected_f1_of,
    f1_table,
)

STUDIES: Final = 900
_MAX_TOKENS: Final = 100_000  # of all rounds: larger studies take too long
_ITEMS: Final = 100_000
_FLAT_ITEMS_PER_HEAVY_ITEM: Final = 5 / 3


def simulated_f1(point: StudyPoint, seed: Sequence[int]) -> float:
    """Return the F1 of one simulated study; TooFewWordsError if no table fits."""
    items = _ITEMS
    if point.zipf < 1:
        items = min(_ITEMS, max(20, round(_FLAT_ITEMS_PER_HEAVY_ITEM * point.max_heavy)))
    width = min(point.max_bytes, max(point.item_bytes, len(f"{items - 1:x}")))
    names = tuple(f"{number:x}".rjust(width, "x") for number in range(items))
    shares = np.arange(1, items + 1) ** -point.zipf
    population = ItemPopulation(names, shares / shares.sum(), Hashed(max_bytes=point.max_bytes))
    known = KeyedPopulation(population, population.domain)
    setting = StudySetting(point.rounds, point.threshold, point.tokens, point.words)
    study = draw_study(StudyCase(known, "none", point.contribution), setting, seed)
    rng = np.random.default_rng([*seed, 1])
    result = run_tokens("tracked", study.tokens, point.words, point.threshold, rng)
    return study.f1_of(result.found_items)


def random_points(rng: np.random.Generator) -> Iterator[StudyPoint]:
    """Yield points of random settings that the table covers."""

    def draw(low: float, high: float) -> float:
        return math.exp(rng.uniform(math.log(low), math.log(high)))

    while True:
        heavy, rounds, contribution = draw(*HEAVY_RANGE), round(draw(2, 30)), round(draw(1, 15))
        threshold, words = round(rounds * draw(0.3, 60)), round(draw(*WORD_RANGE))
        devices, max_bytes = round(heavy * threshold / rounds / contribution), round(draw(8, 130))
        point = StudyPoint(
            rounds=rounds,
            threshold=threshold,
            tokens=devices * contribution,
            contribution=contribution,
            words=words,
            max_bytes=max_bytes,
            item_bytes=round(draw(6, max_bytes)),
            zipf=float(rng.choice(ZIPF_EXPONENTS)),
        )
        is_small = rounds * point.tokens <= _MAX_TOKENS and words <= 60 * heavy
        if threshold >= 3 and devices >= 30 and is_small and point.is_simulated:
            yield point


def simulated_studies(count: int) -> list[list[float]]:
    """Return `count` points, each with its F1."""
    studies = list[list[float]]()
    for number, point in enumerate(random_points(np.random.default_rng(1))):
        if len(studies) == count:
            break
        try:
            f1 = simulated_f1(point, (1, number))
        except TooFewWordsError:
            continue
        studies.append([*astuple(point), round(f1, 4)])
        if len(studies) % 50 == 0:
            print(f"{len(studies)} of {count} studies", file=sys.stderr)
    return studies


def fitted_kernel(studies: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the scales and the noise of F1Table that make the F1 of `studies` most likely."""
    points = [StudyPoint(*row[:-1]) for row in studies]  # type: ignore[arg-type]
    at = np.array([point.coordinates() for point in points])
    angles = np.arcsin(np.sqrt([row[-1] for row in studies]))
    offsets = angles - angles.mean()
    steps = (at[:, None] - at) ** 2
    heavy, dimensions = np.array([point.max_heavy for point in points]), at.shape[1]

    def cost(logs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the negative logarithm of the likelihood, and its gradient."""
        scales, (amplitude, common, of_item) = np.exp(2 * logs[:dimensions]), np.exp(2 * logs[-3:])
        distances = np.sqrt(3 * np.sum(steps / scales, axis=2))
        decay = np.exp(-distances)
        signal = amplitude * (1 + distances) * decay
        inverse = np.linalg.inv(signal + np.diag(common + of_item / heavy))
        weights = inverse @ offsets
        slope = inverse - np.outer(weights, weights)
        gradient = [
            np.sum(slope * 1.5 * amplitude * steps[:, :, each] / scales[each] * decay)
            for each in range(dimensions)
        ]
        diagonal = np.diag(slope)
        gradient += [np.sum(slope * signal), diagonal.sum() * common, diagonal @ (of_item / heavy)]
        likelihood = weights @ offsets - np.linalg.slogdet(inverse)[1]
        # A weak prior keeps the scales of settings finite that almost never matter.
        return 0.5 * likelihood + 0.02 * logs @ logs, np.array(gradient) + 0.04 * logs

    start = np.r_[np.ones(dimensions), math.log(0.5), math.log(0.05), math.log(0.3)]
    logs = minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 60}).x
    values = np.round(np.exp(logs), 3).tolist()
    return values[:-2], values[-2:]


def write_table() -> None:
    """Write the table of new simulations."""
    studies = simulated_studies(STUDIES)
    scales, noise = fitted_kernel(studies)
    rows = ",\n".join(json.dumps(row) for row in studies)
    head = f'"scales": {json.dumps(scales)},\n"noise": {json.dumps(noise)},\n'
    TABLE_FILE.write_text(f'{{{head}"studies": [\n{rows}\n]}}\n', encoding="utf-8")


def chosen_points(rng: np.random.Generator) -> Iterator[StudyPoint]:
    """Yield points of settings that users of the form choose, with short items."""
    choices = {
        "devices": (50, 100, 200, 500, 1000, 2000, 5000, 10_000),
        "rounds": (2, 3, 5, 8, 10, 15, 20, 30),
        "threshold": (5, 10, 20, 30, 50, 100, 200, 500),
        "contribution": (1, 3, 5, 10),
        "words": (300, 500, 1000, 2000, 5000),
        "max_bytes": (16, 32, 64, 100),
    }
    while True:
        chosen = {name: int(rng.choice(values)) for name, values in choices.items()}
        tokens = chosen.pop("devices") * chosen["contribution"]
        point = StudyPoint(**chosen, tokens=tokens, item_bytes=SHORT_BYTES, zipf=1.0)
        if point.is_simulated and point.rounds * tokens <= _MAX_TOKENS:
            yield point


def compare(count: int) -> None:
    """Print the errors of the table for `count` settings, against means of three simulations."""
    errors, inside, studies = list[float](), 0, 0
    for number, middle in enumerate(chosen_points(np.random.default_rng(4))):
        if number == count:
            break
        if not middle.is_covered:
            continue
        table = expected_f1_of(middle)
        for zipf, item_bytes in ((0.5, middle.max_bytes), (1.0, SHORT_BYTES), (1.3, SHORT_BYTES)):
            point = replace(middle, zipf=zipf, item_bytes=item_bytes)
            try:
                runs = [simulated_f1(point, (4, number, run)) for run in range(3)]
            except TooFewWordsError:
                continue
            (f1,) = f1_table().f1([point])
            errors.append(abs(float(f1) - float(np.mean(runs))))
            inside += sum(
                round(table.low, 2) <= round(run, 2) <= round(table.high, 2) for run in runs
            )
            studies += len(runs)
            print(point, f"table {f1:.2f}, simulated", np.round(runs, 2), flush=True)
    print(f"errors of {len(errors)}: mean {np.mean(errors):.3f}, worst {max(errors):.3f}")
    print(f"{inside} of {studies} studies are inside the range of the form")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--compare"]:
        compare(int(sys.argv[2]))
    else:
        write_table()
