"""The smallest share of devices whose value hsu2012's mechanisms name, by n and epsilon.

    python -m benchmarks.heavy_hitters_ldp [--all] [--noise NOISE ...] [--json PATH]

A share is found if the heavy hitter is the first that is named in 9 of 10 simulated runs (18 of
20 of JL-HH, 7 of 8 of GLPS-HH), with delta = 1e-6 where the noise has one. JL-HH: 1,000 values,
the runner-up half as frequent, the rest uniform; the others: a uniform tail of 2,000 and 3,000
values; L is the bits of a value (20 of GLPS-HH), B its buckets. Names end in epsilon and n.
`reference` is what an independent prototype found with the paper's noise, on the same
grid of shares; 1 stands for none. --all adds every n and epsilon, --noise other noises.

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

from benchmarks.populations import Population, flat, recoveries, rivalled
from benchmarks.rows import Row, report
from protocol.chance import Chance, seeded, system
from protocol.oracles.bucket import Bucket
from protocol.oracles.glps import SparseRecovery
from protocol.oracles.jl import JohnsonLindenstrauss
from protocol.oracles.projection import Noise, Projection

_SHARES = (0.02, 0.05, 0.1, 0.15, *(k / 10 for k in range(2, 10)), 0.95)
_NOISES: tuple[Noise, ...] = ("paper", "laplace", "gaussian", "pure", "sampled")


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a table: a mechanism, what it is tried on, and what the prototype found."""

    name: str
    make: Callable[[float, float, Noise, bytes], Projection]
    population: Callable[[int, float], Population]
    runs: int
    enough: int
    found: dict[float, dict[int, float]]  # by epsilon and n; 1 for none


def _jl(epsilon: float, delta: float, noise: Noise, seed: bytes) -> Projection:
    return JohnsonLindenstrauss(epsilon=epsilon, delta=delta, noise=noise, size=1000, seed=seed)


def _bucket(bits: int) -> Callable[[float, float, Noise, bytes], Projection]:
    return lambda epsilon, delta, noise, seed: Bucket(
        epsilon=epsilon, delta=delta, noise=noise, size=2**bits, seed=seed
    )


def _glps(buckets: int) -> Callable[[float, float, Noise, bytes], Projection]:
    return lambda epsilon, delta, noise, seed: SparseRecovery(
        epsilon=epsilon, delta=delta, noise=noise, size=2**20, seed=seed, buckets=buckets
    )


def _tail(bits: int, values: int) -> Callable[[int, float], Population]:
    return lambda n, share: flat(n, share, bits, min(values, 2**bits - 2))


_SETTINGS = (
    Setting(
        "JL",
        _jl,
        rivalled,
        20,
        18,
        {
            1: {10**4: 0.7, 10**5: 0.3, 10**6: 0.1},
            4: {10**4: 0.2, 10**5: 0.1, 10**6: 0.05},
        },
    ),
    Setting(
        "Bucket L 10",
        _bucket(10),
        _tail(10, 2000),
        10,
        9,
        {
            1: {10**5: 1, 10**6: 0.6, 10**7: 0.2, 10**8: 0.1},
            4: {10**5: 0.5, 10**6: 0.15, 10**7: 0.05, 10**8: 0.05},
        },
    ),
    Setting(
        "Bucket L 20",
        _bucket(20),
        _tail(20, 2000),
        10,
        9,
        {
            1: {10**5: 1, 10**6: 0.8, 10**7: 0.3, 10**8: 0.1},
            4: {10**5: 0.7, 10**6: 0.3, 10**7: 0.1, 10**8: 0.05},
        },
    ),
    Setting(
        "GLPS B 4",
        _glps(4),
        _tail(20, 3000),
        8,
        7,
        {
            1: {10**5: 1, 10**6: 0.5, 10**7: 0.15, 10**8: 0.05},
            4: {10**5: 0.5, 10**6: 0.15, 10**7: 0.05, 10**8: 0.02},
        },
    ),
    Setting(
        "GLPS B 16",
        _glps(16),
        _tail(20, 3000),
        8,
        7,
        {1: {10**5: 1, 10**6: 0.9, 10**7: 0.3, 10**8: 0.1}},
    ),
)


def shares(setting: Setting, noise: Noise, everything: bool) -> Iterator[Row]:
    """Yield the smallest share that `setting` finds under `noise`, for each n and epsilon."""
    delta = 0.0 if noise in ("pure", "sampled") else 1e-6
    for epsilon, by_n in setting.found.items():
        chosen = by_n.items() if everything else list(by_n.items())[1:3]
        for n, reference in chosen:

            def make(seed: bytes, epsilon: float = epsilon) -> Projection:
                return setting.make(float(epsilon), delta, noise, seed)

            found = 1.0
            for share in _SHARES:
                draw = setting.population(n, share)
                if recoveries(make, draw, setting.runs) >= setting.enough:
                    found = share
                    break
            name = f"{setting.name} {noise} {epsilon} {n:.0e}"
            yield Row(name, found, "share", reference, found / reference)


def speeds() -> Iterator[Row]:
    """Yield how many reports a second are made and added up."""
    rng = np.random.default_rng(0)
    for setting, epsilon in zip(_SETTINGS[:4:3], (1.0, 1.0), strict=True):
        for noise, n in (("gaussian", 500), ("sampled", 50_000)):
            delta = 0.0 if noise == "sampled" else 1e-6
            mechanism = setting.make(epsilon, delta, noise, bytes(32))  # type: ignore[arg-type]
            values = rng.integers(0, mechanism.size, n).astype(np.uint64)
            name = f"{setting.name} {noise}"
            chances: dict[str, Chance] = {"seeded": seeded(rng), "system": system}
            for kind, chance in chances.items():
                start = time.process_time()
                reports = mechanism.perturb(values, chance)
                yield Row(f"{name} perturb {kind}", n / (time.process_time() - start), "1/s")
            start = time.process_time()
            mechanism.aggregate(reports)
            yield Row(f"{name} aggregate", n / (time.process_time() - start), "1/s")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every n and epsilon")
    parser.add_argument("--noise", nargs="*", choices=_NOISES, default=["paper", "sampled"])
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rows = [
        row
        for setting in _SETTINGS
        for noise in options.noise
        for row in shares(setting, noise, options.all)
    ]
    report([*rows, *speeds()], "prototype", options.json)


if __name__ == "__main__":
    main()
