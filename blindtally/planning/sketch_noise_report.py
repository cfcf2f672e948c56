"""Cost of noise in a sketch that counts the items of a small domain.

Noise that hides one device costs words and accuracy. Its cells are wider, so rows have fewer of
them, and every estimate has an error that does not depend on the number of devices. The server
reads the sum of each cohort, so each cohort has all of the noise by itself.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import write_json
from blindtally.console.tables import print_parts, result_table
from blindtally.simulate.rounds import terms_for
from protocol.domains.strings import Alphabet
from protocol.mechanisms.frequency_sketches import (
    FrequencySketchPlan,
    FrequencySketchQuestion,
    noise_threshold,
)
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Terms

_MAX_COHORT_SIZE = 100_000
_ROWS = (1, 3, 5, 7, 9)  # of the sketches that are compared
_ANY_DOMAIN = Alphabet(characters="ab", length=1)  # costs do not depend on it


@dataclass(frozen=True, slots=True)
class SketchCost:
    """A sketch of `rows` with noise, and one of the same words without noise.

    `width` is the number of cells in a row, and `exact_width` that without noise. `variance` is
    that of a cell's noise in the sum of a cohort. `error` is the standard error that the noise of
    all rounds adds to a count, and `threshold` a count that noise alone gives to 0.3 items.
    """

    rows: int
    width: int
    exact_width: int
    variance: float
    error: float
    threshold: float


def compare_sketches(
    mechanism: str,
    devices: int,
    rounds: int,
    words: int,
    epsilon: float,
    delta: float,
    items: int,
    json_path: str | None,
) -> None:
    """Show the cost of noise for `epsilon` in a sketch of `words`, by the number of rows.

    The domain has `items`.
    """

    def plan_of(rows: int, terms: Terms, epsilon: float | None) -> FrequencySketchPlan:
        fields = {"mechanism": mechanism, "threshold": 1e12, "contribution": 1, "rows": rows}
        fields |= {"domain": _ANY_DOMAIN, "words": words, "epsilon": epsilon, "delta": delta}
        question = FrequencySketchQuestion.model_validate(fields)
        plan: FrequencySketchPlan = SUM_MECHANISMS[mechanism].first_plan(
            question, terms, "plan", rounds, Random(0)
        )
        return plan

    try:
        terms = terms_for(devices, _MAX_COHORT_SIZE, mode="semi-honest")
        plans = [(plan_of(rows, terms, epsilon), plan_of(rows, terms, None)) for rows in _ROWS]
        costs = [_cost(noisy, exact, items) for noisy, exact in plans]
    except ValueError as error:
        raise exit_with_error(error) from None
    if json_path != "-":
        _show(costs, f"{mechanism} with epsilon {epsilon:g}, delta {delta:g}; {rounds} rounds")
    write_json(json_path, {"mechanism": mechanism, "costs": [asdict(cost) for cost in costs]})


def _cost(noisy: FrequencySketchPlan, exact: FrequencySketchPlan, items: int) -> SketchCost:
    assert noisy.release is not None  # as its question has an epsilon
    rows = noisy.question.rows
    variance = noisy.max_noise_variance(noisy.terms.max_devices) * noisy.rounds
    error = math.sqrt(variance * min(1.0, math.pi / (2 * rows)))
    threshold = noise_threshold(rows, variance, items)
    widths = noisy.width, exact.width
    return SketchCost(rows, *widths, noisy.release.variance, error, threshold)


def _show(costs: list[SketchCost], title: str) -> None:
    columns: list[tuple[str, Callable[[SketchCost], str]]] = [
        ("cells per row", lambda cost: f"{cost.width:,}"),
        ("cells per row without noise", lambda cost: f"{cost.exact_width:,}"),
        ("noise in a cell, std. deviation", lambda cost: f"{math.sqrt(cost.variance):.4g}"),
        ("error of a count by noise", lambda cost: f"{cost.error:,.1f}"),
        ("smallest threshold", lambda cost: f"{math.ceil(cost.threshold):,}"),
    ]
    rows = [(name, *map(cell, costs)) for name, cell in columns]
    headers = [f"{cost.rows} {'row' if cost.rows == 1 else 'rows'}" for cost in costs]
    print_parts(
        result_table([""], headers, rows, title),
        "The error is a standard error over all rounds, in addition to that of the sketch. Noise "
        "alone reaches the smallest threshold for 0.3 items on average.",
        "Every cohort adds as much noise: use few, large cohorts.",
    )
