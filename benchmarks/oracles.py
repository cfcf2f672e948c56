"""Frequency oracles: reports encoded a second, and seconds to decode a whole dictionary.

    python -m benchmarks.oracles [--reports N] [--json PATH] [--peer PYTHON]

All is one thread's CPU time, kernels compiled before. Goals stand beside the figures. The
values are Zipf's over 100,000; a million reports are decoded by the fast paths only. With
--peer, an interpreter that has pure-ldp (its wheel needs xxhash < 4, numpy < 2, scikit-learn
and statsmodels) aggregates a few reports by its optimised local hashing: its time for n = d =
100,000 is extrapolated, since it takes a step for each report and value, and its errors are
measured beside ours, in the mean of 20 runs, for the same values and epsilon.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.rows import BenchmarkRow, report
from protocol.arrays import ItemValues, PackedReports
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.ocms.galois import OcmsGf
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.mixture import OcmsMixture
from protocol.oracles.oracle import Oracle
from protocol.randomness import RandomWords, seeded_words, system_words

_DOMAIN = 100_000
_ENCODED = 1_000_000
_PEER_EPSILON = 3.0
_PEER_REPORTS, _PEER_DOMAIN, _PEER_RUNS = 1000, 1000, 20

# What runs in the peer's interpreter: reports of the values on stdin, each aggregated by its
# server; least seconds and mean squared error on stdout.
_PEER_PROGRAM = """
import json, sys, time
from pure_ldp.frequency_oracles.local_hashing import LHClient, LHServer
import numpy as np
asked = json.load(sys.stdin)
epsilon, d = asked["epsilon"], asked["domain"]
values = np.array(asked["values"])
true, seconds, errors = np.bincount(values, minlength=d), [], []
for run in range(asked["runs"]):
    client, server = LHClient(epsilon, d, use_olh=True), LHServer(epsilon, d, use_olh=True)
    reports = [client.privatise(value + 1) for value in asked["values"]]
    start = time.process_time()
    for one in reports:
        server.aggregate(one)
    found = server.estimate_all(range(1, d + 1), suppress_warnings=True)
    seconds.append(time.process_time() - start)
    errors.append((((np.array(found) - true) / len(values)) ** 2).sum())
json.dump({"seconds": min(seconds), "error": float(np.mean(errors))}, sys.stdout)
"""


def zipf(count: int, domain: int, rng: np.random.Generator) -> ItemValues:
    """Return what `count` devices hold of `domain` values, the first most frequent."""
    weights = 1 / np.arange(1, domain + 1)
    return rng.choice(domain, count, p=weights / weights.sum()).astype(np.uint64)


def fastest_cpu_seconds(work: Callable[[], object], runs: int = 3) -> float:
    """Return the least CPU seconds that `work` takes."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def encoding_rows(oracle: Oracle, values: ItemValues) -> list[BenchmarkRow]:
    """Return the rows of encoding, by a seed and by the system's randomness."""
    rows = []
    sources: tuple[tuple[str, RandomWords, float], ...] = (
        ("a seed", seeded_words(np.random.default_rng(1)), 5.0),
        ("the system", system_words, 2.0),
    )
    for source, chance, goal in sources:
        seconds = fastest_cpu_seconds(lambda chance=chance: oracle.perturb(values, chance))  # type: ignore[misc]
        rate = len(values) / seconds / 1e6
        name = f"encode {describe_oracle(oracle)}, {source}"
        rows.append(BenchmarkRow(name, rate, "M reports/s", goal, rate / goal))
    return rows


def decoding_row(oracle: Oracle, values: ItemValues, goal: float | None) -> BenchmarkRow:
    """Return the row of decoding all of the dictionary from reports' bytes."""
    reports = oracle.perturb(values, seeded_words(np.random.default_rng(2)))
    oracle.estimate(reports[:10])  # compiles
    seconds = fastest_cpu_seconds(
        lambda: oracle.estimate(reports), 3 if len(values) <= _DOMAIN else 1
    )
    name = f"decode {describe_oracle(oracle)}, n = {len(values):,}"
    return BenchmarkRow(name, seconds, "s", goal, goal and seconds / goal)


def describe_oracle(oracle: Oracle) -> str:
    """Return the oracle's name with its range and epsilon."""
    ranges = [
        f" {key} = {value}"
        for key, value in oracle.parameters.items()
        if key in ("m", "q", "g", "first", "second")
    ]
    return f"{oracle.name}{','.join(ranges)}, eps {oracle.epsilon:g}"


def size_rows() -> list[BenchmarkRow]:
    """Return the rows of bits a report."""
    oracles = [OcmsGf.for_mse(epsilon, _DOMAIN) for epsilon in (1.0, 3.0, 5.0)]
    oracles_too = [Ocms.for_mse(epsilon, _DOMAIN) for epsilon in (1.0, 3.0, 5.0)]
    expected = (20, 22, 23), (36, 37, 38)
    rows = []
    for kinds, figures in zip((oracles, oracles_too), expected, strict=True):
        for oracle, figure in zip(kinds, figures, strict=True):
            name = f"bits of {describe_oracle(oracle)}"
            rows.append(BenchmarkRow(name, oracle.bits, "bits", figure, oracle.bits / figure))
    return rows


def peer_rows(python: str, values: ItemValues) -> list[BenchmarkRow]:
    """Return the rows of the peer's optimised local hashing and of ours."""
    some = values[values < _PEER_DOMAIN][:_PEER_REPORTS]
    asked: dict[str, object] = {
        "epsilon": _PEER_EPSILON,
        "domain": _PEER_DOMAIN,
        "runs": _PEER_RUNS,
    }
    asked["values"] = some.tolist()
    done = subprocess.run(  # noqa: S603 - the interpreter that was named
        [python, "-c", _PEER_PROGRAM],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    true = np.bincount(some.astype(np.int64), minlength=_PEER_DOMAIN) / len(some)
    steps = _DOMAIN**2 / (len(some) * _PEER_DOMAIN)
    whole = said["seconds"] * steps
    rows = [
        BenchmarkRow(f"pure-ldp OLH, n = {len(some):,}, d = {_PEER_DOMAIN:,}", said["seconds"], "s")
    ]
    rows.append(BenchmarkRow("pure-ldp OLH, n = d = 100,000, extrapolated", whole, "s"))
    for oracle in (
        OcmsGf.for_l2(_PEER_EPSILON, _DOMAIN),
        OcmsGf.for_mse(_PEER_EPSILON, _DOMAIN),
        Ocms.for_l2(_PEER_EPSILON, _DOMAIN),
        LocalHashing.for_l2(_PEER_EPSILON, _DOMAIN),
    ):
        ours = decoding_row(oracle, values, None).value
        rows.append(
            BenchmarkRow(
                f"{describe_oracle(oracle)}: times faster",
                whole / ours,
                "",
                1000,
                whole / ours / 1e3,
            )
        )
    for small in (
        Ocms.for_l2(_PEER_EPSILON, _PEER_DOMAIN),
        OcmsGf.for_l2(_PEER_EPSILON, _PEER_DOMAIN),
    ):
        found = squared_errors(small, some, true)
        name = f"squared error of {describe_oracle(small)}, beside pure-ldp's"
        rows.append(BenchmarkRow(name, found, "", said["error"], found / said["error"]))
    return rows


def squared_errors(oracle: Oracle, values: ItemValues, true: np.ndarray) -> float:
    """Return the mean sum of squared errors of as many runs as the peer's."""

    def run(seed: int) -> PackedReports:
        return oracle.perturb(values, seeded_words(np.random.default_rng(seed)))

    return float(
        np.mean([((oracle.estimate(run(s)) - true) ** 2).sum() for s in range(_PEER_RUNS)])
    )


def oracle_rows(count: int) -> list[BenchmarkRow]:
    """Return all rows but the peer's."""
    rng = np.random.default_rng(1)
    values, many = zipf(_DOMAIN, _DOMAIN, rng), zipf(count, _DOMAIN, rng)
    rows = []
    for oracle in (
        Ocms.for_mse(1.0, _DOMAIN),
        Ocms.for_mse(5.0, _DOMAIN),
        OcmsGf.for_mse(1.0, _DOMAIN),
        OcmsGf.for_mse(2.0, _DOMAIN),
        OcmsGf.for_mse(5.0, _DOMAIN),
        OcmsMixture.for_mse(3.0, _DOMAIN),
        Hadamard(1.0, _DOMAIN),
    ):
        rows += encoding_rows(oracle, zipf(_ENCODED, _DOMAIN, rng))
    paper: Sequence[tuple[Oracle, float]] = [
        (Ocms.for_mse(1.0, _DOMAIN), 6.0),
        (Ocms.for_mse(5.0, _DOMAIN), 2.0),
    ]
    fast: list[tuple[Oracle, float]] = [
        (OcmsGf.for_mse(epsilon, _DOMAIN), 0.3) for epsilon in (1.0, 2.0, 3.0, 4.0, 5.0)
    ]
    fast.append((Hadamard(1.0, _DOMAIN), 0.02))
    rows += [decoding_row(oracle, values, goal) for oracle, goal in [*paper, *fast]]
    rows.append(decoding_row(OcmsMixture.for_mse(3.0, _DOMAIN), values, None))
    rows.append(decoding_row(OcmsGf.for_l2(5.0, _DOMAIN), values, None))
    rows += [decoding_row(oracle, many, None) for oracle, _ in fast]
    rows.append(decoding_row(Ocms.for_l2(5.0, _DOMAIN), many, None))
    return rows + size_rows()


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reports", type=int, default=1_000_000, help="of the large decodes")
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has pure-ldp")
    arguments = parser.parse_args()
    rows = oracle_rows(arguments.reports)
    if arguments.peer:
        rows += peer_rows(arguments.peer, zipf(_DOMAIN, _DOMAIN, np.random.default_rng(1)))
    report(rows, "goal", arguments.json)


if __name__ == "__main__":
    main()
