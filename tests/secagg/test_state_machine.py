"""Whatever happens in whatever order: exact or failed, one secret of each, only liars blamed.

A small cohort goes from phase to phase while participants are lost, asked twice, told other
things than the others, and lie. The server that misleads is an active one; the one that sums
in the end keeps to the protocol, with all whom nobody misled.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from secagg import aggregator, unmasking
from secagg.errors import FaultyParticipantError, OutOfPhaseError, RecoveryError, UnsafeRequestError
from secagg.keys import Purpose
from secagg.messages import UnmaskingShares
from secagg.parameters import Assumptions, Mode
from secagg.participant import join
from secagg.shares import EncryptedShare
from tests.examples import fewer
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.faulty import with_entry, with_sharer, without

PHASES = ("sharing", "masking", "confirming", "unmasking", "summing", "over")
GARBAGE = EncryptedShare(bytes(32), bytes(33))
slots = st.integers(0, 11)
few = st.lists(slots, max_size=4).map(lambda drawn: set(drawn[2:]))  # often nobody
several = st.sampled_from((1, 0, 0, 2, 9))


def during(phase: str) -> Callable[[Any], Any]:
    """Enable a rule in `phase`, while at most one more is gone than may be."""
    return precondition(lambda self: PHASES[self.phase] == phase and self.room >= 0)


def by_liar(slot: int, check: Callable[[], None]) -> None:
    with pytest.raises(FaultyParticipantError) as caught:
        check()
    assert caught.value.participant == slot


class _Sum(RuleBasedStateMachine):
    """One cohort, its phase, and all that anybody was made to give."""

    @initialize(
        n=st.integers(6, 12),
        rates=st.sampled_from([(0.1, 0.2), (0.2, 0.2), (0.05, 0.35), (0.1, 0.0)]),
        mode=st.sampled_from(["active", "active", "semi-honest"]),
        liars=st.sets(slots, max_size=2),
        lies=st.tuples(several, several),
        how=st.sampled_from(["truly", "complaining", "silently", "falsely"]),
        seed=st.integers(0, 2**32),
    )
    def gather(
        self,
        n: int,
        rates: tuple[float, float],
        mode: Mode,
        liars: set[int],
        lies: tuple[int, int],
        how: str,
        seed: int,
    ) -> None:
        self.group: Group = assemble(n, Assumptions(*rates, mode=mode), seed)
        self.phase = 0
        self.chance = Random(seed)
        self.liars = liars & self.group.everybody
        self.gone: set[int] = set()  # lost, misled, or refused for a lie
        self.given: dict[int, UnmaskingShares] = {}  # all that anybody was made to reveal
        self.counts, self.how = lies, how  # of false and of garbage parcels; what is revealed
        self.lied = False

    @property
    def room(self) -> int:
        """Return how many more may be lost."""
        return self.group.cohort.n - self.group.cohort.quorum - len(self.gone)

    @precondition(lambda self: PHASES[self.phase] != "over")
    @rule(lost=few)
    def go_on(self, lost: set[int]) -> None:
        """Close the phase, once all who are still there have taken their step."""
        self.gone |= lost & self.group.everybody
        (self.share, self.mask, self.confirm, self.reveal, self.unmask)[self.phase]()

    def teardown(self) -> None:
        """Play to the end, whatever was left undone."""
        while PHASES[getattr(self, "phase", -1)] != "over":
            self.go_on(set())
        self.nobody_gives_both_secrets_of_one()

    def here(self, states: Any) -> list[int]:
        """Return who has a state and is still there, in any order."""
        found = sorted((self.group.everybody & set(states)) - self.gone)
        self.chance.shuffle(found)
        return found

    def close(self, heard: Any) -> None:
        """Go on to the next phase if a quorum was heard, else give up."""
        enough = len(heard) >= max(self.group.cohort.quorum, 2)
        self.phase = self.phase + 1 if enough else PHASES.index("over")

    def lies(
        self,
        liar: int,
        shares: dict[int, bytes],
        purpose: Callable[[Group, int, int], Purpose],
    ) -> dict[int, EncryptedShare]:
        """Return false shares for some of the liar's holders, and garbage for others."""
        found = {}
        for place, (holder, share) in enumerate(shares.items()):
            if place < self.counts[0]:
                sealing = purpose(self.group, liar, holder)
                false = lying.false(share)
                found[holder] = lying.sealed(self.group, liar, holder, false, sealing)
            elif place < sum(self.counts):
                found[holder] = GARBAGE
        self.lied |= bool(found)
        return found

    # Sharing

    @during("sharing")
    @rule(slot=slots, other=slots, is_signed=st.booleans())
    def show_another_roster(self, slot: int, other: int, is_signed: bool) -> None:
        group = self.group
        if slot == other or slot in self.gone or max(slot, other) >= group.cohort.n:
            return
        twin = join(group.identities[other], group.rng)
        facts: dict[str, object] = {"keys": twin.public_keys}
        if is_signed:
            facts["signature"] = twin.advertise(group.cohort.plan_digest)
        cohort = with_entry(group, other, **facts).cohort
        self.gone.add(slot)
        try:
            state, deal = group.joined[slot].share(slot, cohort, group.rng)
        except UnsafeRequestError:
            assert not is_signed
            return
        assert is_signed or other not in state.agreed_secrets or not cohort.assumptions.is_active
        for holder, parcel in zip(state.agreed_secrets, deal.encrypted_shares, strict=True):
            secret = group.joined[holder].encryption_pair.agree(
                group.cohort.roster[slot].keys.encryption
            )
            assert (
                lying.unseal(secret, group.cohort.key_share_purpose(slot, holder), parcel) is None
            )
        by_liar(slot, lambda: aggregator.check_key_shares(group.cohort, slot, deal))

    def share(self) -> None:
        for slot in self.here(self.group.everybody):
            self.group.share([slot])
        for liar in self.liars & self.group.deals.keys():
            shares = lying.key_shares(self.group, liar)
            false = self.lies(liar, shares, lying.key_purpose)
            lying.deal_keys(self.group, liar, false)
        self.view = self.group.view
        self.close(self.group.deals)

    # Masking

    @during("masking")
    @rule(slot=slots, other=slots, how=st.sampled_from(["hide", "graph_nonce", "shares_digest"]))
    def show_another_view(self, slot: int, other: int, how: str) -> None:
        group, chance = self.group, self.chance
        if slot not in self.here(group.shared) or other not in self.view.share_commitments:
            return
        told = (
            without(self.view, [other])
            if how == "hide"
            else with_sharer(self.view, other, **{how: chance.randbytes(32)})
        )
        try:
            _, upload = group.shared[slot].mask(told, RING, group.vector(slot), group.rng)
        except UnsafeRequestError:
            return
        assert slot != other
        self.gone.add(slot)
        by_liar(slot, lambda: aggregator.check_masked_input(self.view, slot, upload))

    def mask(self) -> None:
        for slot in self.here(self.group.shared):
            self.group.mask([slot])
        for liar in self.liars & self.group.uploads.keys():
            shares = lying.seed_shares(self.group, liar)
            lying.upload(self.group, liar, self.lies(liar, shares, lying.seed_purpose))
        self.close(self.group.uploads)

    # Confirming

    @during("confirming")
    @rule(slot=slots, missing=few)
    def show_other_survivors(self, slot: int, missing: set[int]) -> None:
        group, survivors = self.group, self.group.uploads.keys() - missing
        if slot not in self.here(group.masked) or len(survivors) == len(group.uploads):
            return
        try:
            state, signature = group.masked[slot].confirm(survivors)
        except UnsafeRequestError:
            kept = len(survivors & group.masked[slot].agreed_secrets.keys()) + 1
            assert (
                slot in missing
                or len(survivors) < max(group.cohort.quorum, 2)
                or kept < group.cohort.parameters.threshold
            )
            return
        self.gone.add(slot)
        true = frozenset(group.uploads)
        by_liar(slot, lambda: aggregator.check_confirmation(self.view, slot, true, signature))
        if group.cohort.assumptions.is_active:
            with pytest.raises(UnsafeRequestError):
                state.unmask(dict.fromkeys(survivors, bytes(64)), {}, group.rng)

    def confirm(self) -> None:
        for slot in self.here(self.group.masked):
            self.group.confirm([slot])
        self.close(self.group.confirmations)

    # Unmasking

    @during("unmasking")
    @rule(slot=slots, how=st.sampled_from(["forged", "few", "strangers"]))
    def show_bad_signatures(self, slot: int, how: str) -> None:
        group = self.group
        if slot not in self.here(group.confirmed) or not group.cohort.assumptions.is_active:
            return
        shown = {
            "forged": dict.fromkeys(group.confirmations, bytes(64)),
            "few": dict(list(group.confirmations.items())[: group.cohort.quorum - 1]),
            "strangers": {**group.confirmations, 99: bytes(64)},
        }[how]
        with pytest.raises(UnsafeRequestError):
            group.confirmed[slot].unmask(shown, {}, group.rng)
        self.gone.add(slot)

    @during("unmasking")
    @rule(slot=slots)
    def ask_for_the_other_secrets(self, slot: int) -> None:
        group, holders = self.group, self.view.holders
        if slot not in self.here(group.confirmed):
            return
        swapped = {
            owner: group.deals[owner].encrypted_shares[holders(owner).index(slot)]
            for owner in group.uploads
            if slot in holders(owner)
        }
        self.gone.add(slot)
        self.given[slot] = group.confirmed[slot].unmask(group.confirmations, swapped, group.rng)
        assert self.given[slot].invalid_dealers == swapped.keys()

    def reveal(self) -> None:
        group, settled = self.group, self.group.settled
        for slot in self.here(group.confirmed):
            inbox = settled.received_shares[slot]
            said = group.confirmed[slot].unmask(group.confirmations, inbox, group.rng)
            self.given[slot] = said
            if slot in self.liars and self.how != "truly":
                self.lied = True
                said = self.falsified(slot, said)
            if self.how == "silently" and said.signed_bytes() != self.given[slot].signed_bytes():
                by_liar(
                    slot, lambda s=slot, r=said: aggregator.check_unmasking_shares(settled, s, r)
                )
            else:
                aggregator.check_unmasking_shares(settled, slot, said)
                group.reveals[slot] = said
        self.close(group.reveals)

    def falsified(self, slot: int, said: UnmaskingShares) -> UnmaskingShares:
        own = {slot: said.seed_shares[slot]}
        others = frozenset({**said.seed_shares, **said.key_shares}) - {slot}
        instead = {
            "complaining": UnmaskingShares(own, {}, others | said.invalid_dealers),
            "silently": UnmaskingShares(own, {}),
            "falsely": replace(
                said, seed_shares={o: lying.false(s) for o, s in said.seed_shares.items()}
            ),
        }
        return lying.reveal(self.group, slot, instead[self.how])

    # The end

    def unmask(self) -> None:
        group, self.phase = self.group, PHASES.index("over")
        try:
            found = unmasking.unmask(group.settled, RING, group.reveals, group.masked_sum())
        except RecoveryError as error:
            self.failed(error)
            return
        assert same(found.total, group.plain_sum(group.uploads))
        assert found.blamed.keys() <= self.liars

    def failed(self, error: RecoveryError) -> None:
        assert self.lied, "within a quorum the honest have shares enough, but for 2^-30"
        assert error.blamed.keys() <= self.liars

    @precondition(lambda self: PHASES[self.phase] == "over")
    @rule()
    def rest(self) -> None:
        """Do nothing: it is over."""

    @rule(slot=slots)
    def ask_again(self, slot: int) -> None:
        group, true = self.group, frozenset(self.group.uploads)
        if slot in group.shared:
            with pytest.raises(OutOfPhaseError):
                group.joined[slot].share(slot, group.cohort, group.rng)
        if slot in group.uploads:
            with pytest.raises(OutOfPhaseError):
                group.shared[slot].mask(self.view, RING, RING.zero(), group.rng)
        if slot in group.confirmed:
            with pytest.raises(OutOfPhaseError):
                group.masked[slot].confirm(true)
        if slot in self.given:
            with pytest.raises(OutOfPhaseError):
                group.confirmed[slot].unmask(group.confirmations, {}, group.rng)

    @invariant()
    def nobody_gives_both_secrets_of_one(self) -> None:
        given = getattr(self, "given", {})
        seeds = {owner for reveal in given.values() for owner in reveal.seed_shares}
        keys = {owner for reveal in given.values() for owner in reveal.key_shares}
        assert not seeds & keys


_Sum.TestCase.settings = fewer(
    0.6,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSum = _Sum.TestCase
