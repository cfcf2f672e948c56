"""One cohort's secure sum beside the floor that its primitives alone would cost.

    python -m benchmarks.secagg [--clients N ...] [--words W ...] [--mode MODE ...] [--json PATH]

The floors are measured amid the work they stand beside (`benchmarks.floors`): keystream and
add, an X25519 agreement, an Ed25519 verification, SHA-256 of what arrives, each as often as
the protocol asks for it. `ratio` is value / reference. Rows that say "beside ... too" repeat the
row before with what else no implementation of the protocol is spared: the hashes of the vector and
of deals, and envelopes. Times are process CPU seconds of one thread, because the
machines are shared; a client's are means over all clients of the cohort, and count reading what
it is told. A server checks what it hears, adds the vectors, settles which shares matter, and
unmasks the sum: all of it stands in a row of its own. What 100 clients send in a phase is checked
in a row. The collector of garbage rests meanwhile: no device holds what a thousand others do. What
settles the shares is done twice, and the second time counts: the first may be the first use of
memory at all, of which a virtual machine makes three times the time. Of a cohort of 10,000 some are
heard and unmasked, and scaled up (`benchmarks.sampled`).
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom

import numpy as np
from rich.console import Console
from rich.progress import Progress

sys.path[0] = str(Path(__file__).parents[1])  # not this folder: its secagg.py would hide ours

from benchmarks.floors import Floors, device_floor, sealing_floor
from benchmarks.rows import BenchmarkRow, report
from benchmarks.sampled import SampledServer
from benchmarks.server_work import CpuWork, Stopwatch, checking_work, deals_floor, unmasking_work
from secagg.aggregator import (
    UnmaskingRequest,
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
    collect_masked_inputs,
)
from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.messages import KeyShares, MaskedInput, SeedShares, UnmaskingShares
from secagg.parameters import Assumptions, Mode
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import Session, Transcript
from secagg.shares import ReceivedShares, received_shares_bytes
from secagg.unmasking import unmask

MODES: tuple[Mode, ...] = ("semi-honest", "active")
DROPOUT_SHARES = (0.0, 0.1, 0.2)
SAMPLE_FROM_CLIENTS = 10_000  # from so many clients on, the server's work is sampled
PARTICIPANTS_PER_BURST = (
    100  # participants between bursts of floors; what they send is checked together
)
FLOOR_BURSTS_PER_BLOCK = 4  # of these bursts
BURSTS = 10  # before and after what is done at one stroke
WARM_UP_PARTICIPANTS = 30  # participants of a cohort that is not reported: imports, tables, caches
MIN_UNMASKING_SECONDS = 1.0  # seconds to repeat that for


@dataclass(slots=True)
class CohortBenchmark:
    """A cohort of `n` in `mode` over `words` 32-bit words."""

    n: int
    words: int
    mode: Mode
    progress: Callable[[], None]
    floors: Floors
    watch: Stopwatch = field(default_factory=Stopwatch)
    rng: Random = field(default_factory=SystemRandom)
    key_shares: dict[int, KeyShares] = field(default_factory=dict)
    seed_shares: dict[int, SeedShares] = field(default_factory=dict)
    shared: dict[int, Shared] = field(default_factory=dict)
    masked: dict[int, Masked] = field(default_factory=dict)
    sums: dict[int, Vector] = field(default_factory=dict)  # of masked vectors, by slot modulo 10
    key_shares_bytes: int = 0
    upload_bytes: int = 0
    unmasking_bytes: int = 0

    @property
    def name(self) -> str:
        """Return what this is, for the rows."""
        return f"{self.mode}, n={self.n:,}, {self.words:,} words"

    @property
    def ring(self) -> Ring:
        """Return the ring of the vectors."""
        return Ring((Lane(2**32, self.words),))

    def run(self) -> list[BenchmarkRow]:
        """Return the figures of this cohort."""
        gc.collect()
        gc.disable()
        if self.n >= SAMPLE_FROM_CLIENTS:
            server = SampledServer(self.n, self.ring, self.mode, self.name, self.progress)
            return server.rows(self.floors, DROPOUT_SHARES)
        view = self._share()
        self._mask(view)
        rows = [row for share in DROPOUT_SHARES for row in self._server_rows(view, share)]
        return [*self._client_rows(view), *rows]

    def _join(self) -> tuple[list[Joined], Session]:
        joined = []
        for _ in range(self.n):
            identity = Identity.generate(self.rng)
            with self.watch.time("join"):
                joined.append(join(identity, self.rng))
        plan, assumptions = self.rng.randbytes(32), Assumptions(0.2, 0.2, mode=self.mode)
        roster = Roster.of(
            [RosterEntry(s.identity.public, s.public_keys, s.advertise(plan)) for s in joined]
        )
        return joined, Session(plan, 0, roster, assumptions)

    def _share(self) -> Transcript:
        joined, cohort = self._join()
        roster = roster_bytes(cohort.roster)
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                with self.watch.time("share"):  # each device reads what it is told
                    told = Roster.unpack(roster, has_registrar=False)
                    own = Session(cohort.plan_digest, 0, told, cohort.assumptions)
                    self.shared[slot], deal = joined[slot].share(slot, own, self.rng)
                    bodies[slot] = deal.pack()
                self.shared[slot].session = cohort  # the same facts, held once
                self.progress()
            with self.watch.time("deal"):
                for slot, body in bodies.items():
                    self.key_shares[slot] = KeyShares.unpack(body)
                    check_key_shares(cohort, slot, self.key_shares[slot])
        commitments = {slot: deal.share_commitment for slot, deal in self.key_shares.items()}
        return Transcript(cohort, ShareCommitments.of(commitments))

    def _mask(self, view: Transcript) -> None:
        vector = self.ring.vector([np.arange(self.words)])
        sharers = share_commitments_bytes(view.share_commitments)
        self.sums = {place: self.ring.zero() for place in range(10)}
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                state = self.shared[slot]
                with self.watch.time("mask"):
                    told = Transcript(state.session, ShareCommitments.unpack(sharers))
                    self.masked[slot], upload = state.mask(told, self.ring, vector, self.rng)
                    bodies[slot] = upload.pack()
                self.masked[slot].transcript = view  # the same facts, held once
                self.progress()
            with self.watch.time("upload"):
                for slot, body in bodies.items():
                    upload = MaskedInput.unpack(body, self.ring.nbytes)
                    check_masked_input(view, slot, upload)
                    self.ring.add_packed(self.sums[slot % 10], upload.vector)
                    self.seed_shares[slot] = upload.seed_shares
            self.upload_bytes = max(map(len, bodies.values()))
            self.key_shares_bytes = max(len(self.key_shares[slot].pack()) for slot in bodies)

    def _server_rows(self, view: Transcript, share: float) -> Iterator[BenchmarkRow]:
        lost = {slot for slot in range(self.n) if slot % 10 < share * 10}
        total = self.ring.zero()
        for place in range(round(share * 10), 10):
            self.ring.add(total, self.sums[place])
        seeds = {slot: deal for slot, deal in self.seed_shares.items() if slot not in lost}
        collect_masked_inputs(
            view, self.key_shares, seeds
        )  # memory that a virtual machine never had costs it
        start = time.process_time()
        settled = collect_masked_inputs(view, self.key_shares, seeds)
        settling = CpuWork(time.process_time() - start, 0.0)
        reveals = self._collect_unmasking_shares(settled, share)
        floors = Floors(self.words)
        floors.measure(BURSTS)
        spent, times = 0.0, 0
        while spent < MIN_UNMASKING_SECONDS:
            start = time.process_time()
            found = unmask(settled, self.ring, reveals, total).total
            spent, times = spent + time.process_time() - start, times + 1
            floors.measure(BURSTS)
        if not np.array_equal(found[0], np.arange(self.words, dtype=np.uint32) * len(seeds)):
            raise SystemExit(f"{self.name}: the sum is wrong")
        pairs = sum(len(settled.survivors & view.graph[slot]) for slot in lost)
        unmasked = unmasking_work(floors, spent / times, len(seeds), pairs)
        each = {name: self.watch.seconds[name] / self.n for name in ("deal", "upload")}
        each["last"] = self.watch.seconds[f"last {share}"] / len(seeds)
        heard = checking_work(self.floors, each, self.n, share, self.mode)
        what = f"{self.name}, {share:.0%} lost"
        yield heard.row(f"check and add uploads, {what}")
        yield unmasked.row(f"unmask, {what}, {len(seeds) + pairs:,} masks")
        whole, holders = heard + settling + unmasked, view.session.parameters.holders
        yield whole.row(f"all, {what}")
        more = deals_floor(self.floors, self.n, len(seeds), holders, self.ring.nbytes)
        yield (whole + CpuWork(0.0, more)).row(f"all, {what}, beside hashes of deals too")

    def _collect_unmasking_shares(
        self, settled: UnmaskingRequest, share: float
    ) -> dict[int, UnmaskingShares]:
        signatures, confirmed, reveals = {}, dict[int, Confirmed](), {}
        for slots in self._blocks(settled.survivors):
            for slot in slots:
                state = self.masked[slot]
                again = Masked(
                    state.slot,
                    state.transcript,
                    state.joined,
                    state.agreed_secrets,
                    state.own_share,
                )
                with self.watch.time(f"confirm {share}"):
                    confirmed[slot], signatures[slot] = again.confirm(settled.survivors)
            if self.is_active:
                with self.watch.time(f"last {share}"):
                    for slot in slots:
                        check_confirmation(
                            settled.transcript, slot, settled.survivors, signatures[slot]
                        )
        for slots in self._blocks(settled.survivors):
            bodies = {}
            for slot in slots:
                parcels = received_shares_bytes(settled.received_shares[slot])
                with self.watch.time(f"reveal {share}"):
                    told = ReceivedShares.unpack(parcels)
                    bodies[slot] = confirmed[slot].unmask(signatures, told, self.rng).pack()
            with self.watch.time(f"last {share}"):
                for slot, body in bodies.items():
                    reveals[slot] = UnmaskingShares.unpack(body)
                    check_unmasking_shares(settled, slot, reveals[slot])
            self.unmasking_bytes = max(self.unmasking_bytes, *map(len, bodies.values()))
        return reveals

    @property
    def is_active(self) -> bool:
        """Return whether the server may do what it likes, and participants confirm."""
        return self.mode == "active"

    def _blocks(self, slots: Iterable[int]) -> Iterator[Sequence[int]]:
        """Yield some slots at a time, with bursts of floors before each block."""
        remaining = iter(slots)
        while block := list(islice(remaining, PARTICIPANTS_PER_BURST)):
            self.floors.measure(FLOOR_BURSTS_PER_BLOCK)
            yield block

    def _client_rows(self, view: Transcript) -> list[BenchmarkRow]:
        spent, p = self.watch.seconds, view.session.parameters
        phases = {"join": "join", "share": "share", "mask": "mask"}
        phases |= {"confirm": "confirm 0.0", "reveal": "reveal 0.0"}
        each = {phase: spent[name] / self.n * 1e3 for phase, name in phases.items()}
        rows = [
            BenchmarkRow(f"client: {phase}, {self.name}", ms, "ms") for phase, ms in each.items()
        ]
        partners = sum(len(view.graph[slot]) for slot in range(self.n)) / self.n
        sealing = 2 * p.holders - (p.holders**2 / (self.n - 1))  # picked, or picked by
        agreements = 2 + partners + sealing
        verifications = p.holders + p.spot_checks if self.is_active else 0
        reference = 1e3 * device_floor(self.floors, partners, sealing, verifications)
        total = sum(each.values())
        counts = f"{partners + 1:.0f} masks, {agreements:.0f} agreements"
        name = f"client: all, {self.name}, {counts}, {verifications} verifications"
        rows.append(BenchmarkRow(name, total, "ms", reference, total / reference))
        more = reference + 1e3 * sealing_floor(self.floors, p.holders)
        name = f"client: all, {self.name}, beside {3 * p.holders} envelopes too"
        rows.append(BenchmarkRow(name, total, "ms", more, total / more))
        packed, upload = self.ring.nbytes, self.upload_bytes
        rows.append(
            BenchmarkRow(f"client: upload, {self.name}", upload, "B", packed, upload / packed)
        )
        every = (
            upload + self.key_shares_bytes + self.unmasking_bytes + SIGNATURE_BYTES
        )  # to confirm
        rows.append(
            BenchmarkRow(f"client: all messages, {self.name}", every, "B", packed, every / packed)
        )
        return rows


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
    rows = list[BenchmarkRow]()
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        for words in arguments.words or [10_000, 100_000]:
            floors = Floors(words)
            floors.measure()
            CohortBenchmark(
                WARM_UP_PARTICIPANTS, words, "active", lambda: None, Floors(words)
            ).run()
            for n in arguments.clients or [100, 1_000, SAMPLE_FROM_CLIENTS]:
                for mode in arguments.mode or MODES:
                    steps = len(DROPOUT_SHARES) if n >= SAMPLE_FROM_CLIENTS else 2 * n
                    task = progress.add_task(f"{mode}, {n:,} clients", total=steps)
                    rows += CohortBenchmark(
                        n, words, mode, partial(progress.advance, task), floors
                    ).run()
    report(rows, "floor", arguments.json)


if __name__ == "__main__":
    main()
