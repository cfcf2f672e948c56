"""One cohort's secure sum beside the floor that its masks alone would cost.

    python -m benchmarks.secagg [--clients 100 --clients 1000] [--words 100000] [--json PATH]

The floor is measured in the same run: AES-128-CTR keystream into a buffer and an in-place
add of uint32, as often as there are masks. A client has k + 1 masks; unmasking takes off one
for each survivor and one for each pair of a lost participant and a surviving neighbour.
`ratio` is value / reference. Times are process CPU seconds of one thread, because the
machines are shared; phases of a client are means over all clients of the cohort.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.rows import Row, report
from protocol.messages import pack_envelopes, pack_reveal
from secagg.aggregator import Heard, digest, unmask
from secagg.graph import Assumptions, parameters
from secagg.keys import PublicKeys, Stream
from secagg.participant import Cohort, Masked, Reveal, Shared, join
from secagg.ring import Lane, Ring, Vector

ASSUMPTIONS = Assumptions(corrupt=0.2, dropout=0.2)


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


def floor(words: int, repeats: int = 30) -> float:
    """Return the least CPU seconds of one mask: keystream into a buffer, add in place."""
    buffer, total = np.empty(words, np.uint32), np.zeros(words, np.uint32)
    times = []
    for _ in range(repeats):
        start = time.process_time()
        Stream(bytes(16)).fill(buffer)
        np.add(total, buffer, out=total)
        times.append(time.process_time() - start)
    return min(times)


@dataclass(slots=True)
class Bench:
    """A cohort of `n` over `words` 32-bit words, run once up to the masked sum."""

    n: int
    words: int
    progress: Callable[[], None]
    watch: Stopwatch = field(default_factory=Stopwatch)
    commitments: dict[int, bytes] = field(default_factory=dict)
    rng: Random = field(default_factory=SystemRandom)

    def run(self) -> list[Row]:
        """Return the figures of this cohort."""
        ring = Ring((Lane(2**32, self.words),))
        cohort, keys, shared, inbox, envelope_bytes = self._set_up()
        lost = set(range(0, self.n, 10))
        vector = ring.vector([np.arange(self.words)])
        masked: dict[int, Masked] = {}
        sums = {"all": ring.zero(), "lost": ring.zero()}
        for slot, state in shared.items():
            with self.watch.time("mask"):
                masked[slot], out = state.mask(inbox.pop(slot), ring, vector)
                body = ring.pack(out)
            ring.add(sums["lost" if slot in lost else "all"], ring.unpack(body))
            self.progress()
        kept, everybody = sums["all"], tuple(lane.copy() for lane in sums["all"])
        ring.add(everybody, sums["lost"])
        rows = []
        for name, total, gone in (("0% lost", everybody, set[int]()), ("10% lost", kept, lost)):
            heard = self._reveal(cohort, keys, masked, gone)
            rows.append(self._unmask(cohort, ring, heard, total, (name, vector)))
        reveal_bytes = len(pack_reveal(next(iter(heard.reveals.values()))))
        return [*self._client_rows(cohort, ring, envelope_bytes + reveal_bytes), *rows]

    def _set_up(
        self,
    ) -> tuple[Cohort, dict[int, PublicKeys], dict[int, Shared], dict[int, dict[int, bytes]], int]:
        joined = []
        for _ in range(self.n):
            with self.watch.time("join"):
                joined.append(join(self.rng))
        keys = {slot: state.public for slot, state in enumerate(joined)}
        self.commitments = {slot: state.commitment for slot, state in enumerate(joined)}
        cohort = Cohort(
            session=self.rng.randbytes(32),
            parameters=parameters(self.n, ASSUMPTIONS),
            assumptions=ASSUMPTIONS,
            seed=self.rng.randbytes(32),
            digest=digest(keys),
        )
        shared: dict[int, Shared] = {}
        inbox: dict[int, dict[int, bytes]] = {slot: {} for slot in keys}
        body = b""
        for slot, state in enumerate(joined):
            with self.watch.time("share"):
                neighbours = {other: keys[other] for other in cohort.graph.neighbours(slot)}
                shared[slot], sent = state.share(slot, cohort, neighbours, self.rng)
                body = pack_envelopes(sent)
            for receiver, envelope in sent.items():
                inbox[receiver][slot] = envelope
            self.progress()
        return cohort, keys, shared, inbox, len(body)

    def _reveal(
        self,
        cohort: Cohort,
        keys: dict[int, PublicKeys],
        masked: dict[int, Masked],
        lost: set[int],
    ) -> Heard:
        survivors = masked.keys() - lost
        reveals: dict[int, Reveal] = {}
        for slot in survivors:
            state = masked[slot]
            again = Masked(state.slot, cohort, state.held)  # a state answers once only
            with self.watch.time(f"reveal {bool(lost)}"):
                reveals[slot] = again.reveal(survivors, lost)
        return Heard(keys, self.commitments, masked.keys(), survivors, reveals)

    def _unmask(
        self, cohort: Cohort, ring: Ring, heard: Heard, total: Vector, case: tuple[str, Vector]
    ) -> Row:
        name, vector = case
        start = time.process_time()
        found = unmask(cohort, ring, heard, total).total
        seconds = time.process_time() - start
        survivors = set(heard.survivors)
        expected = vector[0] * np.uint32(len(survivors))
        if not np.array_equal(found[0], expected):
            raise SystemExit(f"n={self.n}, {name}: the sum is wrong")
        masks = len(survivors) + sum(
            len(survivors.intersection(cohort.graph.neighbours(slot)))
            for slot in set(heard.shared) - survivors
        )
        reference = masks * floor(self.words)
        what = f"server: unmask, n={self.n}, {name}, {masks:,} masks"
        return Row(what, seconds, "s", reference, seconds / reference)

    def _client_rows(self, cohort: Cohort, ring: Ring, extra_bytes: int) -> list[Row]:
        spent = self.watch.seconds
        each = {name: spent[name] / self.n * 1e3 for name in ("join", "share", "mask")}
        each["reveal"] = spent["reveal False"] / self.n * 1e3
        k, t = cohort.parameters.degree, cohort.parameters.threshold
        rows = [Row(f"client: {name}, n={self.n}", ms, "ms") for name, ms in each.items()]
        reference = (k + 1) * floor(self.words) * 1e3
        total = sum(each.values())
        name = f"client: all phases, n={self.n}, k={k}, t={t}"
        rows.append(Row(name, total, "ms", reference, total / reference))
        upload = ring.nbytes + extra_bytes
        name = f"client: upload, n={self.n}, {self.words:,} words"
        rows.append(Row(name, upload, "B", ring.nbytes, upload / ring.nbytes))
        return rows


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, action="append", help="default: 100 and 1000")
    parser.add_argument("--words", type=int, default=100_000, help="32-bit words of a vector")
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    arguments = parser.parse_args()
    rows = [
        Row(f"floor: one mask of {arguments.words:,} words", floor(arguments.words) * 1e3, "ms")
    ]
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        for n in arguments.clients or [100, 1_000]:
            task = progress.add_task(f"cohort of {n}", total=2 * n)
            rows += Bench(n, arguments.words, partial(progress.advance, task)).run()
    report(rows, "floor", arguments.json)


if __name__ == "__main__":
    main()
