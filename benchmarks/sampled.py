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
from benchmarks.rows import Row
from benchmarks.server_work import Stopwatch, Work, checking_work, deals_floor, unmasking_work
from secagg.aggregator import (
    Settled,
    Unmasking,
    check_confirmation,
    check_reveal,
    check_shares,
    check_upload,
    settle_deals,
)
from secagg.cohort import Cohort, Entry, Sharer, View
from secagg.deals import KeyDeal, Reveal, SeedDeal, Upload, commit_seed
from secagg.keys import Identity
from secagg.parameters import Assumptions, Mode
from secagg.parcels import (
    ENVELOPE_BYTES,
    PARCEL_BYTES,
    Inbox,
    Parcel,
    commit_share,
    inbox_bytes,
    unpack_parcels,
)
from secagg.participant import Joined, Masked, Shared, join
from secagg.ring import Ring
from secagg.shamir import SHARE_BYTES, split

BURSTS = 10  # of floors, before and after the work
HEARD = 300  # participants whose messages are checked
LOST = 40  # participants whose masks with others are taken off
KEPT = 500  # survivors, with one mask each to take off


@dataclass(slots=True)
class Sampled:
    """The server of a cohort of `n` in `mode`, whose vectors are of `ring`."""

    n: int
    ring: Ring
    mode: Mode
    name: str
    progress: Callable[[], None]
    rng: Random = field(default_factory=SystemRandom)
    watch: Stopwatch = field(default_factory=Stopwatch)
    joined: list[Joined] = field(default_factory=list)

    def rows(self, floors: Floors, shares: tuple[float, ...]) -> list[Row]:
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
            each = {name: spent / HEARD for name, spent in self.watch.seconds.items()}
            heard = checking_work(floors, each, self.n, share, self.mode)
            heard += Work(self.watch.seconds["once"], 0) + self._settled(view, share)
            rows.append(unmasked.row(f"unmask, {self.name}, {share:.0%} lost, {masks:,} masks"))
            what = f"{self.name}, {share:.0%} lost"
            rows.append((heard + unmasked).row(f"all, {what}"))
            kept, holders = self.n * (1 - share), cohort.parameters.holders
            more = Work(0, deals_floor(floors, self.n, kept, holders, self.ring.nbytes))
            rows.append((heard + unmasked + more).row(f"all, {what}, beside hashes of deals too"))
            self.progress()
        return rows

    def _join(self) -> Cohort:
        self.joined = [join(Identity.generate(self.rng), self.rng) for _ in range(self.n)]
        plan = self.rng.randbytes(32)
        roster = tuple(Entry(s.identity.public, s.public, s.advertise(plan)) for s in self.joined)
        return Cohort(plan, 0, roster, Assumptions(0.2, 0.2, mode=self.mode))

    def _share(self, cohort: Cohort) -> tuple[dict[int, Shared], View]:
        sharers = {slot: Sharer(self.rng.randbytes(32), bytes(32)) for slot in range(self.n)}
        shared, bodies = {}, {}
        for slot in range(self.n - HEARD, self.n):  # the first are lost, the last survive
            shared[slot], deal = self.joined[slot].share(slot, cohort, self.rng)
            bodies[slot], sharers[slot] = deal.pack(), deal.sharer
        for slot, body in bodies.items():
            with self.watch.time("deal"):
                check_shares(cohort, slot, KeyDeal.unpack(body))
        return shared, View(cohort, sharers)

    def _mask(self, shared: dict[int, Shared], view: View) -> dict[int, Masked]:
        masked, bodies, total = {}, {}, self.ring.zero()
        for slot, state in shared.items():
            masked[slot], upload = state.mask(view, self.ring, self.ring.zero(), self.rng)
            bodies[slot] = upload.pack()
        view = View(view.cohort, view.sharers)  # who picked whom is not known yet
        with self.watch.time("once"):  # for all that are heard
            assert view.holders(0)
            assert view.label
        for slot, body in bodies.items():
            with self.watch.time("upload"):
                upload = Upload.unpack(body, self.ring.nbytes)
                check_upload(view, slot, upload)
                self.ring.add_packed(total, upload.vector)
        return masked

    def _answer(self, view: View, masked: dict[int, Masked], share: float) -> None:
        """Time the last messages; shares that others would have dealt are drawn."""
        survivors = frozenset(range(round(share * self.n), self.n))
        signatures, reveals, inboxes, own = {}, {}, {}, {}
        for slot, state in masked.items():
            again = Masked(slot, view, state.joined, state.sealing, state.own_share)
            signatures[slot] = again.confirm(survivors)[1]
            owners = view.slots[(view.picks == slot).any(axis=1)].tolist()
            dealt = {owner: bytes(1) + self.rng.randbytes(SHARE_BYTES - 1) for owner in owners}
            parcels = {
                owner: Parcel(commit_share(one), bytes(ENVELOPE_BYTES))
                for owner, one in dealt.items()
            }
            inboxes[slot] = Inbox.unpack(inbox_bytes(parcels))
            own[slot] = commit_share(state.own_share)
            dealt[slot] = state.own_share
            seeds = {owner: one for owner, one in dealt.items() if owner in survivors}
            keys = {owner: one for owner, one in dealt.items() if owner not in survivors}
            identity, inbox = state.joined.identity, inboxes[slot].digest
            reveal = Reveal(seeds, keys)
            answer = view.answer(slot, survivors, inbox, reveal.said())
            reveals[slot] = reveal.signed(identity, answer).pack()
        settled = Settled(view, dict.fromkeys(survivors, bytes(32)), own, inboxes)
        with self.watch.time("once"):
            assert settled.survivors.isdisjoint(settled.lost)
            assert len(settled.wanted) == self.n
            view.confirmation(0, settled.survivors)  # whose digest is that of all
        for slot, signature in signatures.items() if self.mode == "active" else ():
            with self.watch.time("last"):
                check_confirmation(view, slot, settled.survivors, signature)
        for slot, body in reveals.items():
            with self.watch.time("last"):
                check_reveal(settled, slot, Reveal.unpack(body))

    def _settled(self, view: View, share: float) -> Work:
        """Time what settles which parcels matter; what is in them is drawn."""
        nbytes, lost = view.cohort.parameters.holders * PARCEL_BYTES, round(share * self.n)
        dealt = {slot: unpack_parcels(self.rng.randbytes(nbytes)) for slot in range(self.n)}
        keys = {slot: KeyDeal(bytes(32), dealt[slot]) for slot in range(lost)}
        seeds = {slot: SeedDeal(bytes(32), bytes(32), dealt[slot]) for slot in range(lost, self.n)}
        settle_deals(view, keys, seeds)  # memory that a virtual machine never had costs it most
        start = time.process_time()
        settle_deals(view, keys, seeds)
        return Work(time.process_time() - start, 0)

    def _unmask(self, view: View, share: float, floors: Floors) -> tuple[Work, int]:
        """Recover all, take masks off for a sample of survivors and lost ones; scale up."""
        view = View(view.cohort, view.sharers)  # as yet without its graph
        assert view.holders(0)  # which were paid for when messages were checked
        lost = range(round(share * self.n))
        seeds = {slot: self.rng.randbytes(32) for slot in range(len(lost), self.n)}
        chosen = [*lost][:LOST], [*seeds][:KEPT]
        secrets = {slot: self.joined[slot].mask.secret for slot in chosen[0]}
        secrets |= {slot: seeds[slot] for slot in chosen[1]}
        reveals = self._reveals(view, secrets, lost)
        committed = {slot: commit_seed(seed) for slot, seed in seeds.items()}
        settled = Settled(view, committed, {}, {})
        floors.measure(BURSTS)
        start = time.process_time()
        if lost:
            assert view.graph  # once for all, as are the secrets; the rest is once for each
        unmasking = Unmasking(settled, self.ring, reveals, self.ring.zero())
        once = time.process_time()
        for slot in chosen[0]:
            unmasking.take_off_pairwise(slot)
        middle = time.process_time()
        for slot in chosen[1]:
            unmasking.take_off_own(slot)
        end = time.process_time()
        floors.measure(BURSTS)
        scale = (len(lost) / max(len(chosen[0]), 1), len(seeds) / len(chosen[1]))
        seconds = once - start + (middle - once) * scale[0] + (end - middle) * scale[1]
        counted = sum(len(settled.survivors & view.graph[slot]) for slot in chosen[0])
        pairs = round(counted * scale[0])
        return unmasking_work(floors, seconds, len(seeds), pairs), len(seeds) + pairs

    def _reveals(self, view: View, secrets: dict[int, bytes], lost: range) -> dict[int, Reveal]:
        """Return reveals of all survivors, with true shares of these secrets only."""
        p = view.cohort.parameters
        given: dict[int, tuple[dict[int, bytes], dict[int, bytes]]] = {
            slot: ({}, {}) for slot in view.sharers if slot not in lost
        }
        some = [bytes(SHARE_BYTES)] * (p.holders + 1)
        for owner in view.sharers:
            shares = some
            if owner in secrets:
                shares = split(secrets[owner], p.holders + 1, p.threshold, self.rng)
            for holder, one in zip((owner, *view.holders(owner)), shares, strict=True):
                if holder in given:
                    given[holder][owner in lost][owner] = one
        packed = {slot: Reveal(*shares).pack() for slot, shares in given.items()}
        return {slot: Reveal.unpack(body + bytes(64)) for slot, body in packed.items()}
