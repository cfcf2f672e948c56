"""The three experiments of [Pan24] with locally private oracles: errors and their theory.

    zipf       10,000 devices, 100,000 values; those that occur, by 1 / rank, all have the same
               residue modulo 128, which recursive Hadamard response suffers from
    gauss      10,000 devices, 10,000 values about an unknown mean, with a deviation of 50; no
               frequency is above f* = 0.01, and MSE-OCMS knows it
    data       each item that a device holds, of a file such as Kosarak's

Errors are those of the 100 most frequent values:

    worst MSE  greatest mean square, of T runs; biased up, since it is the greatest of 100
    l1, l2     sums of absolute values and of squares, mean of T runs

Theory is the variance of each value by its true frequency; of l1, sqrt(2/pi) times the sum of
deviations. A run draws new reports from the same data, by the code that devices run.

Source: section 6 of [Pan24], which does not specify the residue of its Zipf data.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from blindtally.console.data_files import load_dataset
from blindtally.datasets.cells import DataError
from blindtally.datasets.item_counts import ItemCounts
from protocol.numerics.array_types import Frequencies, ItemValues
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.randomness import seeded_words
from protocol.reference_mechanisms.oracles.apple_cms import HadamardCountMeanSketch
from protocol.reference_mechanisms.oracles.recursive_hadamard import RecursiveHadamard

MSE_OCMS, L_OCMS, OCMS_GF = "MSE-OCMS", "l-OCMS", "OCMS-GF"
HADAMARD, CMS_HADAMARD, RECURSIVE_HADAMARD = "HE", "CMS+HE", "RHR"
METHODS: Final = (MSE_OCMS, L_OCMS, OCMS_GF, HADAMARD, CMS_HADAMARD, RECURSIVE_HADAMARD)
TOP_VALUES = 100
_DEVICES, _SPACING = 10_000, 128
_MIN_ITEMS = 300  # more than the 256 symbols of recursive Hadamard response at epsilon 5


@dataclass(frozen=True, eq=False)
class OracleExperiment:
    """The values of n devices, of `domain`; no frequency is known to exceed `max_share`."""

    name: str
    values: ItemValues = field(repr=False)
    domain: int
    max_share: float = 1.0

    @cached_property
    def frequencies(self) -> Frequencies:
        """Return the true frequencies (d,)."""
        return np.bincount(self.values.astype(np.int64), minlength=self.domain) / len(self.values)

    @cached_property
    def top_values(self) -> ItemValues:
        """Return the 100 most frequent values, or all if there are fewer."""
        return np.argsort(-self.frequencies, kind="stable")[:TOP_VALUES].astype(np.uint64)


@dataclass(frozen=True, slots=True)
class OracleErrors:
    """A method's errors in one experiment, measured in T runs and by theory.

    `..._error` are the standard errors of these means, 0 of a single run.
    """

    experiment: str
    method: str
    epsilon: float
    worst: float
    worst_theory: float
    l1: float
    l1_theory: float
    l2: float
    l2_theory: float
    worst_error: float
    l1_error: float
    l2_error: float


def zipf_experiment(rng: np.random.Generator) -> OracleExperiment:
    """Return the experiment `zipf`."""
    domain = 100_000
    places = np.arange(0, domain, _SPACING, dtype=np.uint64)
    shares = 1 / np.arange(1, len(places) + 1)
    held = rng.choice(places, _DEVICES, p=shares / shares.sum())
    return OracleExperiment("zipf", held, domain)


def gaussian_experiment(rng: np.random.Generator) -> OracleExperiment:
    """Return the experiment `gauss`."""
    domain = 10_000
    drawn = np.rint(rng.normal(rng.integers(1000, 9001), 50, _DEVICES))
    return OracleExperiment("gauss", np.clip(drawn, 0, domain - 1).astype(np.uint64), domain, 0.01)


def file_experiment(path: Path, devices: int, rng: np.random.Generator) -> OracleExperiment:
    """Return the items that the first `devices` of a file hold, or that are drawn by its counts.

    Raises:
        DataError: if the file cannot be used, or holds fewer than 300 different items.
    """
    data, _ = load_dataset(path)
    if isinstance(data, ItemCounts):
        drawn = rng.choice(len(data.items), devices, p=data.counts / data.counts.sum())
        domain = len(data.items)
    else:
        held = [pair for histogram in data[:devices] for pair in histogram.items()]
        names, numbers = np.unique([item for item, _ in held], return_inverse=True)
        drawn, domain = np.repeat(numbers, [count for _, count in held]), len(names)
    if domain < _MIN_ITEMS:
        raise DataError(path, f"has {domain} items: there must be {_MIN_ITEMS} at least")
    return OracleExperiment(path.name.split(".")[0], drawn.astype(np.uint64), domain)


def oracle_of(method: str, experiment: OracleExperiment, epsilon: float, seed: int) -> Oracle:
    """Return the oracle of a method; `seed` is for the public hash functions of CMS+HE."""
    domain = experiment.domain
    if method == MSE_OCMS:
        return Ocms.for_mse(epsilon, domain, experiment.max_share)
    if method == L_OCMS:
        return Ocms.for_l2(epsilon, domain)
    if method == OCMS_GF:
        return OcmsGf.for_mse(epsilon, domain)
    if method == HADAMARD:
        return Hadamard(epsilon, domain)
    if method == CMS_HADAMARD:
        return HadamardCountMeanSketch(epsilon, domain, m=1024, functions=2**16, seed=seed)
    return RecursiveHadamard.for_epsilon(epsilon, domain)


def measure_errors(case: tuple[OracleExperiment, float, str], runs: int, seed: int) -> OracleErrors:
    """Return the errors over `runs` of an experiment, an epsilon and a method."""
    experiment, epsilon, method = case
    top, true = experiment.top_values.astype(np.int64), experiment.frequencies
    rng = np.random.default_rng([seed, METHODS.index(method), round(1000 * epsilon)])
    estimates = list(_estimates_of_runs(experiment, method, epsilon, runs, rng))
    differences = np.array(estimates) - true[top]
    oracle = oracle_of(method, experiment, epsilon, 0)
    deviations = np.sqrt(oracle.variances(true, len(experiment.values))[top])
    squares, absolute = differences**2, np.abs(differences)
    worst = int(squares.mean(axis=0).argmax())
    return OracleErrors(
        experiment.name,
        method,
        epsilon,
        float(squares[:, worst].mean()),
        float((deviations**2).max()),
        float(absolute.sum(axis=1).mean()),
        float(np.sqrt(2 / np.pi) * deviations.sum()),
        float(squares.sum(axis=1).mean()),
        float((deviations**2).sum()),
        _standard_error(squares[:, worst]),
        _standard_error(absolute.sum(axis=1)),
        _standard_error(squares.sum(axis=1)),
    )


def _standard_error(values: NDArray[np.float64]) -> float:
    """Return the standard error of the mean of `values`."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def _estimates_of_runs(
    experiment: OracleExperiment, method: str, epsilon: float, runs: int, rng: np.random.Generator
) -> Iterator[Frequencies]:
    for _ in range(runs):
        oracle = oracle_of(method, experiment, epsilon, int(rng.integers(2**32)))
        reports = oracle.perturb(experiment.values, seeded_words(rng))
        yield oracle.estimate(reports, experiment.top_values)
