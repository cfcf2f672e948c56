"""Harness of all benchmarks: options, CPU seconds, rows of figures, and floors of primitives.

    mask           AES-128-CTR keystream into a buffer, and an in-place add of uint32
    agreement      X25519
    verification   Ed25519
    arrival        SHA-256 of a packed vector, and an in-place add of it
    hash           SHA-256 of a packed vector
    envelope       SHA-256 of a share to commit to it, SHA-256 for the pad that encrypts it

Floors are measured here and now among the work they are compared with: on a shared machine the same
work takes a fifth more from one minute to the next. So floors are means as the values are, of
bursts between pieces of the work; the first call of a burst fills the caches and does not count.
"""

import json
import subprocess
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from secagg.keys import Identity, KeyPair, Keystream, is_signed
from secagg.parameters import Assumptions, choose_parameters
from secagg.shares import SHARE_PAIR_BYTES

CALLS_PER_BURST = 10


@dataclass(frozen=True, slots=True)
class BenchmarkRow:
    """One figure: its name, its value in a unit, and the reference that it is compared with."""

    name: str
    value: float
    unit: str
    reference: float | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.reference else None


def argument_parser(docstring: str | None) -> ArgumentParser:
    """Return a parser with the option --json, described by the docstring of a benchmark."""
    parser = ArgumentParser(description=docstring, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="File for the rows as JSON.")
    return parser


def report(rows: Sequence[BenchmarkRow], reference: str, path: Path | None) -> None:
    """Print `rows`, with `reference` as the heading of their references; write JSON to `path`."""
    table = Table()
    for heading in ("figure", "value", "unit", reference, "ratio"):
        table.add_column(heading, justify="left" if heading in ("figure", "unit") else "right")
    for row in rows:
        digits = 0 if row.unit == "B" else 3
        compared = "" if row.reference is None else f"{row.reference:,.{digits}f}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(row.name, f"{row.value:,.{digits}f}", row.unit, compared, ratio)
    Console(width=100).print(table)
    if path:
        rows_as_json = [asdict(row) | {"ratio": row.ratio} for row in rows]
        path.write_text(json.dumps(rows_as_json, indent=2) + "\n")


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds that `work` takes once."""
    start = time.process_time()
    work()
    return time.process_time() - start


def fastest_cpu_seconds(
    work: Callable[[], object], seconds: float = 1.0, min_runs: int = 3
) -> float:
    """Return the smallest CPU seconds of `work`, over `seconds` and at least `min_runs` runs."""
    times, end = list[float](), time.process_time() + seconds
    while len(times) < min_runs or time.process_time() < end:
        times.append(cpu_seconds(work))
    return min(times)


def run_peer(python: str, program: str, request: object) -> Any:  # noqa: ANN401 - as JSON has it
    """Return the JSON that `program` prints in another interpreter, with `request` on its stdin."""
    done = subprocess.run(  # noqa: S603 - the interpreter is the caller's choice
        [python, "-c", program],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@dataclass(slots=True)
class Stopwatch:
    """CPU seconds by name."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Add the CPU time of the block to `name`."""
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


class Floors:
    """Mean CPU seconds of each primitive over all bursts, for vectors of `words` 32-bit words."""

    def __init__(self, words: int) -> None:
        self._work = _primitives(words)
        self._seconds = dict.fromkeys(self._work, 0.0)
        self._calls = 0

    def measure(self, bursts: int = 1) -> None:
        """Measure each primitive in some more bursts."""
        for name, work in list(self._work.items()) * bursts:
            work()
            self._seconds[name] += cpu_seconds(partial(_burst, work))
        self._calls += CALLS_PER_BURST * bursts

    def __getitem__(self, name: str) -> float:
        return self._seconds[name] / self._calls


def _burst(work: Callable[[], object]) -> None:
    for _ in range(CALLS_PER_BURST):
        work()


def device_floor(floors: Floors, neighbours: float, sealing: float, verifications: int) -> float:
    """Return the seconds of a device's masks, agreements and verifications in one sum.

    It masks with its `neighbours`, and encrypts shares for, or decrypts those of, `sealing` others.
    """
    return (
        (neighbours + 1) * floors["mask"]
        + (2 + neighbours + sealing) * floors["agreement"]
        + verifications * floors["verification"]
    )


def sealing_floor(floors: Floors, holders: int) -> float:
    """Return the seconds of a device's other work: its vector's hash to sign, and envelopes.

    There are four sets of envelopes: of the mask key and of the seed, made and decrypted.
    """
    return floors["hash"] + 4 * holders * floors["envelope"]


def shares_floor(floors: Floors, n: int, holders: int, vector_bytes: int) -> float:
    """Return the seconds of hashing all share pairs, which other floors leave out.

    Each of `n` signs those that it sends, and those that it receives.
    """
    return 2 * n * floors["hash"] / vector_bytes * holders * SHARE_PAIR_BYTES


def device_primitives(assumptions: Assumptions, n: int, floors: Floors) -> float:
    """Return the CPU seconds that a device in a cohort of `n` spends on primitives."""
    p = choose_parameters(n, assumptions)
    neighbours = 2 * p.holders - p.holders**2 / (n - 1)  # selected by it, or selecting it
    device = device_floor(floors, neighbours, neighbours, p.holders + p.spot_checks)
    return device + sealing_floor(floors, p.holders)


def server_primitives(assumptions: Assumptions, n: int, nbytes: int, floors: Floors) -> float:
    """Return the CPU seconds of its server's primitives for one device with `nbytes` of vector."""
    server = 4 * floors["verification"] + floors["arrival"] + floors["mask"]
    holders = choose_parameters(n, assumptions).holders
    return server + shares_floor(floors, n, holders, nbytes) / n


def _primitives(words: int) -> dict[str, Callable[[], object]]:
    buffer, total = np.empty(words, np.uint32), np.zeros(words, np.uint32)
    own_keys, peer_key = KeyPair.generate(Random(1)), KeyPair.generate(Random(2)).public
    identity, packed = Identity.generate(Random(3)), bytes(4 * words)
    message, share, bound = bytes(96), bytes(33), bytes(96)
    signature = identity.sign(message)

    def mask() -> None:
        Keystream(bytes(16)).fill(buffer)
        np.add(total, buffer, out=total)

    def arrival() -> None:
        sha256(packed).digest()
        np.add(total, np.frombuffer(packed, np.uint32), out=total)

    def envelope() -> None:
        sha256(share).digest()
        sha256(bound).digest()

    return {
        "mask": mask,
        "agreement": lambda: own_keys.agree(peer_key),
        "verification": lambda: is_signed(identity.public, message, signature),
        "arrival": arrival,
        "hash": lambda: sha256(packed).digest(),
        "envelope": envelope,
    }
