"""The goals of the calibration table: a cell is listed if it misses one by more than chance."""

import numpy as np
import pytest

from tests.support.interval_errors import missed_goals

SIZE = 4000


def missed(scale: float, outliers: int = 0) -> list[str]:
    """Return the goals missed by normal errors of `scale` standard errors, some of them of six."""
    z_scores = np.random.default_rng(1).normal(0, scale, SIZE)
    z_scores[:outliers] = 6.0
    return list(missed_goals(z_scores.tolist(), (np.abs(z_scores) < 1.96).tolist()))


def test_normal_errors_violate_nothing() -> None:
    """Check normal errors; of other seeds, 1 in 200 would be listed, by three standard errors."""
    assert not missed(1.0)


@pytest.mark.parametrize(("scale", "outliers"), [(1.3, 0), (0.8, 0), (1.0, 12)])
def test_wrong_standard_errors_are_listed(scale: float, outliers: int) -> None:
    assert missed(scale, outliers)


def test_a_few_items_prove_nothing() -> None:
    assert not list(missed_goals([1.5, -2.1, 0.3], [True, False, True]))
