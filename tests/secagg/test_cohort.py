"""A label stands for all facts: change one, and nobody's keys agree any more."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from secagg.cohort import Cohort, Entry, Registry, Sharer, View
from secagg.errors import InfeasibleError
from secagg.keys import Identity, KeyPair, PublicKeys
from secagg.parameters import Assumptions
from tests.secagg.conftest import Group

N = 12
Gather = Callable[..., Group]


@pytest.fixture(scope="module")
def cohort(gather: Gather) -> Cohort:
    return gather(N).cohort


@pytest.fixture(scope="module")
def view(gather: Gather) -> View:
    return gather(N).share()


def with_entry(cohort: Cohort, slot: int, **facts: Any) -> Cohort:
    entries = list(cohort.roster)
    entries[slot] = replace(entries[slot], **facts)
    return replace(cohort, roster=tuple(entries))


def fresh_keys(rng: Random) -> PublicKeys:
    return PublicKeys(KeyPair.generate(rng).public, KeyPair.generate(rng).public)


def with_sharer(view: View, slot: int, **facts: Any) -> View:
    return View(view.cohort, {**view.sharers, slot: replace(view.sharers[slot], **facts)})


def test_each_fact_of_a_cohort_changes_its_label(cohort: Cohort, gather: Gather) -> None:
    stranger = gather(1 + N, seed=9).cohort.roster[0]
    keys, first, second = cohort.roster[3].keys, *cohort.roster[:2]
    rest = cohort.roster[2:]
    others = [
        replace(cohort, plan=bytes(32)),
        replace(cohort, number=1),
        with_entry(cohort, 3, signature=bytes(64)),
        replace(cohort, roster=(second, first, *rest)),
        replace(cohort, roster=cohort.roster[:-1]),
        replace(cohort, roster=(*cohort.roster, stranger)),
        with_entry(cohort, 3, identity=stranger.identity),
        with_entry(cohort, 3, keys=PublicKeys(stranger.keys.mask, keys.seal)),
        with_entry(cohort, 3, keys=PublicKeys(keys.mask, stranger.keys.seal)),
        with_entry(cohort, 3, keys=PublicKeys(keys.seal, keys.mask)),
        replace(cohort, roster=tuple(replace(e, enrolment=bytes(64)) for e in cohort.roster)),
    ]
    assert len({c.label for c in (cohort, *others)}) == len(others) + 1


def test_each_parameter_changes_the_label(cohort: Cohort) -> None:
    rates = [(0.1, 0.2), (0.05, 0.05), (0.05, 0.1), (0.2, 0.2), (0, 0.3), (0.3, 0.1)]
    every = [
        replace(cohort, assumptions=Assumptions(c, d, mode=mode))
        for c, d in rates
        for mode in ("active", "semi-honest")
    ]
    assert len({c.parameters.holders for c in every}) > 1
    assert len({replace(c.parameters, slack=0) for c in every}) == len({c.label for c in every})


def test_a_label_is_made_of_what_it_stands_for_only(cohort: Cohort) -> None:
    assert replace(cohort).label == cohort.label


def test_entries_never_run_together() -> None:
    # Were enrolments of any size just joined, slot 1 could be one device for some and another
    # for the others, under one label.
    rng = Random(1)
    one, honest, crooked = (
        Entry(Identity.generate(rng).public, fresh_keys(rng), bytes(64)) for _ in range(3)
    )
    stories = (
        (replace(one, enrolment=crooked.pack()), honest),
        (one, replace(crooked, enrolment=honest.pack())),
    )
    joined = {b"".join(entry.pack() for entry in roster) for roster in stories}
    assert len(joined) == 1
    for roster in stories:
        with pytest.raises(ValueError, match="different sizes"):
            Cohort(bytes(32), 0, roster, Assumptions(0, 0))


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_plans_digest_has_32_bytes(cohort: Cohort, size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        replace(cohort, plan=bytes(size))


@pytest.mark.parametrize("size", [0, 63, 65])
def test_the_signature_of_an_entry_has_64_bytes(cohort: Cohort, size: int) -> None:
    with pytest.raises(ValueError, match="64 bytes"):
        with_entry(cohort, 3, signature=bytes(size))


def test_a_cohort_that_cannot_be_kept_safe_is_refused_at_once(cohort: Cohort) -> None:
    with pytest.raises(InfeasibleError, match="hides nothing"):
        replace(cohort, roster=cohort.roster[:1])


def test_each_fact_of_a_view_changes_its_label(view: View) -> None:
    sharers = dict(view.sharers)
    without = {slot: sharer for slot, sharer in sharers.items() if slot != 3}
    moved = {**without, 3: sharers[4], 4: sharers[3]}
    others = [
        View(view.cohort, without),
        View(view.cohort, moved),
        with_sharer(view, 3, contribution=bytes(32)),
        with_sharer(view, 3, digest=bytes(32)),
        View(replace(view.cohort, plan=bytes(32)), sharers),
        View(view.cohort, {}),
    ]
    assert len({v.label for v in (view, *others)}) == len(others) + 1


def test_in_what_order_sharers_are_told_changes_nothing(view: View) -> None:
    backwards = dict(reversed(view.sharers.items()))
    assert View(view.cohort, backwards).label == view.label


def test_the_label_of_a_view_is_never_that_of_its_cohort(view: View) -> None:
    assert View(view.cohort, {}).label != view.cohort.label


@pytest.mark.parametrize(
    ("slot", "sharer"),
    [
        (-1, Sharer(bytes(32), bytes(32))),
        (N, Sharer(bytes(32), bytes(32))),
        (0, Sharer(bytes(31), bytes(33))),  # as long together as it should be
        (0, Sharer(bytes(33), bytes(31))),
        (0, Sharer(b"", bytes(32))),
    ],
)
def test_sharers_outside_the_cohort_or_of_a_wrong_size_are_refused(
    cohort: Cohort, slot: int, sharer: Sharer
) -> None:
    with pytest.raises(ValueError, match="no such sharer"):
        View(cohort, {slot: sharer})


def test_all_purposes_of_a_sum_differ(view: View) -> None:
    purposes = [view.own(1), view.pairwise(1, 2), view.pairwise(1, 3)]
    for owner, holder in ((1, 2), (2, 1), (1, 3)):
        purposes += [view.seed_share(owner, holder), view.cohort.key_share(owner, holder)]
    assert len({p.info() for p in purposes}) == len(purposes)
    assert len({p.derive(bytes(32)) for p in purposes}) == len(purposes)
    assert view.pairwise(2, 1) == view.pairwise(1, 2)


def test_the_graph_is_everybodys_partners(gather: Gather) -> None:
    for mode in ("active", "semi-honest"):
        here = gather(25, Assumptions(0.1, 0.2, mode=mode)).share(range(2, 25))
        alone = {slot: here.partners(slot) for slot in here.sharers}
        assert here.graph == alone
        assert {slot: here.partners(slot) for slot in here.sharers} == alone


def test_an_entry_is_vouched_for_by_its_identity_under_the_plan(cohort: Cohort) -> None:
    assert all(cohort.vouches(slot) for slot in range(N))
    entries = cohort.roster
    mine, theirs = entries[3].keys, entries[4].keys
    for crooked in (
        replace(cohort, plan=bytes(32)),
        with_entry(cohort, 3, signature=entries[4].signature),
        with_entry(cohort, 3, keys=PublicKeys(theirs.mask, mine.seal)),
        with_entry(cohort, 3, keys=PublicKeys(mine.mask, theirs.seal)),
        with_entry(cohort, 3, keys=PublicKeys(mine.seal, mine.mask)),
        with_entry(cohort, 3, identity=entries[4].identity),
    ):
        assert not crooked.vouches(3)
    assert replace(cohort, number=7).vouches(3)  # it may sit in any cohort of the plan


def test_with_a_registry_an_entry_is_enrolled_too(gather: Gather) -> None:
    cohort = gather(N, registrar=Identity.of(b"r" * 32)).cohort
    assert all(cohort.vouches(slot) for slot in range(N))
    assert not with_entry(cohort, 3, enrolment=cohort.roster[4].enrolment).vouches(3)
    assert not with_entry(cohort, 3, enrolment=bytes(64)).vouches(3)


def test_a_confirmation_names_the_view_the_slot_and_exactly_the_survivors(view: View) -> None:
    survivors = frozenset(range(10))
    said = view.confirmation(3, survivors)
    others = [
        view.confirmation(4, survivors),
        view.confirmation(3, survivors - {9}),
        view.confirmation(3, survivors | {11}),
        with_sharer(view, 5, digest=bytes(32)).confirmation(3, survivors),
    ]
    assert len({said, *others}) == 5


def test_a_registry_admits_whom_its_registrar_signed_for_its_scope() -> None:
    registrar, device, other = (Identity.of(bytes([x]) * 32) for x in (1, 2, 3))
    registry = Registry(registrar.public, b"S" * 32)
    signature = registrar.sign(registry.enrolment(device.public))
    assert registry.admits(device.public, signature)
    assert not registry.admits(other.public, signature)
    assert not registry.admits(device.public, device.sign(registry.enrolment(device.public)))
    assert not registry.admits(device.public, b"")
    assert not replace(registry, scope=b"T" * 32).admits(device.public, signature)
    assert not replace(registry, registrar=other.public).admits(device.public, signature)


def test_an_entry_with_an_identity_of_low_order_is_refused(cohort: Cohort) -> None:
    with pytest.raises(ValueError, match="low order"):
        Entry(bytes(32), cohort.roster[0].keys, bytes(64))
