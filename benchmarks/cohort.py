"""All messages of one cohort in memory: what clients and their server compute, by phase."""

import gc
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random, SystemRandom

import numpy as np

from benchmarks.harness import (
    BenchmarkRow,
    Floors,
    Stopwatch,
    device_floor,
    sealing_floor,
    shares_floor,
)
from secagg.aggregator import (
    UnmaskingRequest,
    check_complaints,
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
    route_shares,
)
from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.messages import Complaints, KeyShares, MaskedInput, SignedInput, UnmaskingShares
from secagg.parameters import Assumptions
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.ring import Lane, Ring, Vector
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import Session, Transcript
from secagg.shares import ReceivedShares
from secagg.unmasking import SumMessages, unmask

DROPOUT_SHARES = (0.0, 0.1, 0.2)
PARTICIPANTS_PER_BURST = 100  # between bursts of floors; their messages are checked together
FLOOR_BURSTS_PER_BLOCK = 4
FLOOR_BURSTS = 10  # before and after each unmasking
MIN_UNMASKING_SECONDS, MAX_UNMASKINGS = 1.0, 30  # repetitions end at the first limit


@dataclass(frozen=True, slots=True)
class CpuWork:
    """CPU seconds of some work, and its floor."""

    seconds: float
    floor: float

    def __add__(self, other: "CpuWork") -> "CpuWork":
        return CpuWork(self.seconds + other.seconds, self.floor + other.floor)

    def row(self, name: str) -> BenchmarkRow:
        return BenchmarkRow(f"server: {name}", self.seconds, "s", self.floor)


def join_cohort(n: int, rng: Random, watch: Stopwatch) -> tuple[list[Joined], Session]:
    """Return `n` participants with rates of 0.2, and their session; time how they join."""
    joined = []
    for _ in range(n):
        identity = Identity.generate(rng)
        with watch.time("join"):
            joined.append(join(identity, rng))
    plan = rng.randbytes(32)
    roster = Roster.of(
        [
            RosterEntry(state.identity.public, state.public_keys, state.advertise(plan))
            for state in joined
        ]
    )
    return joined, Session(plan, 0, roster, Assumptions(0.2, 0.2))


def confirm_again(
    state: Masked, transcript: Transcript, survivors: Collection[int]
) -> tuple[Confirmed, bytes]:
    """Confirm `survivors` with a copy of `state`, which may confirm other survivors later."""
    return Masked(state.checked, transcript).confirm(survivors)


def checking_work(floors: Floors, each: dict[str, float], n: int, dropout: float) -> CpuWork:
    """Return the work of checking the messages of `n` participants, of which survivors upload.

    `each` has the seconds for a participant's key shares and complaints, its upload, and its last
    messages.
    """
    survivors = n * (1 - dropout)
    spent = n * each["key shares"] + survivors * (each["upload"] + each["last"])
    # All sign key shares and complaints; survivors the upload, confirmation and unmasking shares.
    verified = 2 * n + 3 * survivors
    return CpuWork(spent, verified * floors["verification"] + survivors * floors["arrival"])


def unmasking_work(floors: Floors, seconds: float, survivors: int, pairs: int) -> CpuWork:
    """Return the work of removing the own masks of `survivors`, and `pairs` of pairwise masks."""
    masks = (survivors + pairs) * floors["mask"]
    return CpuWork(seconds, masks + pairs * floors["agreement"])


def sum_rows(
    case: str, checking: CpuWork, unmasking: CpuWork, masks: int, hashes: float
) -> list[BenchmarkRow]:
    """Return the rows of unmasking and of all work, without and with the floor of `hashes`."""
    whole = checking + unmasking
    return [
        unmasking.row(f"unmask, {case}, {masks:,} masks"),
        whole.row(f"all, {case}"),
        (whole + CpuWork(0.0, hashes)).row(f"all, {case}, hashes of shares too"),
    ]


@dataclass(slots=True)
class CohortBenchmark:
    """A cohort of `n` over `words` 32-bit words."""

    n: int
    words: int
    progress: Callable[[], None]
    floors: Floors
    watch: Stopwatch = field(default_factory=Stopwatch)
    rng: Random = field(default_factory=SystemRandom)
    key_shares: dict[int, KeyShares] = field(default_factory=dict)
    signed_inputs: dict[int, SignedInput] = field(default_factory=dict)
    shared: dict[int, Shared] = field(default_factory=dict)
    checked: dict[int, Checked] = field(default_factory=dict)
    masked: dict[int, Masked] = field(default_factory=dict)
    sums: dict[int, Vector] = field(default_factory=dict)  # of masked vectors, by slot modulo 10
    key_shares_bytes: int = 0
    upload_bytes: int = 0
    unmasking_bytes: int = 0

    @property
    def name(self) -> str:
        """Return the beginning of this cohort's row names."""
        return f"n={self.n:,}, {self.words:,} words"

    @property
    def ring(self) -> Ring:
        """Return the ring of the vectors."""
        return Ring((Lane(2**32, self.words),))

    def run(self) -> list[BenchmarkRow]:
        """Return the figures of this cohort."""
        gc.collect()
        gc.disable()
        transcript = self._check(self._share())
        self._mask(transcript)
        rows = [row for share in DROPOUT_SHARES for row in self._server_rows(transcript, share)]
        return [*self._client_rows(transcript), *rows]

    def _share(self) -> Session:
        joined, session = join_cohort(self.n, self.rng, self.watch)
        roster = roster_bytes(session.roster)
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                with self.watch.time("share"):  # each device reads its own copy of the roster
                    own_roster = Roster.unpack(roster, has_registrar=False)
                    own = Session(session.plan_digest, 0, own_roster, session.assumptions)
                    self.shared[slot], key_shares = joined[slot].share(slot, own, self.rng)
                    bodies[slot] = key_shares.pack()
                self.shared[slot].session = session  # the same facts, held once
                self.progress()
            with self.watch.time("key shares"):
                for slot, body in bodies.items():
                    self.key_shares[slot] = KeyShares.unpack(body)
                    check_key_shares(session, slot, self.key_shares[slot])
        return session

    def _check(self, session: Session) -> Transcript:
        with self.watch.time("key shares"):
            received = route_shares(session, self.key_shares)
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                packed = received[slot].pack()
                with self.watch.time("check"):
                    self.checked[slot], complaints = self.shared[slot].check(
                        ReceivedShares.unpack(packed)
                    )
                    bodies[slot] = complaints.pack()
                self.progress()
            with self.watch.time("key shares"):
                for slot, body in bodies.items():
                    check_complaints(session, slot, received[slot], Complaints.unpack(body))
        commitments = {slot: shares.share_commitment for slot, shares in self.key_shares.items()}
        return Transcript(session, ShareCommitments.of(commitments))

    def _mask(self, transcript: Transcript) -> None:
        vector = self.ring.vector([np.arange(self.words)])
        commitments = share_commitments_bytes(transcript.share_commitments)
        self.sums = {place: self.ring.zero() for place in range(10)}
        for slots in self._blocks(range(self.n)):
            bodies = {}
            for slot in slots:
                state = self.checked[slot]
                with self.watch.time("mask"):
                    own = Transcript(transcript.session, ShareCommitments.unpack(commitments))
                    self.masked[slot], upload = state.mask(own, self.ring, vector)
                    bodies[slot] = upload.pack()
                self.masked[slot].transcript = transcript  # the same facts, held once
                self.progress()
            with self.watch.time("upload"):
                for slot, body in bodies.items():
                    upload = MaskedInput.unpack(body)
                    check_masked_input(transcript, slot, upload)
                    self.ring.add_packed(self.sums[slot % 10], upload.vector)
                    self.signed_inputs[slot] = upload.signed_input
            self.upload_bytes = max(map(len, bodies.values()))
            self.key_shares_bytes = max(len(self.key_shares[slot].pack()) for slot in bodies)

    def _server_rows(self, transcript: Transcript, dropout: float) -> Iterator[BenchmarkRow]:
        dropouts = {slot for slot in range(self.n) if slot % 10 < dropout * 10}
        total = self.ring.zero()
        for place in range(round(dropout * 10), 10):
            self.ring.add(total, self.sums[place])
        survivors = frozenset(range(self.n)) - dropouts
        request = UnmaskingRequest(transcript, survivors)
        unmasking_shares = self._collect_unmasking_shares(request, dropout)
        messages = SumMessages(self.key_shares, unmasking_shares)
        floors = Floors(self.words)
        floors.measure(FLOOR_BURSTS)
        spent, repetitions = 0.0, 0
        while spent < MIN_UNMASKING_SECONDS and repetitions < MAX_UNMASKINGS:
            start = time.process_time()
            unmasked = unmask(request, self.ring, messages, total).total
            spent, repetitions = spent + time.process_time() - start, repetitions + 1
            floors.measure(FLOOR_BURSTS)
        if not np.array_equal(unmasked[0], np.arange(self.words, dtype=np.uint32) * len(survivors)):
            raise SystemExit(f"{self.name}: the sum is wrong")
        pairs = sum(len(request.survivors & transcript.graph[slot]) for slot in dropouts)
        unmasking = unmasking_work(floors, spent / repetitions, len(survivors), pairs)
        each = {name: self.watch.seconds[name] / self.n for name in ("key shares", "upload")}
        each["last"] = self.watch.seconds[f"last {dropout}"] / len(survivors)
        checking = checking_work(self.floors, each, self.n, dropout)
        case = f"{self.name}, {dropout:.0%} dropouts"
        yield checking.row(f"check and add uploads, {case}")
        holders = transcript.session.parameters.holders
        hashes = shares_floor(self.floors, self.n, holders, self.ring.nbytes)
        yield from sum_rows(case, checking, unmasking, len(survivors) + pairs, hashes)

    def _collect_unmasking_shares(
        self, request: UnmaskingRequest, dropout: float
    ) -> dict[int, UnmaskingShares]:
        signatures, confirmed, unmasking_shares = {}, dict[int, Confirmed](), {}
        transcript, survivors = request.transcript, request.survivors
        for slots in self._blocks(survivors):
            for slot in slots:
                with self.watch.time(f"confirm {dropout}"):
                    confirmed[slot], signatures[slot] = confirm_again(
                        self.masked[slot], transcript, survivors
                    )
            with self.watch.time(f"last {dropout}"):
                for slot in slots:
                    check_confirmation(transcript, slot, survivors, signatures[slot])
        for slots in self._blocks(survivors):
            bodies = {}
            for slot in slots:
                with self.watch.time(f"reveal {dropout}"):
                    message = confirmed[slot].unmask(signatures, self.signed_inputs, self.rng)
                    bodies[slot] = message.pack()
            with self.watch.time(f"last {dropout}"):
                for slot, body in bodies.items():
                    unmasking_shares[slot] = UnmaskingShares.unpack(body)
                    check_unmasking_shares(request, slot, unmasking_shares[slot])
            self.unmasking_bytes = max(self.unmasking_bytes, *map(len, bodies.values()))
        return unmasking_shares

    def _blocks(self, slots: Iterable[int]) -> Iterator[Sequence[int]]:
        """Yield slots in blocks, with bursts of floors before each block."""
        remaining = iter(slots)
        while block := list(islice(remaining, PARTICIPANTS_PER_BURST)):
            self.floors.measure(FLOOR_BURSTS_PER_BLOCK)
            yield block

    def _client_rows(self, transcript: Transcript) -> list[BenchmarkRow]:
        spent, p = self.watch.seconds, transcript.session.parameters
        phases = {"join": "join", "share": "share", "check": "check", "mask": "mask"}
        phases |= {"confirm": "confirm 0.0", "reveal": "reveal 0.0"}
        each = {phase: spent[name] / self.n * 1e3 for phase, name in phases.items()}
        rows = [
            BenchmarkRow(f"client: {phase}, {self.name}", ms, "ms") for phase, ms in each.items()
        ]
        neighbours = sum(len(transcript.graph[slot]) for slot in range(self.n)) / self.n
        sealing = 2 * p.holders - (p.holders**2 / (self.n - 1))  # its holders, and its dealers
        agreements = 2 + neighbours + sealing
        verifications = 2 * p.holders + p.spot_checks
        floor = 1e3 * device_floor(self.floors, neighbours, sealing, verifications)
        total = sum(each.values())
        counts = f"{neighbours + 1:.0f} masks, {agreements:.0f} agreements"
        name = f"client: all, {self.name}, {counts}, {verifications} verifications"
        rows.append(BenchmarkRow(name, total, "ms", floor))
        floor += 1e3 * sealing_floor(self.floors, p.holders)
        name = f"client: all, {self.name}, {4 * p.holders} envelopes too"
        rows.append(BenchmarkRow(name, total, "ms", floor))
        packed, upload = self.ring.nbytes, self.upload_bytes
        rows.append(BenchmarkRow(f"client: upload, {self.name}", upload, "B", packed))
        everything = upload + self.key_shares_bytes + self.unmasking_bytes + 2 * SIGNATURE_BYTES
        rows.append(BenchmarkRow(f"client: all messages, {self.name}", everything, "B", packed))
        return rows
