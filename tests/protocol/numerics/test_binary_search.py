"""Quantiles of counts by bisection are those of scipy, also where counts are nearly Poisson's."""

import numpy as np
import pytest
from scipy.special import betainc, betaincc
from scipy.stats import nbinom

from protocol.numerics.binary_search import first_counts


@pytest.mark.parametrize("tail", [1e-6, 1e-3, 0.1])
def test_quantiles_of_negative_binomial_counts_are_those_of_scipy(tail: float) -> None:
    rng = np.random.default_rng(1)
    mean = np.exp(rng.uniform(-14, 12, 2000))
    variance = mean * (1 + np.exp(rng.uniform(-13.8, 8, 2000)))
    shape, share = mean**2 / (variance - mean), mean / variance
    for guess in (np.zeros(2000), np.ceil(mean + 6 * np.sqrt(variance))):
        above = first_counts(lambda k: betaincc(shape, k + 1, share) <= tail, guess)
        below = first_counts(lambda k: betainc(shape, k + 1, share) >= tail, guess)
        assert (above == nbinom.isf(tail, shape, share)).all()
        assert (below == nbinom.ppf(tail, shape, share)).all()
