"""The smallest share of devices whose value hsu2012's mechanisms identify, by n and epsilon.

    python -m benchmarks.hsu2012_detection_limits [--all] [--noise NOISE ...] [--json PATH]

A share counts as identified if the heavy hitter ranks first in 9 of 10 simulated runs (18 of 20 for
JL-HH, 7 of 8 for GLPS-HH), with delta = 1e-6 where the noise has one. JL-HH: 1,000 values, the
runner-up half as frequent, the rest uniform; the others: a uniform tail of 2,000 and 3,000 values.
L is the bits of a value (20 for GLPS-HH), B its buckets. Names end in epsilon and n. `prototype` is
the result of an independent one on the same grid of shares; 1 means none. Its Gaussian noise had
the classical scale, which is too small above epsilon 1; the reference of our Laplace noise is the
prototype's noise at twice the paper's scale, which is more than needed. "above" counts the runs of
100 that identify the value one step of the grid above the prototype's share: 90 are enough. "error"
is GLPS-HH's, in n^(5/6) and the logarithms of theorem 4.2: 2 at most.

--all adds every n and epsilon that the prototype was tried at; --noise tries those noises.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.harness import BenchmarkRow, argument_parser, report
from benchmarks.one_heavy_hitter import (
    PopulationSampler,
    count_recoveries,
    glps_error,
    with_runner_up,
    with_uniform_tail,
)
from protocol.reference_mechanisms.hsu2012_oracles.bucket import BucketProjection
from protocol.reference_mechanisms.hsu2012_oracles.glps import SparseRecovery
from protocol.reference_mechanisms.hsu2012_oracles.johnson_lindenstrauss import JohnsonLindenstrauss
from protocol.reference_mechanisms.hsu2012_oracles.projection_oracle import NoiseKind, Projection

_SHARES = (0.02, 0.05, 0.1, 0.15, *(k / 10 for k in range(2, 10)), 0.95)
_NOISES: tuple[NoiseKind, ...] = ("paper", "laplace", "gaussian", "pure", "sampled")

# Smallest shares that the prototype identified: case, noise, epsilon, the first n, and the shares
# at that n, 10 n, 100 n and 1,000 n; 1 means none.
_PROTOTYPE_SHARES = """
    JL                   paper     0.5  1e3  1     1     0.4   0.15
    JL                   paper     1    1e3  1     0.7   0.3   0.1
    JL                   paper     2    1e3  1     0.4   0.15  0.05
    JL                   paper     4    1e3  0.5   0.2   0.1   0.05
    JL                   laplace   0.5  1e3  1     1     0.9   0.4
    JL                   laplace   1    1e3  1     1     0.5   0.2
    JL                   laplace   2    1e3  1     0.6   0.3   0.1
    JL                   laplace   4    1e3  1     0.4   0.15  0.05
    JL                   gaussian  0.5  1e3  1     0.95  0.3   0.1
    JL                   gaussian  1    1e3  1     0.6   0.15  0.05
    JL                   gaussian  2    1e3  0.7   0.3   0.1   0.05
    JL                   gaussian  4    1e3  0.5   0.15  0.05  0.02
    Bucket L 10          paper     1    1e5  1     0.6   0.2   0.1
    Bucket L 10          paper     2    1e5  0.95  0.3   0.1   0.05
    Bucket L 10          paper     4    1e5  0.5   0.15  0.05  0.05
    Bucket L 10          paper     8    1e5  0.2   0.1   0.05  0.05
    Bucket L 10          sampled   1    1e4  0.5   0.15  0.05  0.02
    Bucket L 20          paper     1    1e5  1     0.8   0.3   0.1
    Bucket L 20          paper     2    1e5  1     0.5   0.15  0.1
    Bucket L 20          paper     4    1e5  0.7   0.3   0.1   0.05
    Bucket L 20          paper     8    1e5  0.4   0.15  0.05  0.05
    Bucket L 20          sampled   1    1e4  0.7   0.3   0.1   0.05
    Bucket L 20          sampled   4    1e4  0.3   0.1   0.05  0.05
    Bucket L 20 beta .5  paper     1    1e5  1     0.7   0.3   0.1
    Bucket L 20 beta .5  paper     4    1e5  0.5   0.15  0.1   0.05
    Bucket L 32          paper     1    1e5  1     1     0.4   0.15
    Bucket L 32          paper     4    1e5  1     0.4   0.15  0.05
    Bucket L 32          sampled   1    1e4  0.9   0.3   0.1   0.05
    GLPS B 4             paper     1    1e5  1     0.5   0.15  0.05
    GLPS B 4             paper     4    1e5  0.5   0.15  0.05  0.02
    GLPS B 4             sampled   1    1e5  0.15  0.05  0.05  0.02
    GLPS B 16            paper     1    1e5  1     0.9   0.3   0.1
    GLPS B 16            pure      1    1e5  0.95  0.4   0.1   0.05
    GLPS B 16            pure      4    1e5  0.3   0.1   0.05  0.02
    GLPS B 16            gaussian  1    1e5  0.5   0.15  0.05  0.02
    GLPS B 16            sampled   4    1e5  0.02  0.02  0.02  0.02
"""

_SmallestShares = dict[float, dict[int, float]]  # by epsilon and n, smallest shares; 1 for none


@dataclass(frozen=True, slots=True)
class MechanismCase:
    """A mechanism, the population that it is tried on, and its runs, of which `enough` suffice."""

    name: str
    make: Callable[..., Projection]
    population: Callable[[int, float], PopulationSampler]
    runs: int
    enough: int

    def prototype_shares(self) -> dict[str, _SmallestShares]:
        """Return the smallest shares of the prototype by noise."""
        shares: dict[str, _SmallestShares] = {}
        for line in _PROTOTYPE_SHARES.strip().splitlines():
            name, noise, epsilon, first, *row = line.rsplit(maxsplit=7)
            if name.strip() == self.name:
                shares.setdefault(noise, {})[float(epsilon)] = {
                    int(float(first)) * 10**step: float(share) for step, share in enumerate(row)
                }
        return shares


def _bucket_case(name: str, bits: int, beta: float = 0.1) -> MechanismCase:
    make = partial(BucketProjection, size=2**bits, beta=beta)
    tail = min(2000, 2**bits - 2)
    return MechanismCase(name, make, partial(with_uniform_tail, bits=bits, tail=tail), 10, 9)


def _glps_case(buckets: int) -> MechanismCase:
    make = partial(SparseRecovery, size=2**20, buckets=buckets)
    population = partial(with_uniform_tail, bits=20, tail=3000)
    return MechanismCase(f"GLPS B {buckets}", make, population, 8, 7)


_MECHANISM_CASES = (
    MechanismCase("JL", partial(JohnsonLindenstrauss, size=1000), with_runner_up, 20, 18),
    _bucket_case("Bucket L 10", 10),
    _bucket_case("Bucket L 20", 20),
    _bucket_case("Bucket L 20 beta .5", 20, beta=0.5),
    _bucket_case("Bucket L 32", 32),
    _glps_case(4),
    _glps_case(16),
)


def cases(
    noises: list[str], everything: bool
) -> Iterator[tuple[MechanismCase, str, float, int, float | None]]:
    """Yield cases with a noise, epsilon, n and the prototype's share, if it has one.

    The settings are those of the prototype, or those of its paper noise with each of `noises`.
    """
    for case in _MECHANISM_CASES:
        known = case.prototype_shares()
        for noise in noises or known:
            tried = known.get(noise, known["paper"])
            for epsilon in tried if everything else (1.0,):
                sizes = list(tried.get(epsilon, ()))
                for n in sizes if everything else sizes[1:3]:
                    yield case, noise, epsilon, n, known.get(noise, {}).get(epsilon, {}).get(n)


def smallest_share_rows(
    case: MechanismCase, noise: str, epsilon: float, n: int, reference: float | None
) -> Iterator[BenchmarkRow]:
    """Yield the smallest share that is identified, and how often one above the reference is."""
    delta = 0.0 if noise in ("pure", "sampled") else 1e-6
    make = partial(case.make, epsilon=epsilon, delta=delta, noise=noise)

    def recoveries(share: float, runs: int) -> int:
        return count_recoveries(lambda seed: make(seed=seed), case.population(n, share), runs)

    enough = (share for share in _SHARES if recoveries(share, case.runs) >= case.enough)
    name = f"{case.name} {noise} {epsilon:g} {n:.0e}"
    yield BenchmarkRow(name, next(enough, 1.0), "share", reference)
    if reference is not None and reference < _SHARES[-1]:
        hits = recoveries(_SHARES[_SHARES.index(reference) + 1], 100)
        yield BenchmarkRow(f"{name} above", hits, "of 100", 90)


def error_rows() -> Iterator[BenchmarkRow]:
    """Yield GLPS-HH's error, compared with the bound of theorem 4.2 with a constant of 2."""
    for power in range(6, 11):
        yield BenchmarkRow(f"GLPS error 1e{power}", glps_error(10**power), "of bound", 2)


def main() -> None:
    """Measure, and print a table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--all", action="store_true", help="Try every n and epsilon.")
    parser.add_argument("--noise", nargs="*", choices=_NOISES, default=[], help="Noises to try.")
    options = parser.parse_args()
    rows = [row for case in cases(options.noise, options.all) for row in smallest_share_rows(*case)]
    report([*rows, *error_rows()], "reference", options.json)


if __name__ == "__main__":
    main()
