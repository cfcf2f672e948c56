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
from benchmarks.rows import Row, report
from benchmarks.sampled import Sampled
from benchmarks.server_work import Stopwatch, Work, checking_work, deals_floor, unmasking_work
from protocol.messages import (
    pack_parcels,
    pack_roster,
    pack_sharers,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from secagg.aggregator import (
    Settled,
    check_confirmation,
    check_reveal,
    check_shares,
    check_upload,
    settle_deals,
    unmask,
)
from secagg.cohort import Cohort, Entry, View
from secagg.deals import KeyDeal, Reveal, SeedDeal, Upload
from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.parameters import Assumptions, Mode
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector

MODES: tuple[Mode, ...] = ("semi-honest", "active")
LOST = (0.0, 0.1, 0.2)
SAMPLED = 10_000  # from so many clients on, the server's work is sampled
OFTEN = 100  # participants between bursts of floors; what they send is checked together
MORE = 4  # of these bursts
BURSTS = 10  # before and after what is done at one stroke
WARM = 30  # participants of a cohort that is not reported: imports, tables, caches
LONG = 1.0  # seconds to repeat that for


@dataclass(slots=True)
class Bench:
    """A cohort of `n` in `mode` over `words` 32-bit words."""

    n: int
    words: int
    mode: Mode
    progress: Callable[[], None]
    floors: Floors
    watch: Stopwatch = field(default_factory=Stopwatch)
    rng: Random = field(default_factory=SystemRandom)
    deals: dict[int, KeyDeal] = field(default_factory=dict)
    seeds: dict[int, SeedDeal] = field(default_factory=dict)
    shared: dict[int, Shared] = field(default_factory=dict)
    masked: dict[int, Masked] = field(default_factory=dict)
    sums: dict[int, Vector] = field(default_factory=dict)  # of masked vectors, by slot modulo 10
    deal_bytes: int = 0
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
        gc.disable()
        if self.n >= SAMPLED:
            server = Sampled(self.n, self.ring, self.mode, self.name, self.progress)
            return server.rows(self.floors, LOST)
        view = self._share()
        self._mask(view)
        rows = [row for share in LOST for row in self._server_rows(view, share)]
        return [*self._client_rows(view), *rows]

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
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                with self.watch.time("share"):  # each device reads what it is told
                    told = unpack_roster(roster, has_registrar=False)
                    own = Cohort(cohort.plan, 0, told, cohort.assumptions)
                    self.shared[slot], deal = joined[slot].share(slot, own, self.rng)
                    bodies[slot] = deal.pack()
                self.shared[slot].cohort = cohort  # the same facts, held once
                self.progress()
            with self.watch.time("deal"):
                for slot, body in bodies.items():
                    self.deals[slot] = KeyDeal.unpack(body)
                    check_shares(cohort, slot, self.deals[slot])
        return View(cohort, {slot: deal.sharer for slot, deal in self.deals.items()})

    def _mask(self, view: View) -> None:
        vector = self.ring.vector([np.arange(self.words)])
        sharers = pack_sharers(view.sharers)
        self.sums = {place: self.ring.zero() for place in range(10)}
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                state = self.shared[slot]
                with self.watch.time("mask"):
                    told = View(state.cohort, unpack_sharers(sharers))
                    self.masked[slot], upload = state.mask(told, self.ring, vector, self.rng)
                    bodies[slot] = upload.pack()
                self.masked[slot].view = view  # the same facts, held once
                self.progress()
            with self.watch.time("upload"):
                for slot, body in bodies.items():
                    upload = Upload.unpack(body, self.ring.nbytes)
                    check_upload(view, slot, upload)
                    self.ring.add_packed(self.sums[slot % 10], upload.vector)
                    self.seeds[slot] = upload.deal
            self.upload_bytes = max(map(len, bodies.values()))
            self.deal_bytes = max(len(self.deals[slot].pack()) for slot in bodies)

    def _server_rows(self, view: View, share: float) -> Iterator[Row]:
        lost = {slot for slot in range(self.n) if slot % 10 < share * 10}
        total = self.ring.zero()
        for place in range(round(share * 10), 10):
            self.ring.add(total, self.sums[place])
        seeds = {slot: deal for slot, deal in self.seeds.items() if slot not in lost}
        settle_deals(view, self.deals, seeds)  # memory that a virtual machine never had costs it
        start = time.process_time()
        settled = settle_deals(view, self.deals, seeds)
        settling = Work(time.process_time() - start, 0.0)
        reveals = self._reveal(settled, share)
        floors = Floors(self.words)
        floors.measure(BURSTS)
        spent, times = 0.0, 0
        while spent < LONG:
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
        whole, holders = heard + settling + unmasked, view.cohort.parameters.holders
        yield whole.row(f"all, {what}")
        more = deals_floor(self.floors, self.n, len(seeds), holders, self.ring.nbytes)
        yield (whole + Work(0.0, more)).row(f"all, {what}, beside hashes of deals too")

    def _reveal(self, settled: Settled, share: float) -> dict[int, Reveal]:
        signatures, confirmed, reveals = {}, dict[int, Confirmed](), {}
        for slots in self._blocks(settled.survivors):
            for slot in slots:
                state = self.masked[slot]
                again = Masked(state.slot, state.view, state.joined, state.sealing, state.own_share)
                with self.watch.time(f"confirm {share}"):
                    confirmed[slot], signatures[slot] = again.confirm(settled.survivors)
            if self.is_active:
                with self.watch.time(f"last {share}"):
                    for slot in slots:
                        check_confirmation(settled.view, slot, settled.survivors, signatures[slot])
        for slots in self._blocks(settled.survivors):
            bodies = {}
            for slot in slots:
                parcels = pack_parcels(settled.inboxes[slot])
                with self.watch.time(f"reveal {share}"):
                    told = unpack_parcels(parcels)
                    bodies[slot] = confirmed[slot].reveal(signatures, told, self.rng).pack()
            with self.watch.time(f"last {share}"):
                for slot, body in bodies.items():
                    reveals[slot] = Reveal.unpack(body)
                    check_reveal(settled, slot, reveals[slot])
            self.reveal_bytes = max(self.reveal_bytes, *map(len, bodies.values()))
        return reveals

    @property
    def is_active(self) -> bool:
        """Return whether the server may do what it likes, and participants confirm."""
        return self.mode == "active"

    def _blocks(self, slots: Iterable[int]) -> Iterator[Sequence[int]]:
        """Yield some slots at a time, with bursts of floors before each block."""
        remaining = iter(slots)
        while block := list(islice(remaining, OFTEN)):
            self.floors.measure(MORE)
            yield block

    def _client_rows(self, view: View) -> list[Row]:
        spent, p = self.watch.seconds, view.cohort.parameters
        phases = {"join": "join", "share": "share", "mask": "mask"}
        phases |= {"confirm": "confirm 0.0", "reveal": "reveal 0.0"}
        each = {phase: spent[name] / self.n * 1e3 for phase, name in phases.items()}
        rows = [Row(f"client: {phase}, {self.name}", ms, "ms") for phase, ms in each.items()]
        partners = sum(len(view.graph[slot]) for slot in range(self.n)) / self.n
        sealing = 2 * p.holders - (p.holders**2 / (self.n - 1))  # picked, or picked by
        agreements = 2 + partners + sealing
        verifications = p.holders + p.witnesses if self.is_active else 0
        reference = 1e3 * device_floor(self.floors, partners, sealing, verifications)
        total = sum(each.values())
        counts = f"{partners + 1:.0f} masks, {agreements:.0f} agreements"
        name = f"client: all, {self.name}, {counts}, {verifications} verifications"
        rows.append(Row(name, total, "ms", reference, total / reference))
        more = reference + 1e3 * sealing_floor(self.floors, p.holders)
        name = f"client: all, {self.name}, beside {3 * p.holders} envelopes too"
        rows.append(Row(name, total, "ms", more, total / more))
        packed, upload = self.ring.nbytes, self.upload_bytes
        rows.append(Row(f"client: upload, {self.name}", upload, "B", packed, upload / packed))
        every = upload + self.deal_bytes + self.reveal_bytes + SIGNATURE_BYTES  # to confirm
        rows.append(Row(f"client: all messages, {self.name}", every, "B", packed, every / packed))
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
    rows = list[Row]()
    with Progress(console=Console(file=sys.stderr), transient=True) as progress:
        for words in arguments.words or [10_000, 100_000]:
            floors = Floors(words)
            floors.measure()
            Bench(WARM, words, "active", lambda: None, Floors(words)).run()
            for n in arguments.clients or [100, 1_000, SAMPLED]:
                for mode in arguments.mode or MODES:
                    steps = len(LOST) if n >= SAMPLED else 2 * n
                    task = progress.add_task(f"{mode}, {n:,} clients", total=steps)
                    rows += Bench(n, words, mode, partial(progress.advance, task), floors).run()
    report(rows, "floor", arguments.json)


if __name__ == "__main__":
    main()
