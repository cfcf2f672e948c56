"""A server's work for a cohort that is too large to simulate every participant.

All devices join, all encrypted shares are delivered, and all secrets are recovered. The messages of
a sample of devices are checked in each phase, masks of samples of survivors and of dropouts are
removed, and both are scaled up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom

from benchmarks.harness import BenchmarkRow, cpu_seconds
from benchmarks.secure_sums.floors import Floors
from benchmarks.secure_sums.server_work import (
    CpuWork,
    Stopwatch,
    checking_work,
    confirm_again,
    join_cohort,
    shares_floor,
    sum_rows,
    unmasking_work,
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
from secagg.messages import KeyShares, MaskedInput, UnmaskingShares
from secagg.participant import Checked, Joined, Masked
from secagg.ring import Ring
from secagg.roster import ShareCommitment, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shamir import SHARE_BYTES, split
from secagg.shares import SHARE_PAIR_BYTES, commit_seed, unpack_share_pairs
from secagg.unmasking import SumMessages, Unmasking

FLOOR_BURSTS = 10  # before and after the work
CHECKED_PARTICIPANTS = 300  # participants whose messages are checked
UNMASKED_DROPOUTS = 40  # participants whose masks with others are removed
UNMASKED_SURVIVORS = 500  # survivors, with one mask each to remove


@dataclass(slots=True)
class SampledServer:
    """The server of a cohort of `n`, whose vectors are of `ring`."""

    n: int
    ring: Ring
    name: str
    progress: Callable[[], None]
    rng: Random = field(default_factory=SystemRandom)
    watch: Stopwatch = field(default_factory=Stopwatch)
    joined: list[Joined] = field(default_factory=list)

    def rows(self, floors: Floors, dropout_shares: tuple[float, ...]) -> list[BenchmarkRow]:
        """Return the rows for each share of dropouts."""
        self.joined, session = join_cohort(self.n, self.rng, self.watch)
        checked, transcript = self._share(session)
        masked = self._mask(checked, transcript)
        once = self.watch.seconds["once"]
        rows = list[BenchmarkRow]()
        for dropout in dropout_shares:
            floors.measure(FLOOR_BURSTS)
            self.watch.seconds |= {"once": once, "last": 0.0}
            self._confirm_and_reveal(transcript, masked, dropout)
            unmasking, masks = self._unmask(transcript, dropout, floors)
            each = {
                name: spent / CHECKED_PARTICIPANTS for name, spent in self.watch.seconds.items()
            }
            checking = checking_work(floors, each, self.n, dropout)
            checking += CpuWork(self.watch.seconds["once"], 0)
            checking += self._routing_work(session)
            holders = session.parameters.holders
            hashes = shares_floor(floors, self.n, holders, self.ring.nbytes)
            case = f"{self.name}, {dropout:.0%} dropouts"
            rows += sum_rows(case, checking, unmasking, masks, hashes)
            self.progress()
        return rows

    def _share(self, session: Session) -> tuple[dict[int, Checked], Transcript]:
        commitments = {
            slot: ShareCommitment(self.rng.randbytes(32), bytes(32)) for slot in range(self.n)
        }
        shared, bodies, key_shares = {}, {}, {}
        # The first slots drop out, the last survive.
        for slot in range(self.n - CHECKED_PARTICIPANTS, self.n):
            shared[slot], key_shares[slot] = self.joined[slot].share(slot, session, self.rng)
            bodies[slot] = key_shares[slot].pack()
            commitments[slot] = key_shares[slot].share_commitment
        for slot, body in bodies.items():
            with self.watch.time("key shares"):
                check_key_shares(session, slot, KeyShares.unpack(body))
        checked = {}
        for slot, received in route_shares(session, key_shares).items():
            checked[slot], complaints = shared[slot].check(received)
            with self.watch.time("key shares"):
                check_complaints(session, slot, received, complaints)
        return checked, Transcript(session, ShareCommitments.of(commitments))

    def _mask(self, checked: dict[int, Checked], transcript: Transcript) -> dict[int, Masked]:
        masked, bodies, total = {}, {}, self.ring.zero()
        for slot, state in checked.items():
            masked[slot], upload = state.mask(transcript, self.ring, self.ring.zero())
            bodies[slot] = upload.pack()
        # A copy whose neighbour selection is not computed yet.
        transcript = Transcript(transcript.session, transcript.share_commitments)
        with self.watch.time("once"):  # for all messages
            assert transcript.holders(0)
            assert transcript.label
        for slot, body in bodies.items():
            with self.watch.time("upload"):
                upload = MaskedInput.unpack(body)
                check_masked_input(transcript, slot, upload)
                self.ring.add_packed(total, upload.vector)
        return masked

    def _confirm_and_reveal(
        self, transcript: Transcript, masked: dict[int, Masked], dropout: float
    ) -> None:
        """Time the checks of the last messages; the shares of other dealers are random."""
        survivors = frozenset(range(round(dropout * self.n), self.n))
        signatures, bodies = {}, {}
        request = UnmaskingRequest(transcript, survivors)
        for slot, state in masked.items():
            signatures[slot] = confirm_again(state, transcript, survivors)[1]
            shares = {
                dealer: bytes(1) + self.rng.randbytes(SHARE_BYTES - 1)
                for dealer in (*request.dealers_of(slot), slot)
            }
            seeds = {dealer: share for dealer, share in shares.items() if dealer in survivors}
            keys = {dealer: share for dealer, share in shares.items() if dealer not in survivors}
            message = UnmaskingShares(seeds, keys)
            statement = transcript.unmasking_statement(slot, survivors, message.signed_bytes())
            bodies[slot] = message.signed(self.joined[slot].identity, statement).pack()
        with self.watch.time("once"):
            assert request.survivors.isdisjoint(request.dropouts)
            assert len(request.requested_kinds) == self.n
            transcript.confirmation_statement(0, request.survivors)  # caches the digest for all
        for slot, signature in signatures.items():
            with self.watch.time("last"):
                check_confirmation(transcript, slot, request.survivors, signature)
        for slot, body in bodies.items():
            with self.watch.time("last"):
                check_unmasking_shares(request, slot, UnmaskingShares.unpack(body))

    def _routing_work(self, session: Session) -> CpuWork:
        """Time the routing of all share pairs to their holders; their contents are random."""
        nbytes = session.parameters.holders * SHARE_PAIR_BYTES
        zeros = bytes(32)
        key_shares = {
            slot: KeyShares(
                self.rng.randbytes(32), zeros, zeros, unpack_share_pairs(self.rng.randbytes(nbytes))
            )
            for slot in range(self.n)
        }
        # The first time may be the first use of memory, which is slow in a virtual machine.
        route_shares(session, key_shares)
        return CpuWork(cpu_seconds(lambda: route_shares(session, key_shares)), 0)

    def _unmask(
        self, transcript: Transcript, dropout: float, floors: Floors
    ) -> tuple[CpuWork, int]:
        """Recover all secrets, remove the masks of a sample of participants, and scale up."""
        transcript = Transcript(transcript.session, transcript.share_commitments)
        assert transcript.holders(0)  # which "once" has counted; the graph is not computed yet
        dropouts = range(round(dropout * self.n))
        seeds = {slot: self.rng.randbytes(32) for slot in range(len(dropouts), self.n)}
        sampled_dropouts = [*dropouts][:UNMASKED_DROPOUTS]
        sampled_survivors = [*seeds][:UNMASKED_SURVIVORS]
        secrets = {slot: self.joined[slot].mask_pair.secret for slot in sampled_dropouts}
        secrets |= {slot: seeds[slot] for slot in sampled_survivors}
        unmasking_shares = self._sampled_unmasking_shares(transcript, secrets, dropouts)
        zeros, no_pairs = bytes(32), unpack_share_pairs(b"")
        key_shares = {
            slot: KeyShares(zeros, commit_seed(seed), zeros, no_pairs)
            for slot, seed in seeds.items()
        }
        request = UnmaskingRequest(transcript, frozenset(seeds))
        messages = SumMessages(key_shares, unmasking_shares)
        floors.measure(FLOOR_BURSTS)
        start = time.process_time()
        if dropouts:
            assert transcript.graph  # once for all, as are the secrets; masks are per participant
        unmasking = Unmasking(request, self.ring, messages, self.ring.zero())
        once = time.process_time()
        for slot in sampled_dropouts:
            unmasking.remove_pairwise_masks(slot)
        middle = time.process_time()
        for slot in sampled_survivors:
            unmasking.remove_self_mask(slot)
        end = time.process_time()
        floors.measure(FLOOR_BURSTS)
        dropout_scale = len(dropouts) / max(len(sampled_dropouts), 1)
        survivor_scale = len(seeds) / len(sampled_survivors)
        seconds = once - start + (middle - once) * dropout_scale + (end - middle) * survivor_scale
        counted = sum(len(request.survivors & transcript.graph[slot]) for slot in sampled_dropouts)
        pairs = round(counted * dropout_scale)
        return unmasking_work(floors, seconds, len(seeds), pairs), len(seeds) + pairs

    def _sampled_unmasking_shares(
        self, transcript: Transcript, secrets: dict[int, bytes], dropouts: range
    ) -> dict[int, UnmaskingShares]:
        """Return unmasking shares of all survivors, with true shares of `secrets` only."""
        p = transcript.session.parameters
        revealed: dict[int, tuple[dict[int, bytes], dict[int, bytes]]] = {
            slot: ({}, {}) for slot in transcript.share_commitments if slot not in dropouts
        }
        blank = [bytes(SHARE_BYTES)] * (p.holders + 1)
        for dealer in transcript.share_commitments:
            shares = blank
            if dealer in secrets:
                shares = split(secrets[dealer], p.holders + 1, p.threshold, self.rng)
            for holder, share in zip((dealer, *transcript.holders(dealer)), shares, strict=True):
                if holder in revealed:
                    revealed[holder][dealer in dropouts][dealer] = share
        packed = {slot: UnmaskingShares(*shares).pack() for slot, shares in revealed.items()}
        return {slot: UnmaskingShares.unpack(body + bytes(64)) for slot, body in packed.items()}
