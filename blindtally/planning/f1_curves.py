"""Points and curves of F1: the setting of a point, its runs, and the x that reaches a goal."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GOALS: Final = (0.8, 0.9, 0.95)


@dataclass(frozen=True, slots=True)
class StudySetting:
    """Parameters of a point: the paper's R, tau, M and C."""

    rounds: int
    tau: float
    tokens: int
    words: int


@dataclass(frozen=True, slots=True)
class F1Point:
    """F1 of each run with the best option, and the name of that option."""

    x: int
    f1_of_runs: tuple[float, ...]
    option: str = ""

    @property
    def mean(self) -> float:
        return float(np.mean(self.f1_of_runs))

    @property
    def standard_deviation(self) -> float:
        return float(np.std(self.f1_of_runs, ddof=1)) if len(self.f1_of_runs) > 1 else 0.0


@dataclass(frozen=True, slots=True)
class F1Curve:
    """A method's points."""

    name: str
    points: tuple[F1Point, ...]

    def x_reaching(self, goal: float) -> float | None:
        """Return the x from which the mean is at least `goal`, by log x between points, or None."""
        below = [number for number, point in enumerate(self.points) if point.mean < goal]
        last = below[-1] if below else -1
        if last == len(self.points) - 1:
            return None
        if last == -1:
            return float(self.points[0].x)
        low, high = self.points[last], self.points[last + 1]
        share = (goal - low.mean) / (high.mean - low.mean)
        return float(low.x * (high.x / low.x) ** share)

    def rows(self, x: str) -> list[dict[str, Any]]:
        """Return the points as rows of a table, with the abscissa in column `x`."""
        return [
            {
                "method": self.name,
                x: point.x,
                "f1": point.mean,
                "deviation": point.standard_deviation,
                "runs": len(point.f1_of_runs),
                "option": point.option,
            }
            for point in self.points
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "reaches": {str(goal): self.x_reaching(goal) for goal in GOALS},
            "points": [
                {
                    "x": point.x,
                    "mean": point.mean,
                    "deviation": point.standard_deviation,
                    "runs": list(point.f1_of_runs),
                    "option": point.option,
                }
                for point in self.points
            ],
        }


def f1(found_items: NDArray[np.bool_], heavy: NDArray[np.bool_]) -> float:
    """Return F1 of two masks; 1 if both are empty."""
    total = int(found_items.sum()) + int(heavy.sum())
    return 2 * int((found_items & heavy).sum()) / total if total else 1.0
