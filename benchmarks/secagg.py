"""One cohort's secure sum, compared with the floor that its primitives alone would cost.

    python -m benchmarks.secagg [--devices N ...] [--words W ...] [--peer PYTHON] [--json PATH]

The floors are measured among the work that they are compared with (`secure_sums/floors.py`):
keystream and add, an X25519 agreement, an Ed25519 verification, SHA-256 of arriving vectors, each
in the number that the protocol needs. `ratio` is value / reference. Rows that end in "too" repeat
the row before with work that every implementation of the protocol has: the hashes of the vector
and of shares, and envelopes. Times are process CPU seconds of one thread, because the machines are
shared; a device's are means over all devices of the cohort, and include reading the server's
messages. A server checks the messages, adds the vectors, determines the shares to reveal, and
unmasks the sum: one row has all of it. The messages of 100 devices in a phase are checked in a row.
The garbage collector is off: no device holds the state of a thousand others. The shares to reveal
are determined twice, and the second time counts: the first may be the first use of memory at all,
for which a virtual machine takes three times as long. In a cohort of 10,000 a sample is checked and
unmasked, and scaled up (`secure_sums/sampled_server.py`). `--peer` is an interpreter that has flwr:
its SecAgg+ plays the same sums in the same run, and `ratio` is its time / ours. Ours are secure
against an active server, Flower's against a semi-honest one.
"""

import sys
from functools import partial

from rich.console import Console
from rich.progress import Progress

from benchmarks.harness import BenchmarkRow, argument_parser, report
from benchmarks.secure_sums.cohort import DROPOUT_SHARES, MIN_SAMPLED_DEVICES, CohortBenchmark
from benchmarks.secure_sums.floors import Floors
from benchmarks.secure_sums.flower import flower_rows

WARM_UP_PARTICIPANTS = 30  # participants of a cohort that is not reported: imports, tables, caches


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--devices", type=int, action="append", help="100, 1,000 and 10,000")
    parser.add_argument("--words", type=int, action="append", help="10,000 and 100,000")
    parser.add_argument("--peer", help="An interpreter that has flwr.")
    options = parser.parse_args()
    rows = list[BenchmarkRow]()
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        for words in options.words or [10_000, 100_000]:
            floors = Floors(words)
            floors.measure()
            CohortBenchmark(WARM_UP_PARTICIPANTS, words, lambda: None, Floors(words)).run()
            for n in options.devices or [100, 1_000, MIN_SAMPLED_DEVICES]:
                steps = len(DROPOUT_SHARES) if n >= MIN_SAMPLED_DEVICES else 2 * n
                task = progress.add_task(f"{n:,} devices", total=steps)
                advance = partial(progress.advance, task)
                ours = CohortBenchmark(n, words, advance, floors).run()
                rows += ours
                if options.peer and n < MIN_SAMPLED_DEVICES:
                    rows += flower_rows(options.peer, n, words, ours)
    report(rows, "floor", options.json)


if __name__ == "__main__":
    main()
