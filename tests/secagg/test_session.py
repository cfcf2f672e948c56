"""A label stands for all facts: change one, and nobody's keys agree any more."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from secagg.errors import InfeasibleError
from secagg.keys import Identity, KeyPair, PublicKeys
from secagg.parameters import Assumptions
from secagg.roster import RosterEntry, ShareCommitment
from secagg.session import Registry, Session, Transcript
from tests.secagg.conftest import Group

N = 12
Gather = Callable[..., Group]


@pytest.fixture(scope="module")
def cohort(gather: Gather) -> Session:
    return gather(N).cohort


@pytest.fixture(scope="module")
def view(gather: Gather) -> Transcript:
    return gather(N).share()


def with_entry(cohort: Session, slot: int, **facts: Any) -> Session:
    entries = list(cohort.roster)
    entries[slot] = replace(entries[slot], **facts)
    return replace(cohort, roster=tuple(entries))


def fresh_keys(rng: Random) -> PublicKeys:
    return PublicKeys(KeyPair.generate(rng).public, KeyPair.generate(rng).public)


def with_sharer(view: Transcript, slot: int, **facts: Any) -> Transcript:
    return Transcript(
        view.session,
        {**view.share_commitments, slot: replace(view.share_commitments[slot], **facts)},
    )


def test_each_fact_of_a_cohort_changes_its_label(cohort: Session, gather: Gather) -> None:
    stranger = gather(1 + N, seed=9).cohort.roster[0]
    keys, first, second = cohort.roster[3].keys, *cohort.roster[:2]
    rest = cohort.roster[2:]
    others = [
        replace(cohort, plan_digest=bytes(32)),
        replace(cohort, cohort_number=1),
        with_entry(cohort, 3, signature=bytes(64)),
        replace(cohort, roster=(second, first, *rest)),
        replace(cohort, roster=cohort.roster[:-1]),
        replace(cohort, roster=(*cohort.roster, stranger)),
        with_entry(cohort, 3, identity=stranger.identity),
        with_entry(cohort, 3, keys=PublicKeys(stranger.keys.mask, keys.encryption)),
        with_entry(cohort, 3, keys=PublicKeys(keys.mask, stranger.keys.encryption)),
        with_entry(cohort, 3, keys=PublicKeys(keys.encryption, keys.mask)),
        replace(
            cohort, roster=tuple(replace(e, registrar_signature=bytes(64)) for e in cohort.roster)
        ),
    ]
    assert len({c.label for c in (cohort, *others)}) == len(others) + 1


def test_each_parameter_changes_the_label(cohort: Session) -> None:
    rates = [(0.1, 0.2), (0.05, 0.05), (0.05, 0.1), (0.2, 0.2), (0, 0.3), (0.3, 0.1)]
    every = [
        replace(cohort, assumptions=Assumptions(c, d, mode=mode))
        for c, d in rates
        for mode in ("active", "semi-honest")
    ]
    assert len({c.parameters.holders for c in every}) > 1
    assert len({replace(c.parameters, slack=0) for c in every}) == len({c.label for c in every})


def test_a_label_is_made_of_what_it_stands_for_only(cohort: Session) -> None:
    assert replace(cohort).label == cohort.label


def test_entries_never_run_together() -> None:
    # Were enrolments of any size just joined, slot 1 could be one device for some and another
    # for the others, under one label.
    rng = Random(1)
    one, honest, crooked = (
        RosterEntry(Identity.generate(rng).public, fresh_keys(rng), bytes(64)) for _ in range(3)
    )
    stories = (
        (replace(one, registrar_signature=crooked.pack()), honest),
        (one, replace(crooked, registrar_signature=honest.pack())),
    )
    joined = {b"".join(entry.pack() for entry in roster) for roster in stories}
    assert len(joined) == 1
    for roster in stories:
        with pytest.raises(ValueError, match="different sizes"):
            Session(bytes(32), 0, roster, Assumptions(0, 0))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_plans_digest_has_32_bytes(cohort: Session, size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        replace(cohort, plan_digest=bytes(size))


@pytest.mark.parametrize("size", [0, 63, 65])
def test_the_signature_of_an_entry_has_64_bytes(cohort: Session, size: int) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        with_entry(cohort, 3, signature=bytes(size))


def test_a_cohort_that_cannot_be_kept_safe_is_refused_at_once(cohort: Session) -> None:
    with pytest.raises(InfeasibleError, match="hides nothing"):
        replace(cohort, roster=cohort.roster[:1])


def test_each_fact_of_a_view_changes_its_label(view: Transcript) -> None:
    sharers = dict(view.share_commitments)
    without = {slot: sharer for slot, sharer in sharers.items() if slot != 3}
    moved = {**without, 3: sharers[4], 4: sharers[3]}
    others = [
        Transcript(view.session, without),
        Transcript(view.session, moved),
        with_sharer(view, 3, graph_nonce=bytes(32)),
        with_sharer(view, 3, shares_digest=bytes(32)),
        Transcript(replace(view.session, plan_digest=bytes(32)), sharers),
        Transcript(view.session, {}),
    ]
    assert len({v.label for v in (view, *others)}) == len(others) + 1


def test_in_what_order_sharers_are_told_changes_nothing(view: Transcript) -> None:
    backwards = dict(reversed(view.share_commitments.items()))
    assert Transcript(view.session, backwards).label == view.label


def test_the_label_of_a_view_is_never_that_of_its_cohort(view: Transcript) -> None:
    assert Transcript(view.session, {}).label != view.session.label


@pytest.mark.parametrize(
    ("slot", "sharer"),
    [
        (-1, ShareCommitment(bytes(32), bytes(32))),
        (N, ShareCommitment(bytes(32), bytes(32))),
        (0, ShareCommitment(bytes(31), bytes(33))),  # as long together as it should be
        (0, ShareCommitment(bytes(33), bytes(31))),
        (0, ShareCommitment(b"", bytes(32))),
    ],
)
def test_sharers_outside_the_cohort_or_of_a_wrong_size_are_refused(
    cohort: Session, slot: int, sharer: ShareCommitment
) -> None:
    with pytest.raises(ValueError, match="not in the cohort, or a wrong size"):
        Transcript(cohort, {slot: sharer})


def test_all_purposes_of_a_sum_differ(view: Transcript) -> None:
    purposes = [
        view.self_mask_purpose(1),
        view.pairwise_mask_purpose(1, 2),
        view.pairwise_mask_purpose(1, 3),
    ]
    for owner, holder in ((1, 2), (2, 1), (1, 3)):
        purposes += [
            view.seed_share_purpose(owner, holder),
            view.session.key_share_purpose(owner, holder),
        ]
    assert len({p.info() for p in purposes}) == len(purposes)
    assert len({p.derive(bytes(32)) for p in purposes}) == len(purposes)
    assert view.pairwise_mask_purpose(2, 1) == view.pairwise_mask_purpose(1, 2)


def test_the_graph_is_everybodys_partners(gather: Gather) -> None:
    for mode in ("active", "semi-honest"):
        here = gather(25, Assumptions(0.1, 0.2, mode=mode)).share(range(2, 25))
        alone = {slot: here.neighbours(slot) for slot in here.share_commitments}
        assert here.graph == alone
        assert {slot: here.neighbours(slot) for slot in here.share_commitments} == alone


def test_an_entry_is_vouched_for_by_its_identity_under_the_plan(cohort: Session) -> None:
    assert all(cohort.is_authentic(slot) for slot in range(N))
    entries = cohort.roster
    mine, theirs = entries[3].keys, entries[4].keys
    for crooked in (
        replace(cohort, plan_digest=bytes(32)),
        with_entry(cohort, 3, signature=entries[4].signature),
        with_entry(cohort, 3, keys=PublicKeys(theirs.mask, mine.encryption)),
        with_entry(cohort, 3, keys=PublicKeys(mine.mask, theirs.encryption)),
        with_entry(cohort, 3, keys=PublicKeys(mine.encryption, mine.mask)),
        with_entry(cohort, 3, identity=entries[4].identity),
    ):
        assert not crooked.is_authentic(3)
    assert replace(cohort, cohort_number=7).is_authentic(3)  # it may sit in any cohort of the plan


def test_with_a_registry_an_entry_is_enrolled_too(gather: Gather) -> None:
    cohort = gather(N, registrar=Identity.of(b"r" * 32)).cohort
    assert all(cohort.is_authentic(slot) for slot in range(N))
    assert not with_entry(
        cohort, 3, registrar_signature=cohort.roster[4].registrar_signature
    ).is_authentic(3)
    assert not with_entry(cohort, 3, registrar_signature=bytes(64)).is_authentic(3)


def test_a_confirmation_names_the_view_the_slot_and_exactly_the_survivors(view: Transcript) -> None:
    survivors = frozenset(range(10))
    said = view.confirmation_statement(3, survivors)
    others = [
        view.confirmation_statement(4, survivors),
        view.confirmation_statement(3, survivors - {9}),
        view.confirmation_statement(3, survivors | {11}),
        with_sharer(view, 5, shares_digest=bytes(32)).confirmation_statement(3, survivors),
    ]
    assert len({said, *others}) == 5


def test_a_registry_admits_whom_its_registrar_signed_for_its_scope() -> None:
    registrar, device, other = (Identity.of(bytes([x]) * 32) for x in (1, 2, 3))
    registry = Registry(registrar.public, b"S" * 32)
    signature = registrar.sign(registry.enrolment_statement(device.public))
    assert registry.admits(device.public, signature)
    assert not registry.admits(other.public, signature)
    assert not registry.admits(
        device.public, device.sign(registry.enrolment_statement(device.public))
    )
    assert not registry.admits(device.public, b"")
    assert not replace(registry, scope=b"T" * 32).admits(device.public, signature)
    assert not replace(registry, registrar=other.public).admits(device.public, signature)


def test_an_entry_with_an_identity_of_low_order_is_refused(cohort: Session) -> None:
    with pytest.raises(ValueError, match="low order"):
        RosterEntry(bytes(32), cohort.roster[0].keys, bytes(64))
