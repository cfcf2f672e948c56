"""Logarithms of factorials, sums and entropies are those of scipy, to the last digits."""

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp, rel_entr

from secagg.parameters import log_factorial, log_sum_exp, relative_entropy_term


def test_the_log_of_a_factorial_is_that_of_the_gamma_function() -> None:
    n = np.concatenate([np.arange(-3.0, 9000), np.geomspace(9000, 1e9, 1000).round()])
    assert log_factorial(n) == pytest.approx(gammaln(n + 1), rel=1e-15)
    assert log_factorial(7.0) == pytest.approx(np.log(5040), rel=1e-15)


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_sum_of_exponentials_neither_overflows_nor_becomes_zero(axis: int | None) -> None:
    terms = np.array([[-2000.0, -2001.0, -np.inf], [1000.0, 999.0, -np.inf]])
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert log_sum_exp(terms, axis) == pytest.approx(logsumexp(terms, axis), rel=1e-15)


@pytest.mark.parametrize("q", [0.0, 1e-300, 0.25, 1.0])
def test_a_term_of_relative_entropy_is_right_at_its_ends(q: float) -> None:
    p = np.array([0.0, 1e-300, 0.25, 1.0])
    assert relative_entropy_term(p, q) == pytest.approx(rel_entr(p, q), rel=1e-15)
