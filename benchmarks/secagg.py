"""One cohort's secure sum beside the floor that its primitives alone would cost.

    python -m benchmarks.secagg [--clients N ...] [--words W ...] [--mode MODE ...] [--json PATH]

The floors are measured in the same run and process: AES-128-CTR keystream into a buffer and an
in-place add of uint32, an X25519 agreement, an Ed25519 verification, each as often as the
protocol asks for it. `ratio` is value / reference. Times are process CPU seconds of one
thread, because the machines are shared; a client's are means over all clients of the cohort.
A cohort of 10,000 is unmasked for a sample of its participants and scaled up.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random, SystemRandom

import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.rows import Row, report
from protocol.messages import pack_roster, pack_sharers, unpack_roster, unpack_sharers
from secagg.aggregator import (
    Settled,
    Unmasking,
    check_confirmation,
    check_reveal,
    check_shares,
    check_upload,
    settle_deals,
    unmask,
)
from secagg.cohort import Cohort, Entry, Sharer, View
from secagg.deals import KeyDeal, Reveal, SeedDeal, commit_seed
from secagg.keys import Identity, KeyPair, PublicKeys, Stream, is_signed
from secagg.parameters import Assumptions, Mode
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector
from secagg.shamir import split

MODES: tuple[Mode, ...] = ("semi-honest", "active")
LOST = (0.0, 0.1, 0.2)
SAMPLED = 10_000  # from so many clients on, the server's work is sampled
SAMPLE = 40


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


def least(work: Callable[[], object], repeats: int = 60) -> float:
    """Return the least CPU seconds that `work` takes."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@cache
def mask_floor(words: int) -> float:
    """Return the seconds of one mask: keystream into a buffer, add in place."""
    buffer, total = np.empty(words, np.uint32), np.zeros(words, np.uint32)

    def work() -> None:
        Stream(bytes(16)).fill(buffer)
        np.add(total, buffer, out=total)

    return least(work)


@cache
def agreement_floor() -> float:
    """Return the seconds of one X25519 agreement."""
    mine, theirs = KeyPair.generate(Random(1)), KeyPair.generate(Random(2)).public
    return least(lambda: mine.agree(theirs))


@cache
def verification_floor() -> float:
    """Return the seconds of one Ed25519 verification."""
    identity = Identity.generate(Random(3))
    signature = identity.sign(bytes(96))
    return least(lambda: is_signed(identity.public, bytes(96), signature))


@dataclass(slots=True)
class Bench:
    """A cohort of `n` in `mode` over `words` 32-bit words."""

    n: int
    words: int
    mode: Mode
    progress: Callable[[], None]
    watch: Stopwatch = field(default_factory=Stopwatch)
    rng: Random = field(default_factory=SystemRandom)
    deals: dict[int, KeyDeal] = field(default_factory=dict)
    seeds: dict[int, SeedDeal] = field(default_factory=dict)
    shared: dict[int, Shared] = field(default_factory=dict)
    masked: dict[int, Masked] = field(default_factory=dict)
    sums: dict[int, Vector] = field(default_factory=dict)  # of masked vectors, by slot modulo 10
    upload_bytes: int = 0
    reveal_bytes: int = 0

    @property
    def name(self) -> str:
        """Return what this is, for the rows."""
        return f"{self.mode}, n={self.n:,}, {self.words:,} words"

    @property
    def ring(self) -> Ring:
        """Return the ring of the vectors."""
        return Ring((Lane(2**32, self.words),))

    def run(self) -> list[Row]:
        """Return the figures of this cohort."""
        gc.collect()
        if self.n >= SAMPLED:
            return [self._unmask_sample(share) for share in LOST]
        view = self._share()
        gc.freeze()  # what we hold of a thousand devices, no device would have to look through
        self._mask(view)
        gc.freeze()
        rows = [self._unmask(view, share) for share in LOST]
        return [*self._client_rows(view), *rows, self._check_row()]

    def _join(self) -> tuple[list[Joined], Cohort]:
        joined = []
        for _ in range(self.n):
            identity = Identity.generate(self.rng)
            with self.watch.time("join"):
                joined.append(join(identity, self.rng))
        plan, assumptions = self.rng.randbytes(32), Assumptions(0.2, 0.2, mode=self.mode)
        roster = tuple(Entry(s.identity.public, s.public, s.advertise(plan)) for s in joined)
        return joined, Cohort(plan, 0, roster, assumptions)

    def _share(self) -> View:
        joined, cohort = self._join()
        roster = pack_roster(cohort.roster)
        for slot, state in enumerate(joined):
            if slot % 100 == 0:
                gc.freeze()
            with self.watch.time("share"):  # each device reads what it is told
                told = unpack_roster(roster, has_registrar=False)
                own = Cohort(cohort.plan, 0, told, cohort.assumptions)
                self.shared[slot], self.deals[slot] = state.share(slot, own, self.rng)
            self.shared[slot].cohort = cohort  # the same facts, held once
            with self.watch.time("check"):
                check_shares(cohort, slot, self.deals[slot])
            self.progress()
        return View(cohort, {slot: deal.sharer for slot, deal in self.deals.items()})

    def _mask(self, view: View) -> None:
        vector = self.ring.vector([np.arange(self.words)])
        sharers = pack_sharers(view.sharers)
        self.sums = {place: self.ring.zero() for place in range(10)}
        for slot, state in self.shared.items():
            with self.watch.time("mask"):
                told = View(state.cohort, unpack_sharers(sharers))
                assert told.label == view.label
                self.masked[slot], upload = state.mask(view, self.ring, vector, self.rng)
                body = upload.pack()
            with self.watch.time("check"):
                check_upload(view, slot, upload)
            self.upload_bytes = len(body) + len(self.deals[slot].pack())
            with self.watch.time("sum"):
                self.ring.add(self.sums[slot % 10], self.ring.unpack(upload.vector))
            self.seeds[slot] = upload.deal
            self.progress()

    def _unmask(self, view: View, share: float) -> Row:
        lost = {slot for slot in range(self.n) if slot % 10 < share * 10}
        total = self.ring.zero()
        for place in range(round(share * 10), 10):
            self.ring.add(total, self.sums[place])
        seeds = {slot: deal for slot, deal in self.seeds.items() if slot not in lost}
        settled = settle_deals(view, self.deals, seeds)
        reveals = self._reveal(settled, share)
        start = time.process_time()
        found = unmask(settled, self.ring, reveals, total).total
        seconds = time.process_time() - start
        if not np.array_equal(found[0], np.arange(self.words, dtype=np.uint32) * len(seeds)):
            raise SystemExit(f"{self.name}: the sum is wrong")
        pairs = sum(len(settled.survivors & view.graph[slot]) for slot in lost)
        return self._server_row(share, len(seeds), pairs, seconds)

    def _server_row(self, share: float, survivors: int, pairs: int, seconds: float) -> Row:
        reference = (survivors + pairs) * mask_floor(self.words) + pairs * agreement_floor()
        what = f"server: unmask, {self.name}, {share:.0%} lost, {survivors + pairs:,} masks"
        return Row(what, seconds, "s", reference, seconds / reference)

    def _reveal(self, settled: Settled, share: float) -> dict[int, Reveal]:
        signatures, confirmed, reveals = {}, dict[int, Confirmed](), {}
        for slot in settled.survivors:
            state = self.masked[slot]
            again = Masked(state.slot, state.view, state.joined, state.sealing, state.own_share)
            with self.watch.time(f"confirm {share}"):
                confirmed[slot], signatures[slot] = again.confirm(settled.survivors)
            with self.watch.time(f"check {share}"):
                check_confirmation(settled.view, slot, settled.survivors, signatures[slot])
        for slot, last in confirmed.items():
            with self.watch.time(f"reveal {share}"):
                reveals[slot] = last.reveal(signatures, settled.inboxes[slot], self.rng)
            with self.watch.time(f"check {share}"):
                check_reveal(settled, slot, reveals[slot])
        self.reveal_bytes = max(len(reveal.pack()) for reveal in reveals.values())
        return reveals

    def _client_rows(self, view: View) -> list[Row]:
        spent, p = self.watch.seconds, view.cohort.parameters
        phases = {"join": "join", "share": "share", "mask": "mask"}
        phases |= {"confirm": "confirm 0.0", "reveal": "reveal 0.0"}
        each = {phase: spent[name] / self.n * 1e3 for phase, name in phases.items()}
        rows = [Row(f"client: {phase}, {self.name}", ms, "ms") for phase, ms in each.items()]
        partners = sum(len(view.graph[slot]) for slot in range(self.n)) / self.n
        sealing = 2 * p.holders - (p.holders**2 / (self.n - 1))  # picked, or picked by
        agreements = 2 + partners + sealing
        verifications = p.holders + p.witnesses if self.mode == "active" else 0
        reference = 1e3 * (
            (partners + 1) * mask_floor(self.words)
            + agreements * agreement_floor()
            + verifications * verification_floor()
        )
        total = sum(each.values())
        counts = f"{partners + 1:.0f} masks, {agreements:.0f} agreements"
        name = f"client: all, {self.name}, {counts}, {verifications} verifications"
        rows.append(Row(name, total, "ms", reference, total / reference))
        upload = self.upload_bytes + self.reveal_bytes + 64  # and the confirmation
        packed = self.ring.nbytes
        rows.append(Row(f"client: upload, {self.name}", upload, "B", packed, upload / packed))
        return rows

    def _check_row(self) -> Row:
        spent = self.watch.seconds
        seconds = spent["check"] + spent["check 0.0"] + spent["sum"]
        reference = 4 * self.n * verification_floor()
        what = f"server: check and add uploads, {self.name}"
        return Row(what, seconds, "s", reference, seconds / reference)

    def _unmask_sample(self, share: float) -> Row:
        """Take masks off for a sample of survivors and lost ones; scale up."""
        n, rng = self.n, self.rng
        pairs = [KeyPair.generate(rng) for _ in range(n)]
        seal = KeyPair.generate(rng).public
        roster = tuple(
            Entry(rng.randbytes(31) + b"\1", PublicKeys(pair.public, seal), bytes(64))
            for pair in pairs
        )
        cohort = Cohort(bytes(32), 0, roster, Assumptions(0.2, 0.2, mode=self.mode))
        sharers = {slot: Sharer(rng.randbytes(32), bytes(32)) for slot in range(n)}
        view, lost = View(cohort, sharers), frozenset(range(round(share * n)))
        seeds = {slot: rng.randbytes(32) for slot in range(len(lost), n)}
        reveals = {slot: Reveal({}, {}) for slot in seeds}
        chosen = [*range(len(lost))][:SAMPLE], [*seeds][:SAMPLE]
        for owner in (*chosen[0], *chosen[1]):
            secret = seeds.get(owner) or pairs[owner].secret
            p = cohort.parameters
            shares = split(secret, p.holders + 1, p.threshold, rng)
            for holder, one in zip((owner, *view.holders(owner)), shares, strict=True):
                if holder in reveals:
                    kind = "seed_shares" if owner in seeds else "key_shares"
                    getattr(reveals[holder], kind)[owner] = one
        committed = {slot: commit_seed(seed) for slot, seed in seeds.items()}
        settled = Settled(view, committed, {}, {})
        unmasking = Unmasking(settled, self.ring, reveals, self.ring.zero())
        start = time.process_time()
        assert view.graph  # once for all; the rest is once for each
        once = time.process_time() - start
        start = time.process_time()
        for slot in chosen[0]:
            unmasking.take_off_pairwise(slot)
        middle = time.process_time()
        for slot in chosen[1]:
            unmasking.take_off_own(slot)
        end = time.process_time()
        scale = (len(lost) / max(len(chosen[0]), 1), len(seeds) / SAMPLE)
        seconds = once + (middle - start) * scale[0] + (end - middle) * scale[1]
        counted = sum(len(settled.survivors & view.graph[slot]) for slot in chosen[0])
        self.progress()
        return self._server_row(share, len(seeds), round(counted * scale[0]), seconds)


def main() -> None:
    """Measure, print a table, and write JSON rows if asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, action="append", help="100, 1,000 and 10,000")
    parser.add_argument("--words", type=int, action="append", help="10,000 and 100,000")
    parser.add_argument("--mode", choices=MODES, action="append", help="both")
    parser.add_argument("--json", type=Path, help="write the rows as JSON here")
    arguments = parser.parse_args()
    rows = [
        Row("floor: one X25519 agreement", agreement_floor() * 1e6, "us"),
        Row("floor: one Ed25519 verification", verification_floor() * 1e6, "us"),
    ]
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        for words in arguments.words or [10_000, 100_000]:
            rows.append(Row(f"floor: one mask of {words:,} words", mask_floor(words) * 1e6, "us"))
            for n in arguments.clients or [100, 1_000, SAMPLED]:
                for mode in arguments.mode or MODES:
                    steps = len(LOST) if n >= SAMPLED else 2 * n
                    task = progress.add_task(f"{mode}, {n:,} clients", total=steps)
                    rows += Bench(n, words, mode, partial(progress.advance, task)).run()
    report(rows, "floor", arguments.json)


if __name__ == "__main__":
    main()
