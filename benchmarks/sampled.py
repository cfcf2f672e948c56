"""A server's work for a cohort too large to simulate every participant of.

All devices join, all parcels are handed on, and all secrets are recovered. What a sample of
devices sends in each phase is checked, masks of a sample of survivors and of the lost are taken
off, and both are scaled up.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom

from benchmarks.floors import Floors
from benchmarks.rows import BenchmarkRow
from benchmarks.server_work import CpuWork, Stopwatch, checking_work, deals_floor, unmasking_work
from secagg.aggregator import (
    UnmaskingRequest,
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
    collect_masked_inputs,
)
from secagg.keys import Identity
from secagg.messages import KeyShares, MaskedInput, SeedShares, UnmaskingShares, commit_seed
from secagg.parameters import Assumptions, Mode
from secagg.participant import Joined, Masked, Shared, join
from secagg.ring import Ring
from secagg.roster import Roster, RosterEntry, ShareCommitment, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shamir import SHARE_BYTES, split
from secagg.shares import (
    CIPHERTEXT_BYTES,
    ENCRYPTED_SHARE_BYTES,
    EncryptedShare,
    ReceivedShares,
    commit_share,
    received_shares_bytes,
    unpack_encrypted_shares,
)
from secagg.unmasking import Unmasking

BURSTS = 10  # of floors, before and after the work
CHECKED_PARTICIPANTS = 300  # participants whose messages are checked
UNMASKED_DROPOUTS = 40  # participants whose masks with others are taken off
UNMASKED_SURVIVORS = 500  # survivors, with one mask each to take off


@dataclass(slots=True)
class SampledServer:
    """The server of a cohort of `n` in `mode`, whose vectors are of `ring`."""

    n: int
    ring: Ring
    mode: Mode
    name: str
    progress: Callable[[], None]
    rng: Random = field(default_factory=SystemRandom)
    watch: Stopwatch = field(default_factory=Stopwatch)
    joined: list[Joined] = field(default_factory=list)

    def rows(self, floors: Floors, shares: tuple[float, ...]) -> list[BenchmarkRow]:
        """Return the rows with each of `shares` of the participants lost."""
        cohort = self._join()
        shared, view = self._share(cohort)
        masked = self._mask(shared, view)
        once = self.watch.seconds["once"]
        rows = []
        for share in shares:
            floors.measure(BURSTS)
            self.watch.seconds |= {"once": once, "last": 0.0}
            self._answer(view, masked, share)
            unmasked, masks = self._unmask(view, share, floors)
            each = {
                name: spent / CHECKED_PARTICIPANTS for name, spent in self.watch.seconds.items()
            }
            heard = checking_work(floors, each, self.n, share, self.mode)
            heard += CpuWork(self.watch.seconds["once"], 0) + self._settling_work(view, share)
            rows.append(unmasked.row(f"unmask, {self.name}, {share:.0%} lost, {masks:,} masks"))
            what = f"{self.name}, {share:.0%} lost"
            rows.append((heard + unmasked).row(f"all, {what}"))
            kept, holders = self.n * (1 - share), cohort.parameters.holders
            more = CpuWork(0, deals_floor(floors, self.n, kept, holders, self.ring.nbytes))
            rows.append((heard + unmasked + more).row(f"all, {what}, beside hashes of deals too"))
            self.progress()
        return rows

    def _join(self) -> Session:
        self.joined = [join(Identity.generate(self.rng), self.rng) for _ in range(self.n)]
        plan = self.rng.randbytes(32)
        roster = Roster.of(
            [RosterEntry(s.identity.public, s.public_keys, s.advertise(plan)) for s in self.joined]
        )
        return Session(plan, 0, roster, Assumptions(0.2, 0.2, mode=self.mode))

    def _share(self, cohort: Session) -> tuple[dict[int, Shared], Transcript]:
        sharers = {
            slot: ShareCommitment(self.rng.randbytes(32), bytes(32)) for slot in range(self.n)
        }
        shared, bodies = {}, {}
        for slot in range(
            self.n - CHECKED_PARTICIPANTS, self.n
        ):  # the first are lost, the last survive
            shared[slot], deal = self.joined[slot].share(slot, cohort, self.rng)
            bodies[slot], sharers[slot] = deal.pack(), deal.share_commitment
        for slot, body in bodies.items():
            with self.watch.time("deal"):
                check_key_shares(cohort, slot, KeyShares.unpack(body))
        return shared, Transcript(cohort, ShareCommitments.of(sharers))

    def _mask(self, shared: dict[int, Shared], view: Transcript) -> dict[int, Masked]:
        masked, bodies, total = {}, {}, self.ring.zero()
        for slot, state in shared.items():
            masked[slot], upload = state.mask(view, self.ring, self.ring.zero(), self.rng)
            bodies[slot] = upload.pack()
        view = Transcript(view.session, view.share_commitments)  # who picked whom is not known yet
        with self.watch.time("once"):  # for all that are heard
            assert view.holders(0)
            assert view.label
        for slot, body in bodies.items():
            with self.watch.time("upload"):
                upload = MaskedInput.unpack(body, self.ring.nbytes)
                check_masked_input(view, slot, upload)
                self.ring.add_packed(total, upload.vector)
        return masked

    def _answer(self, view: Transcript, masked: dict[int, Masked], share: float) -> None:
        """Time the last messages; shares that others would have dealt are drawn."""
        survivors = frozenset(range(round(share * self.n), self.n))
        signatures, reveals, inboxes, own = {}, {}, {}, {}
        for slot, state in masked.items():
            again = Masked(slot, view, state.joined, state.agreed_secrets, state.own_share)
            signatures[slot] = again.confirm(survivors)[1]
            owners = view.dealers[(view.selected_holders == slot).any(axis=1)].tolist()
            dealt = {owner: bytes(1) + self.rng.randbytes(SHARE_BYTES - 1) for owner in owners}
            parcels = {
                owner: EncryptedShare(commit_share(one), bytes(CIPHERTEXT_BYTES))
                for owner, one in dealt.items()
            }
            inboxes[slot] = ReceivedShares.unpack(received_shares_bytes(parcels))
            own[slot] = commit_share(state.own_share)
            dealt[slot] = state.own_share
            seeds = {owner: one for owner, one in dealt.items() if owner in survivors}
            keys = {owner: one for owner, one in dealt.items() if owner not in survivors}
            identity, inbox = state.joined.identity, inboxes[slot].digest
            reveal = UnmaskingShares(seeds, keys)
            answer = view.unmasking_statement(slot, survivors, inbox, reveal.signed_bytes())
            reveals[slot] = reveal.signed(identity, answer).pack()
        settled = UnmaskingRequest(view, dict.fromkeys(survivors, bytes(32)), own, inboxes)
        with self.watch.time("once"):
            assert settled.survivors.isdisjoint(settled.dropouts)
            assert len(settled.requested_kinds) == self.n
            view.confirmation_statement(0, settled.survivors)  # whose digest is that of all
        for slot, signature in signatures.items() if self.mode == "active" else ():
            with self.watch.time("last"):
                check_confirmation(view, slot, settled.survivors, signature)
        for slot, body in reveals.items():
            with self.watch.time("last"):
                check_unmasking_shares(settled, slot, UnmaskingShares.unpack(body))

    def _settling_work(self, view: Transcript, share: float) -> CpuWork:
        """Time what settles which parcels matter; what is in them is drawn."""
        nbytes, lost = (
            view.session.parameters.holders * ENCRYPTED_SHARE_BYTES,
            round(share * self.n),
        )
        dealt = {
            slot: unpack_encrypted_shares(self.rng.randbytes(nbytes)) for slot in range(self.n)
        }
        keys = {slot: KeyShares(bytes(32), dealt[slot]) for slot in range(lost)}
        seeds = {
            slot: SeedShares(bytes(32), bytes(32), dealt[slot]) for slot in range(lost, self.n)
        }
        collect_masked_inputs(
            view, keys, seeds
        )  # memory that a virtual machine never had costs it most
        start = time.process_time()
        collect_masked_inputs(view, keys, seeds)
        return CpuWork(time.process_time() - start, 0)

    def _unmask(self, view: Transcript, share: float, floors: Floors) -> tuple[CpuWork, int]:
        """Recover all, take masks off for a sample of survivors and lost ones; scale up."""
        view = Transcript(view.session, view.share_commitments)  # as yet without its graph
        assert view.holders(0)  # which were paid for when messages were checked
        lost = range(round(share * self.n))
        seeds = {slot: self.rng.randbytes(32) for slot in range(len(lost), self.n)}
        chosen = [*lost][:UNMASKED_DROPOUTS], [*seeds][:UNMASKED_SURVIVORS]
        secrets = {slot: self.joined[slot].mask.secret for slot in chosen[0]}
        secrets |= {slot: seeds[slot] for slot in chosen[1]}
        reveals = self._sampled_unmasking_shares(view, secrets, lost)
        committed = {slot: commit_seed(seed) for slot, seed in seeds.items()}
        settled = UnmaskingRequest(view, committed, {}, {})
        floors.measure(BURSTS)
        start = time.process_time()
        if lost:
            assert view.graph  # once for all, as are the secrets; the rest is once for each
        unmasking = Unmasking(settled, self.ring, reveals, self.ring.zero())
        once = time.process_time()
        for slot in chosen[0]:
            unmasking.remove_pairwise_masks(slot)
        middle = time.process_time()
        for slot in chosen[1]:
            unmasking.remove_self_mask(slot)
        end = time.process_time()
        floors.measure(BURSTS)
        scale = (len(lost) / max(len(chosen[0]), 1), len(seeds) / len(chosen[1]))
        seconds = once - start + (middle - once) * scale[0] + (end - middle) * scale[1]
        counted = sum(len(settled.survivors & view.graph[slot]) for slot in chosen[0])
        pairs = round(counted * scale[0])
        return unmasking_work(floors, seconds, len(seeds), pairs), len(seeds) + pairs

    def _sampled_unmasking_shares(
        self, view: Transcript, secrets: dict[int, bytes], lost: range
    ) -> dict[int, UnmaskingShares]:
        """Return reveals of all survivors, with true shares of these secrets only."""
        p = view.session.parameters
        given: dict[int, tuple[dict[int, bytes], dict[int, bytes]]] = {
            slot: ({}, {}) for slot in view.share_commitments if slot not in lost
        }
        some = [bytes(SHARE_BYTES)] * (p.holders + 1)
        for owner in view.share_commitments:
            shares = some
            if owner in secrets:
                shares = split(secrets[owner], p.holders + 1, p.threshold, self.rng)
            for holder, one in zip((owner, *view.holders(owner)), shares, strict=True):
                if holder in given:
                    given[holder][owner in lost][owner] = one
        packed = {slot: UnmaskingShares(*shares).pack() for slot, shares in given.items()}
        return {slot: UnmaskingShares.unpack(body + bytes(64)) for slot, body in packed.items()}
