"""Growth of a service over many rounds: its memory, and its database on SQLite.

    python -m benchmarks.service_growth [--rounds N] [--devices D] [--words W] [--json PATH]

A `blindtally serve` plays one round after another, each of another study, with the devices of
`benchmarks.service` and its checks. After each round there is one row: resident memory of the
server, the file of the database, and what is used in it. After the tenth round memory is flat, and
2 kB of a device stay in the file.
"""

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.harness import BenchmarkRow, argument_parser, report
from benchmarks.secure_sums.meters import CostMeter, ReplicaProcess
from benchmarks.service import measure_round, study_request

# Fraction of corrupt devices, and of dropouts, that the plan assumes.
_RATE = 0.1
_MAX_COHORT_SIZE = 1_000
# The server deletes the bodies of a round during this pause.
_PAUSE_SECONDS = 1.0


def used_bytes(database: Path) -> int:
    """Return the bytes of the pages that hold something."""
    with closing(sqlite3.connect(database)) as connection:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def main() -> None:
    """Play rounds, print a table, and write JSON rows if asked."""
    parser = argument_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--words", type=int, default=5_000, help="32-bit words of a vector.")
    options = parser.parse_args()
    rows = list[BenchmarkRow]()
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "growth.db"
        with ReplicaProcess(Path(folder), f"sqlite:///{database}") as server:
            for number in range(1, options.rounds + 1):
                meter = CostMeter([server.process], None)
                request = study_request(options.devices, options.words, _MAX_COHORT_SIZE, _RATE)
                measure_round(request, [server], meter)
                time.sleep(_PAUSE_SECONDS)
                for name, nbytes in (
                    ("memory", server.process.memory_info().rss),
                    ("database file", database.stat().st_size),
                    ("used in it", used_bytes(database)),
                ):
                    rows.append(BenchmarkRow(f"round {number}: {name}", nbytes / 2**20, "MiB"))
    report(rows, "", options.json)


if __name__ == "__main__":
    main()
