"""A sum after any events: exact or failed, one secret per dealer, and only liars are blamed.

A small cohort goes from phase to phase. Participants drop out, receive requests twice, receive
inconsistent messages, and lie. The server that sends these messages is active; the server that
computes the sum in the end follows the protocol, with all participants that were not deceived.
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
from secagg.messages import UnmaskingShares
from secagg.parameters import Assumptions
from secagg.participant import join
from tests.examples import fewer
from tests.secagg import lying
from tests.secagg.conftest import RING, Group, assemble, same
from tests.secagg.faulty import with_commitment, with_entry, without

PHASES = ("sharing", "checking", "masking", "confirming", "unmasking", "summing", "over")
slots = st.integers(0, 11)
few = st.lists(slots, max_size=4).map(lambda drawn: set(drawn[2:]))  # often empty
several = st.sampled_from((1, 0, 0, 2, 9))


def during(phase: str) -> Callable[[Any], Any]:
    """Enable a rule in `phase`, while the dropouts are at most one more than allowed."""
    return precondition(lambda self: PHASES[self.phase] == phase and self.room >= 0)


def by_liar(slot: int, check: Callable[[], None]) -> None:
    with pytest.raises(FaultyParticipantError) as caught:
        check()
    assert caught.value.participant == slot


class _Sum(RuleBasedStateMachine):
    """One cohort, its phase, and all revealed shares."""

    @initialize(
        n=st.integers(6, 12),
        rates=st.sampled_from([(0.1, 0.2), (0.2, 0.2), (0.05, 0.35), (0.1, 0.0)]),
        liars=st.sets(slots, max_size=2),
        lies=st.tuples(several, several),
        how=st.sampled_from(["truly", "complaining", "unanswering", "silently", "falsely"]),
        seed=st.integers(0, 2**32),
    )
    def gather(
        self,
        n: int,
        rates: tuple[float, float],
        liars: set[int],
        lies: tuple[int, int],
        how: str,
        seed: int,
    ) -> None:
        self.group: Group = assemble(n, Assumptions(*rates), seed)
        self.phase = 0
        self.chance = Random(seed)
        self.liars = liars & self.group.all_slots
        self.gone: set[int] = set()  # dropped out, deceived, or refused for a lie
        self.given: dict[int, UnmaskingShares] = {}  # by holder, also to the active server
        self.counts, self.how = lies, how  # of false and garbage shares; how liars act later
        self.lied = False

    @property
    def room(self) -> int:
        return self.group.session.n - self.group.session.quorum - len(self.gone)

    @precondition(lambda self: PHASES[self.phase] != "over")
    @rule(dropouts=few)
    def close_phase(self, dropouts: set[int]) -> None:
        """Close the phase, after all present participants have taken their step."""
        self.gone |= dropouts & self.group.all_slots
        steps = self.share, self.check, self.mask, self.confirm, self.reveal, self.unmask
        steps[self.phase]()

    def teardown(self) -> None:
        while PHASES[getattr(self, "phase", -1)] != "over":
            self.close_phase(set())
        self.no_dealer_has_both_secrets_revealed()

    def here(self, states: Any) -> list[int]:
        present = sorted((self.group.all_slots & set(states)) - self.gone)
        self.chance.shuffle(present)
        return present

    def close(self, received: Any) -> None:
        enough = len(received) >= max(self.group.session.quorum, 2)
        self.phase = self.phase + 1 if enough else PHASES.index("over")

    def spoil(self, liar: int) -> None:
        """Send false shares to some of the liar's holders, and garbage to others."""
        group, (false, garbage) = self.group, self.counts
        holders = group.shared[liar].holders
        for which, shares in (
            ("key", lying.key_shares(group, liar)),
            ("seed", lying.seed_shares(group, liar)),
        ):
            chosen = {holder: lying.false(shares[holder]) for holder in holders[:false]}
            lying.send_shares(group, liar, which, chosen)
        spoiled = holders[false : false + garbage]
        pairs = {holder: lying.spoiled(group, liar, holder, "both") for holder in spoiled}
        lying.replace_key_shares(group, liar, pairs)
        self.lied |= false > 0

    # Sharing

    @during("sharing")
    @rule(slot=slots, other=slots, is_signed=st.booleans())
    def show_another_roster(self, slot: int, other: int, is_signed: bool) -> None:
        group = self.group
        if slot == other or slot in self.gone or max(slot, other) >= group.session.n:
            return
        twin = join(group.identities[other], group.rng)
        facts: dict[str, object] = {"keys": twin.public_keys}
        if is_signed:
            facts["signature"] = twin.advertise(group.session.plan_digest)
        session = with_entry(group.session, other, **facts)
        self.gone.add(slot)
        try:
            state, key_shares = group.joined[slot].share(slot, session, group.rng)
        except UnsafeRequestError:
            assert not is_signed
            return
        assert is_signed or other not in state.holders
        for holder, pair in zip(state.holders, key_shares.share_pairs, strict=True):
            purpose = group.session.key_share_purpose(slot, holder)
            assert lying.unseal(group.agree(holder, slot), purpose, pair.key) is None
        by_liar(slot, lambda: aggregator.check_key_shares(group.session, slot, key_shares))

    def share(self) -> None:
        for slot in self.here(self.group.all_slots):
            self.group.share([slot])
        for liar in self.liars & self.group.key_shares.keys():
            self.spoil(liar)
        self.close(self.group.key_shares)

    # Checking

    @during("checking")
    @rule(slot=slots, dealer=slots)
    def forward_another_pair(self, slot: int, dealer: int) -> None:
        group = self.group
        if slot not in self.here(group.shared) or dealer not in group.received[slot]:
            return
        received = {**group.received[slot], dealer: lying.spoiled(group, dealer, slot, "seed")}
        _, complaints = group.shared[slot].check(received)
        self.gone.add(slot)
        if dealer not in self.liars:
            assert dealer in complaints.signatures
            by_liar(
                slot,
                lambda: aggregator.check_complaints(
                    group.session, slot, group.received[slot], complaints
                ),
            )

    def check(self) -> None:
        group = self.group
        group.check(self.here(group.shared))
        if self.how == "complaining":
            for liar in self.liars & group.checked.keys():
                lying.complain(group, liar, group.received[liar].dealers)
        accused = group.complaints_by_dealer.keys()
        for dealer in accused:
            if dealer in self.liars and (self.how == "unanswering" or any(self.counts)):
                self.gone.add(dealer)
            else:
                group.answer([dealer])
        self.transcript = group.transcript
        assert group.checked.keys() - self.transcript.share_commitments <= self.liars
        self.close(self.transcript.share_commitments)

    # Masking

    @during("masking")
    @rule(slot=slots, other=slots, how=st.sampled_from(["hide", "graph_nonce", "shares_digest"]))
    def show_another_transcript(self, slot: int, other: int, how: str) -> None:
        group, chance = self.group, self.chance
        dealers = self.transcript.share_commitments
        if slot not in self.here(group.checked) or other not in dealers:
            return
        shown = (
            without(self.transcript, [other])
            if how == "hide"
            else with_commitment(self.transcript, other, **{how: chance.randbytes(32)})
        )
        try:
            _, upload = group.checked[slot].mask(shown, RING, group.vector(slot))
        except UnsafeRequestError:
            return
        assert slot != other
        self.gone.add(slot)
        by_liar(slot, lambda: aggregator.check_masked_input(self.transcript, slot, upload))

    def mask(self) -> None:
        for slot in self.here(self.transcript.share_commitments):
            self.group.mask([slot])
        self.close(self.group.masked_inputs)

    # Confirming

    @during("confirming")
    @rule(slot=slots, missing=few)
    def show_other_survivors(self, slot: int, missing: set[int]) -> None:
        group, survivors = self.group, self.group.masked_inputs.keys() - missing
        if slot not in self.here(group.masked) or len(survivors) == len(group.masked_inputs):
            return
        try:
            state, signature = group.masked[slot].confirm(survivors)
        except UnsafeRequestError:
            kept = len(survivors.intersection(group.shared[slot].holders)) + 1
            assert (
                slot in missing
                or len(survivors) < max(group.session.quorum, 2)
                or kept < group.session.parameters.threshold
            )
            return
        self.gone.add(slot)
        true = frozenset(group.masked_inputs)
        by_liar(slot, lambda: aggregator.check_confirmation(self.transcript, slot, true, signature))
        with pytest.raises(UnsafeRequestError):
            state.unmask(dict.fromkeys(survivors, bytes(64)), group.signed_inputs, group.rng)

    def confirm(self) -> None:
        for slot in self.here(self.group.masked):
            self.group.confirm([slot])
        self.close(self.group.confirmations)

    # Unmasking

    @during("unmasking")
    @rule(slot=slots, how=st.sampled_from(["forged", "few", "strangers"]))
    def show_bad_signatures(self, slot: int, how: str) -> None:
        group = self.group
        if slot not in self.here(group.confirmed):
            return
        shown = {
            "forged": dict.fromkeys(group.confirmations, bytes(64)),
            "few": dict(list(group.confirmations.items())[: group.session.quorum - 1]),
            "strangers": {**group.confirmations, 99: bytes(64)},
        }[how]
        with pytest.raises(UnsafeRequestError):
            group.confirmed[slot].unmask(shown, group.signed_inputs, group.rng)
        self.gone.add(slot)

    @during("unmasking")
    @rule(slot=slots, dealer=slots)
    def show_no_signature_of_a_survivor(self, slot: int, dealer: int) -> None:
        group = self.group
        is_held = dealer in self.transcript.dealers_of.get(slot, ())
        if slot not in self.here(group.confirmed):
            return
        if not is_held or dealer not in group.checked[slot].seed_shares.keys() & group.masked:
            return
        shown = {**group.signed_inputs, dealer: group.signed_inputs[slot]}
        with pytest.raises(UnsafeRequestError):
            group.confirmed[slot].unmask(group.confirmations, shown, group.rng)
        self.gone.add(slot)

    def reveal(self) -> None:
        group, request = self.group, self.group.request
        for slot in self.here(group.confirmed):
            message = group.confirmed[slot].unmask(
                group.confirmations, group.signed_inputs, group.rng
            )
            self.given[slot] = message
            if slot in self.liars and self.how in {"silently", "falsely"}:
                self.lied = True
                message = self.falsified(slot, message)
            if slot in self.liars and self.how == "complaining":
                message = self.without_accused(slot, message)
            if self.how == "silently" and message.signed_bytes() != self.given[slot].signed_bytes():
                by_liar(
                    slot, lambda s=slot, r=message: aggregator.check_unmasking_shares(request, s, r)
                )
            else:
                aggregator.check_unmasking_shares(request, slot, message)
                group.unmasking_shares[slot] = message
        self.close(group.unmasking_shares)

    def without_accused(self, slot: int, message: UnmaskingShares) -> UnmaskingShares:
        """Return `message` without the shares of the dealers that `slot` complained about."""
        kept = self.group.request.dealers_of(slot) | {slot}
        seeds = {d: share for d, share in message.seed_shares.items() if d in kept}
        keys = {d: share for d, share in message.key_shares.items() if d in kept}
        return lying.reveal(self.group, slot, UnmaskingShares(seeds, keys))

    def falsified(self, slot: int, message: UnmaskingShares) -> UnmaskingShares:
        own = {slot: message.seed_shares[slot]}
        instead = {
            "silently": UnmaskingShares(own, {}),
            "falsely": replace(
                message, seed_shares={o: lying.false(s) for o, s in message.seed_shares.items()}
            ),
        }
        return lying.reveal(self.group, slot, instead[self.how])

    # The end

    def unmask(self) -> None:
        group, self.phase = self.group, PHASES.index("over")
        try:
            result = unmasking.unmask(group.request, RING, group.messages(), group.masked_sum())
        except RecoveryError as error:
            self.failed(error)
            return
        assert same(result.total, group.plain_sum(group.masked_inputs))
        assert result.blamed.keys() <= self.liars

    def failed(self, error: RecoveryError) -> None:
        assert self.lied, "too few shares of the honest, which has probability 2^-30"
        assert error.blamed.keys() <= self.liars

    @precondition(lambda self: PHASES[self.phase] == "over")
    @rule()
    def stay(self) -> None:
        """Stay in the final phase, in which no other rule is enabled."""

    @rule(slot=slots)
    def request_again(self, slot: int) -> None:
        group, true = self.group, frozenset(self.group.masked_inputs)
        if slot in group.shared:
            with pytest.raises(OutOfPhaseError):
                group.joined[slot].share(slot, group.session, group.rng)
        if slot in group.masked_inputs:
            with pytest.raises(OutOfPhaseError):
                group.checked[slot].mask(self.transcript, RING, RING.zero())
        if slot in group.confirmed:
            with pytest.raises(OutOfPhaseError):
                group.masked[slot].confirm(true)
        if slot in self.given:
            with pytest.raises(OutOfPhaseError):
                group.confirmed[slot].unmask(group.confirmations, group.signed_inputs, group.rng)

    @invariant()
    def no_dealer_has_both_secrets_revealed(self) -> None:
        given = getattr(self, "given", {})
        seeds = {dealer for reveal in given.values() for dealer in reveal.seed_shares}
        keys = {dealer for reveal in given.values() for dealer in reveal.key_shares}
        assert not seeds & keys


_Sum.TestCase.settings = fewer(
    0.3,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestSum = _Sum.TestCase
