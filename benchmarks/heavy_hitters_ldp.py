"""The smallest share of devices whose value hsu2012's mechanisms name, by n and epsilon.

    python -m benchmarks.heavy_hitters_ldp [--all] [--noise NOISE ...] [--json PATH]

A share is found if the heavy hitter is the first that is named in 9 of 10 simulated runs (18 of
20 of JL-HH, 7 of 8 of GLPS-HH), with delta = 1e-6 where the noise has one. JL-HH: 1,000 values,
the runner-up half as frequent, the rest uniform; the others: a uniform tail of 2,000 and 3,000
values; L is the bits of a value (20 of GLPS-HH), B its buckets. Names end in epsilon and n.
`prototype` is what an independent one found on the same grid of shares; 1 stands for none. Its
Gaussian noise was of the classical scale, which is too little above epsilon 1; beside our Laplace
noise stands its twofold paper's, which is more than it takes. "above" is in how many of 100 runs
the value is named one step of the grid above what the prototype found: 90 are enough. "error" is
GLPS-HH's, in n^(5/6) and the logarithms of theorem 4.2: 2 at most.

--all adds every n and epsilon that the prototype was tried at; --noise tries those noises.
Speeds are those of one thread's CPU time, seeded chance; "system" is the operating system's.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.populations import (
    PopulationSampler,
    count_recoveries,
    glps_error,
    with_runner_up,
    with_uniform_tail,
)
from benchmarks.rows import BenchmarkRow, report
from protocol.oracles.hsu2012.bucket import BucketProjection
from protocol.oracles.hsu2012.glps import SparseRecovery
from protocol.oracles.hsu2012.jl import JohnsonLindenstrauss
from protocol.oracles.hsu2012.projection import NoiseKind, Projection
from protocol.randomness import RandomWords, seeded_words, system_words

_SHARES = (0.02, 0.05, 0.1, 0.15, *(k / 10 for k in range(2, 10)), 0.95)
_NOISES: tuple[NoiseKind, ...] = ("paper", "laplace", "gaussian", "pure", "sampled")


_SmallestShares = dict[float, dict[int, float]]  # by epsilon and n, smallest shares; 1 for none


@dataclass(frozen=True, slots=True)
class MechanismCase:
    """One line of a table: a mechanism, what it is tried on, and what the prototype found."""

    name: str
    make: Callable[[float, float, NoiseKind, bytes], Projection]
    population: Callable[[int, float], PopulationSampler]
    runs: int
    enough: int
    found: dict[NoiseKind, _SmallestShares]


def _make_jl(epsilon: float, delta: float, noise: NoiseKind, seed: bytes) -> Projection:
    return JohnsonLindenstrauss(epsilon=epsilon, delta=delta, noise=noise, size=1000, seed=seed)


def _bucket_maker(
    bits: int, beta: float = 0.1
) -> Callable[[float, float, NoiseKind, bytes], Projection]:
    return lambda epsilon, delta, noise, seed: BucketProjection(
        epsilon=epsilon, delta=delta, noise=noise, size=2**bits, seed=seed, beta=beta
    )


def _glps_maker(buckets: int) -> Callable[[float, float, NoiseKind, bytes], Projection]:
    return lambda epsilon, delta, noise, seed: SparseRecovery(
        epsilon=epsilon, delta=delta, noise=noise, size=2**20, seed=seed, buckets=buckets
    )


def _uniform_tail(bits: int, values: int) -> Callable[[int, float], PopulationSampler]:
    return lambda n, share: with_uniform_tail(n, share, bits, min(values, 2**bits - 2))


def _shares_by_n(first: int, rows: dict[float, tuple[float, ...]]) -> _SmallestShares:
    """Return shares by epsilon and n, of rows that start at n = 10^first."""
    return {
        epsilon: {10 ** (first + step): share for step, share in enumerate(row)}
        for epsilon, row in rows.items()
    }


def _bucket_case(
    name: str, bits: int, found: dict[NoiseKind, _SmallestShares], beta: float = 0.1
) -> MechanismCase:
    return MechanismCase(
        f"Bucket {name}", _bucket_maker(bits, beta), _uniform_tail(bits, 2000), 10, 9, found
    )


def _glps_case(buckets: int, found: dict[NoiseKind, _SmallestShares]) -> MechanismCase:
    return MechanismCase(
        f"GLPS B {buckets}", _glps_maker(buckets), _uniform_tail(20, 3000), 8, 7, found
    )


_MECHANISM_CASES = (
    MechanismCase(
        "JL",
        _make_jl,
        with_runner_up,
        20,
        18,
        {
            "paper": _shares_by_n(
                3,
                {
                    0.5: (1, 1, 0.4, 0.15),
                    1: (1, 0.7, 0.3, 0.1),
                    2: (1, 0.4, 0.15, 0.05),
                    4: (0.5, 0.2, 0.1, 0.05),
                },
            ),
            "laplace": _shares_by_n(
                3,
                {
                    0.5: (1, 1, 0.9, 0.4),
                    1: (1, 1, 0.5, 0.2),
                    2: (1, 0.6, 0.3, 0.1),
                    4: (1, 0.4, 0.15, 0.05),
                },
            ),
            "gaussian": _shares_by_n(
                3,
                {
                    0.5: (1, 0.95, 0.3, 0.1),
                    1: (1, 0.6, 0.15, 0.05),
                    2: (0.7, 0.3, 0.1, 0.05),
                    4: (0.5, 0.15, 0.05, 0.02),
                },
            ),
        },
    ),
    _bucket_case(
        "L 10",
        10,
        {
            "paper": _shares_by_n(
                5,
                {
                    1: (1, 0.6, 0.2, 0.1),
                    2: (0.95, 0.3, 0.1, 0.05),
                    4: (0.5, 0.15, 0.05, 0.05),
                    8: (0.2, 0.1, 0.05, 0.05),
                },
            ),
            "sampled": _shares_by_n(4, {1: (0.5, 0.15, 0.05, 0.02)}),
        },
    ),
    _bucket_case(
        "L 20",
        20,
        {
            "paper": _shares_by_n(
                5,
                {
                    1: (1, 0.8, 0.3, 0.1),
                    2: (1, 0.5, 0.15, 0.1),
                    4: (0.7, 0.3, 0.1, 0.05),
                    8: (0.4, 0.15, 0.05, 0.05),
                },
            ),
            "sampled": _shares_by_n(4, {1: (0.7, 0.3, 0.1, 0.05), 4: (0.3, 0.1, 0.05, 0.05)}),
        },
    ),
    _bucket_case(
        "L 20 beta .5",
        20,
        {"paper": _shares_by_n(5, {1: (1, 0.7, 0.3, 0.1), 4: (0.5, 0.15, 0.1, 0.05)})},
        beta=0.5,
    ),
    _bucket_case(
        "L 32",
        32,
        {
            "paper": _shares_by_n(5, {1: (1, 1, 0.4, 0.15), 4: (1, 0.4, 0.15, 0.05)}),
            "sampled": _shares_by_n(4, {1: (0.9, 0.3, 0.1, 0.05)}),
        },
    ),
    _glps_case(
        4,
        {
            "paper": _shares_by_n(5, {1: (1, 0.5, 0.15, 0.05), 4: (0.5, 0.15, 0.05, 0.02)}),
            "sampled": _shares_by_n(5, {1: (0.15, 0.05, 0.05, 0.02)}),
        },
    ),
    _glps_case(
        16,
        {
            "paper": _shares_by_n(5, {1: (1, 0.9, 0.3, 0.1)}),
            "pure": _shares_by_n(5, {1: (0.95, 0.4, 0.1, 0.05), 4: (0.3, 0.1, 0.05, 0.02)}),
            "gaussian": _shares_by_n(5, {1: (0.5, 0.15, 0.05, 0.02)}),
            "sampled": _shares_by_n(5, {4: (0.02, 0.02, 0.02, 0.02)}),
        },
    ),
)


def cases(
    noises: list[NoiseKind], everything: bool
) -> Iterator[tuple[MechanismCase, NoiseKind, float, int]]:
    """Yield settings with a noise, epsilon and n: those of the prototype, or of other `noises`."""
    for setting in _MECHANISM_CASES:
        for noise in noises or setting.found:
            found = setting.found.get(noise, setting.found["paper"])
            for epsilon in found if everything else (1,):
                chosen = list(found.get(epsilon, ()))
                for n in chosen if everything else chosen[1:3]:
                    yield setting, noise, epsilon, n


def smallest_share_rows(
    setting: MechanismCase, noise: NoiseKind, epsilon: float, n: int
) -> Iterator[BenchmarkRow]:
    """Yield the smallest share that `setting` finds, and how often it finds one that it should."""
    delta = 0.0 if noise in ("pure", "sampled") else 1e-6

    def make(seed: bytes) -> Projection:
        return setting.make(float(epsilon), delta, noise, seed)

    def named(share: float, runs: int) -> int:
        return count_recoveries(make, setting.population(n, share), runs)

    enough = (share for share in _SHARES if named(share, setting.runs) >= setting.enough)
    found = next(enough, 1.0)
    name = f"{setting.name} {noise} {epsilon:g} {n:.0e}"
    reference = setting.found.get(noise, {}).get(epsilon, {}).get(n)
    yield BenchmarkRow(name, found, "share", reference, reference and found / reference)
    if reference is not None and reference < _SHARES[-1]:
        hits = named(_SHARES[_SHARES.index(reference) + 1], 100)
        yield BenchmarkRow(f"{name} above", hits, "of 100", 90, hits / 90)


def error_rows() -> Iterator[BenchmarkRow]:
    """Yield GLPS-HH's error beside what theorem 4.2 allows, with a constant of 2."""
    for power in range(6, 11):
        constant = glps_error(10**power)
        yield BenchmarkRow(f"GLPS error 1e{power}", constant, "of bound", 2, constant / 2)


def speed_rows() -> Iterator[BenchmarkRow]:
    """Yield how many reports a second are made and added up."""
    rng = np.random.default_rng(0)
    for setting, epsilon in zip(
        (_MECHANISM_CASES[0], _MECHANISM_CASES[5]), (1.0, 1.0), strict=True
    ):
        for noise, n in (("gaussian", 500), ("sampled", 50_000)):
            delta = 0.0 if noise == "sampled" else 1e-6
            mechanism = setting.make(epsilon, delta, noise, bytes(32))  # type: ignore[arg-type]
            values = rng.integers(0, mechanism.size, n).astype(np.uint64)
            name = f"{setting.name} {noise}"
            chances: dict[str, RandomWords] = {"seeded": seeded_words(rng), "system": system_words}
            for kind, chance in chances.items():
                start = time.process_time()
                reports = mechanism.perturb(values, chance)
                yield BenchmarkRow(
                    f"{name} perturb {kind}", n / (time.process_time() - start), "1/s"
                )
            start = time.process_time()
            mechanism.aggregate(reports)
            yield BenchmarkRow(f"{name} aggregate", n / (time.process_time() - start), "1/s")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every n and epsilon")
    parser.add_argument("--noise", nargs="*", choices=_NOISES, default=[], help="these alone")
    parser.add_argument("--json", type=Path, help="where to write shares and errors")
    options = parser.parse_args()
    rows = [row for case in cases(options.noise, options.all) for row in smallest_share_rows(*case)]
    report([*rows, *error_rows()], "reference", options.json)
    report(list(speed_rows()), "reference", None)


if __name__ == "__main__":
    main()
