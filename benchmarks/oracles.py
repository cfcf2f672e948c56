"""Frequency oracles: reports encoded per second, and seconds to decode a whole dictionary.

    python -m benchmarks.oracles [--reports N] [--json PATH] [--peer PYTHON]

All figures are one thread's CPU time, next to their goals. The
values are Zipf's over 100,000; a million reports are decoded by the fast paths only. With
--peer, an interpreter that has pure-ldp (its wheel needs xxhash < 4, numpy < 2, scikit-learn
and statsmodels) aggregates a few reports by its optimised local hashing (OLH), and by its faster
variant (FastOLH), whose devices choose among 1,000 hash functions that its server tabulates when it
is made. Their times for n = d = 100,000 are extrapolated: OLH takes a step for each report and
value, FastOLH for each function and value. Their errors are compared with ours, in the mean of 20
runs, for the same values and epsilon.
"""

from functools import partial

import numpy as np

from benchmarks.harness import BenchmarkRow, argument_parser, fastest_cpu_seconds, report, run_peer
from protocol.numerics.array_types import ItemValues
from protocol.oracles.hadamard import Hadamard
from protocol.oracles.ocms.hash_range_mixture import OcmsMixture
from protocol.oracles.ocms.hashed import Ocms
from protocol.oracles.ocms.ocms_gf import OcmsGf
from protocol.oracles.oracle import Oracle
from protocol.randomness import seeded_words, system_words
from protocol.reference_mechanisms.oracles.local_hashing import LocalHashing

_DOMAIN = 100_000
_ENCODED = 1_000_000
_PEER_EPSILON = 3.0
_PEER_REPORTS, _PEER_DOMAIN, _PEER_RUNS, _PEER_FUNCTIONS = 1000, 1000, 20, 1000

# Program for the peer's interpreter. Each of two servers aggregates reports of the values on
# stdin; it prints the seconds to make it, the smallest to decode, and the mean squared error.
_PEER_PROGRAM = """
import copy, json, sys, time
from pure_ldp.frequency_oracles import local_hashing
import numpy as np
request = json.load(sys.stdin)
d, k, values = request["domain"], request["functions"], np.array(request["values"])
true = np.bincount(values, minlength=d)

def measure(client, make_server):
    start = time.process_time()
    empty = make_server()
    made, seconds, errors = time.process_time() - start, [], []
    for run in range(request["runs"]):
        server = copy.deepcopy(empty)
        reports = [client.privatise(value + 1) for value in request["values"]]
        start = time.process_time()
        for report in reports:
            server.aggregate(report)
        estimates = server.estimate_all(range(1, d + 1), suppress_warnings=True)
        seconds.append(time.process_time() - start)
        errors.append((((np.array(estimates) - true) / len(values)) ** 2).sum())
    return {"made": made, "seconds": min(seconds), "error": float(np.mean(errors))}

given = {"epsilon": request["epsilon"], "d": d, "use_olh": True}
olh = local_hashing.LHClient(**given), lambda: local_hashing.LHServer(**given)
fast = local_hashing.FastLHClient(**given, k=k), lambda: local_hashing.FastLHServer(**given, k=k)
json.dump({"OLH": measure(*olh), "FastOLH": measure(*fast)}, sys.stdout)
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
    """Return the rows of the peer's two ways of local hashing, and of our oracles."""
    some = values[values < _PEER_DOMAIN][:_PEER_REPORTS]
    request = {"epsilon": _PEER_EPSILON, "domain": _PEER_DOMAIN, "runs": _PEER_RUNS}
    request |= {"functions": _PEER_FUNCTIONS, "values": some.tolist()}
    peer = run_peer(python, _PEER_PROGRAM, request)
    slow, fast = peer["OLH"], peer["FastOLH"]
    growth = _DOMAIN / _PEER_DOMAIN  # of the reports, and of the domain
    slow_seconds, fast_seconds = slow["seconds"] * growth**2, fast["seconds"] * growth
    size = f"n = {len(some):,}, d = {_PEER_DOMAIN:,}"
    large = f"n = d = {_DOMAIN:,}, extrapolated"
    rows = [
        BenchmarkRow(f"pure-ldp OLH, {size}", slow["seconds"], "s"),
        BenchmarkRow(f"pure-ldp OLH, {large}", slow_seconds, "s"),
        BenchmarkRow(f"pure-ldp FastOLH, {size}", fast["seconds"], "s"),
        BenchmarkRow(f"pure-ldp FastOLH, {large}", fast_seconds, "s"),
        BenchmarkRow(f"pure-ldp FastOLH, its table, {large}", fast["made"] * growth, "s"),
    ]
    for oracle in (
        OcmsGf.for_l2(_PEER_EPSILON, _DOMAIN),
        OcmsGf.for_mse(_PEER_EPSILON, _DOMAIN),
        Ocms.for_l2(_PEER_EPSILON, _DOMAIN),
        LocalHashing.for_l2(_PEER_EPSILON, _DOMAIN),
    ):
        seconds = decoding_row(oracle, values, None).value
        name = describe_oracle(oracle)
        rows.append(
            BenchmarkRow(f"{name}: times faster than OLH", slow_seconds / seconds, "", 1000)
        )
        rows.append(BenchmarkRow(f"{name}: times faster than FastOLH", fast_seconds / seconds, ""))
    for small in (
        Ocms.for_l2(_PEER_EPSILON, _PEER_DOMAIN),
        OcmsGf.for_l2(_PEER_EPSILON, _PEER_DOMAIN),
    ):
        error = mean_squared_error(small, some)
        name = f"squared error of {describe_oracle(small)}, compared with"
        rows.append(BenchmarkRow(f"{name} OLH", error, "", slow["error"]))
        rows.append(BenchmarkRow(f"{name} FastOLH", error, "", fast["error"]))
    return rows


def mean_squared_error(oracle: Oracle, values: ItemValues) -> float:
    """Return the sum of squared errors, the mean of the peer's number of runs."""
    true = np.bincount(values.astype(np.int64), minlength=_PEER_DOMAIN) / len(values)
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
    for each, goal in zip([*paper, *fast], goals, strict=True):
        rows.append(decoding_row(each, values, goal))
    rows += [decoding_row(each, values, None) for each in without_goal]
    rows += [decoding_row(each, many, None) for each in fast]
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
