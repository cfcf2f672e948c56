"""Frequency oracles: reports encoded per second, and seconds to decode a whole dictionary.

    python -m benchmarks.oracles [--reports N] [--json PATH] [--peer PYTHON]

All figures are one thread's CPU time, next to their goals. The
values are Zipf's over 100,000; a million reports are decoded by the fast paths only. With
--peer, an interpreter that has pure-ldp (its wheel needs xxhash < 4, numpy < 2, scikit-learn
and statsmodels) aggregates a few reports by its optimised local hashing: its time for n = d =
100,000 is extrapolated, since it takes a step for each report and value, and its errors are
compared with ours, in the mean of 20 runs, for the same values and epsilon.
"""

from functools import partial

import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, fastest_cpu_seconds, report, run_peer
from protocol.numerics.arrays import Frequencies, ItemValues
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.local_hashing import LocalHashing
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.randomness import seeded_words, system_words

_DOMAIN = 100_000
_ENCODED = 1_000_000
_PEER_EPSILON = 3.0
_PEER_REPORTS, _PEER_DOMAIN, _PEER_RUNS = 1000, 1000, 20

# Program for the peer's interpreter: reports of the values on stdin, each aggregated by its server;
# the smallest seconds and the mean squared error on stdout.
_PEER_PROGRAM = """
import json, sys, time
from pure_ldp.frequency_oracles.local_hashing import LHClient, LHServer
import numpy as np
request = json.load(sys.stdin)
epsilon, d = request["epsilon"], request["domain"]
values = np.array(request["values"])
true, seconds, errors = np.bincount(values, minlength=d), [], []
for run in range(request["runs"]):
    client, server = LHClient(epsilon, d, use_olh=True), LHServer(epsilon, d, use_olh=True)
    reports = [client.privatise(value + 1) for value in request["values"]]
    start = time.process_time()
    for report in reports:
        server.aggregate(report)
    estimates = server.estimate_all(range(1, d + 1), suppress_warnings=True)
    seconds.append(time.process_time() - start)
    errors.append((((np.array(estimates) - true) / len(values)) ** 2).sum())
json.dump({"seconds": min(seconds), "error": float(np.mean(errors))}, sys.stdout)
"""


def zipf(count: int, domain: int, rng: np.random.Generator) -> ItemValues:
    """Return the values of `count` devices, of `domain` values, the first most frequent."""
    weights = 1 / np.arange(1, domain + 1)
    return rng.choice(domain, count, p=weights / weights.sum()).astype(np.uint64)


def encoding_rows(oracle: Oracle, values: ItemValues) -> list[BenchmarkRow]:
    """Return the rows of encoding, by a seed and by the system's randomness."""
    rows = []
    for source, chance, goal in (
        ("a seed", seeded_words(np.random.default_rng(1)), 5.0),
        ("the system", system_words, 2.0),
    ):
        seconds = fastest_cpu_seconds(partial(oracle.perturb, values, chance), seconds=0)
        name = f"encode {describe_oracle(oracle)}, {source}"
        rows.append(BenchmarkRow(name, len(values) / seconds / 1e6, "M reports/s", goal))
    return rows


def decoding_row(oracle: Oracle, values: ItemValues, goal: float | None) -> BenchmarkRow:
    """Return the row of decoding the whole dictionary from the bytes of reports."""
    reports = oracle.perturb(values, seeded_words(np.random.default_rng(2)))
    oracle.estimate(reports[:10])  # imports
    runs = 3 if len(values) <= _DOMAIN else 1
    seconds = fastest_cpu_seconds(partial(oracle.estimate, reports), seconds=0, min_runs=runs)
    name = f"decode {describe_oracle(oracle)}, n = {len(values):,}"
    return BenchmarkRow(name, seconds, "s", goal)


def describe_oracle(oracle: Oracle) -> str:
    """Return the oracle's name with its range and epsilon."""
    ranges = [
        f" {key} = {value}"
        for key, value in oracle.parameters.items()
        if key in ("m", "q", "g", "first", "second")
    ]
    return f"{oracle.name}{','.join(ranges)}, eps {oracle.epsilon:g}"


def size_rows() -> list[BenchmarkRow]:
    """Return the rows of bits per report."""
    rows = []
    for kind, expected in ((OcmsGf, (20, 22, 23)), (Ocms, (36, 37, 38))):
        for epsilon, bits in zip((1.0, 3.0, 5.0), expected, strict=True):
            oracle = kind.for_mse(epsilon, _DOMAIN)
            rows.append(
                BenchmarkRow(f"bits of {describe_oracle(oracle)}", oracle.bits, "bits", bits)
            )
    return rows


def peer_rows(python: str, values: ItemValues) -> list[BenchmarkRow]:
    """Return the rows of the peer's optimised local hashing and of our oracles."""
    some = values[values < _PEER_DOMAIN][:_PEER_REPORTS]
    request = {"epsilon": _PEER_EPSILON, "domain": _PEER_DOMAIN, "runs": _PEER_RUNS}
    peer = run_peer(python, _PEER_PROGRAM, request | {"values": some.tolist()})
    true = np.bincount(some.astype(np.int64), minlength=_PEER_DOMAIN) / len(some)
    peer_seconds = peer["seconds"] * _DOMAIN**2 / (len(some) * _PEER_DOMAIN)
    rows = [
        BenchmarkRow(
            f"pure-ldp OLH, n = {len(some):,}, d = {_PEER_DOMAIN:,}", peer["seconds"], "s"
        ),
        BenchmarkRow("pure-ldp OLH, n = d = 100,000, extrapolated", peer_seconds, "s"),
    ]
    for oracle in (
        OcmsGf.for_l2(_PEER_EPSILON, _DOMAIN),
        OcmsGf.for_mse(_PEER_EPSILON, _DOMAIN),
        Ocms.for_l2(_PEER_EPSILON, _DOMAIN),
        LocalHashing.for_l2(_PEER_EPSILON, _DOMAIN),
    ):
        speedup = peer_seconds / decoding_row(oracle, values, None).value
        rows.append(BenchmarkRow(f"{describe_oracle(oracle)}: times faster", speedup, "", 1000))
    for small in (
        Ocms.for_l2(_PEER_EPSILON, _PEER_DOMAIN),
        OcmsGf.for_l2(_PEER_EPSILON, _PEER_DOMAIN),
    ):
        error = mean_squared_error(small, some, true)
        name = f"squared error of {describe_oracle(small)}, compared with pure-ldp's"
        rows.append(BenchmarkRow(name, error, "", peer["error"]))
    return rows


def mean_squared_error(oracle: Oracle, values: ItemValues, true: Frequencies) -> float:
    """Return the sum of squared errors, the mean of the peer's number of runs."""
    errors = []
    for seed in range(_PEER_RUNS):
        reports = oracle.perturb(values, seeded_words(np.random.default_rng(seed)))
        errors.append(((oracle.estimate(reports) - true) ** 2).sum())
    return float(np.mean(errors))


def oracle_rows(count: int) -> list[BenchmarkRow]:
    """Return all rows except the peer's."""
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
    epsilons = (1.0, 2.0, 3.0, 4.0, 5.0)
    paper: list[Oracle] = [Ocms.for_mse(1.0, _DOMAIN), Ocms.for_mse(5.0, _DOMAIN)]
    fast: list[Oracle] = [OcmsGf.for_mse(epsilon, _DOMAIN) for epsilon in epsilons]
    fast.append(Hadamard(1.0, _DOMAIN))
    goals = [6.0, 2.0, *(0.3 for _ in epsilons), 0.02]
    without_goal: list[Oracle] = [
        OcmsMixture.for_mse(3.0, _DOMAIN),
        OcmsGf.for_l2(5.0, _DOMAIN),
    ]
    for oracle, goal in zip([*paper, *fast], goals, strict=True):
        rows.append(decoding_row(oracle, values, goal))
    rows += [decoding_row(oracle, values, None) for oracle in without_goal]
    rows += [decoding_row(oracle, many, None) for oracle in fast]
    rows.append(decoding_row(Ocms.for_l2(5.0, _DOMAIN), many, None))
    return rows + size_rows()


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--reports", type=int, default=1_000_000, help="Reports of large decodes.")
    parser.add_argument("--peer", metavar="PYTHON", help="An interpreter that has pure-ldp.")
    options = parser.parse_args()
    rows = oracle_rows(options.reports)
    if options.peer:
        rows += peer_rows(options.peer, zipf(_DOMAIN, _DOMAIN, np.random.default_rng(1)))
    report(rows, "goal", options.json)


if __name__ == "__main__":
    main()
