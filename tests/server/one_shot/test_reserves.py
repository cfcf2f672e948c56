"""Committees that fail: in which rounds other operators take their place, and what devices lose."""

from typing import Any

import pytest

from protocol.api.phases import MemberMessageKind, Phase
from protocol.committee_terms import CommitteeTerms
from protocol.device_policy.policy import Policy, PolicyError
from secagg.keys import Identity
from secagg.oneshot.committee import Committee
from tests.server.harness import Served
from tests.server.one_shot.rounds import (
    MINIMUM,
    TERMS,
    Operators,
    convene,
    create,
    one_shot_device,
    open_sum,
    phase_of,
    send,
    sum_of_vectors,
)

NAMED = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 10))
COMMITTEE: dict[str, Any] = {
    "members": tuple(each.public.hex() for each in NAMED),
    "dropout": 0.34,
    "size": 7,
}
POLICY = Policy(
    min_cohort=MINIMUM,
    min_threshold=0,
    committee=frozenset(each.public for each in NAMED),
    trust_server_identities=True,
)


async def create_with_reserves(served: Served) -> tuple[str, Operators]:
    """Create a study of two rounds whose committee has seven of nine operators."""
    study = await create(served, terms=TERMS | {"committee": COMMITTEE}, rounds=2)
    return study, Operators.of(identities=NAMED)


def members(committee: str | None) -> list[int]:
    """Return the numbers of the members of a packed committee among the named operators."""
    entries = Committee.unpack(bytes.fromhex(committee or "")).entries
    publics = [each.public for each in NAMED]
    return [publics.index(entry.identity) for entry in entries]


@pytest.mark.parametrize("away", [set[int](), {1, 4}, {0, 2, 7}])
async def test_reserves_take_the_place_of_absent_operators(served: Served, away: set[int]) -> None:
    study, operators = await create_with_reserves(served)
    operators.away = away
    view = await convene(served, study, operators)
    expected = [number for number in range(9) if number not in away][:7]
    assert members(view.cohorts[0].committee) == expected
    vectors = [await send(served, view, one_shot_device(n), POLICY) for n in range(5)]
    closed = await open_sum(served, study, operators)
    assert (closed.state, closed.participants) == ("decoded", 5)
    assert await served.read_sum(study) == sum_of_vectors(view, vectors)
    received = [record.received for record in closed.cohorts[0].history]
    assert received[2] == len(expected)
    assert operators.refusals == []  # reserves are not asked for more than their key


async def test_a_committee_that_does_not_convene_costs_no_device_its_part(served: Served) -> None:
    study, operators = await create_with_reserves(served)
    operators.away = {0, 1, 2, 3}
    await operators.act(served)
    assert await served.pass_phase(study) is Phase.FAILED
    failed = (await served.until_closed(study)).cohorts[0]
    assert "5 of 9 registered keys for the committee" in (failed.failure or "")
    assert failed.enrolled == 0  # no device was asked
    operators.away = set()
    view = await convene(served, study, operators, 2)
    vectors = [await send(served, view, one_shot_device(n), POLICY) for n in range(5)]
    assert (await open_sum(served, study, operators, 2)).state == "decoded"
    assert await served.read_sum(study, 2) == sum_of_vectors(view, vectors)


async def test_a_committee_that_drops_out_is_followed_by_one_of_other_members(
    served: Served,
) -> None:
    """Nothing of the messages of the failed round is released, then or by the next committee."""
    study, operators = await create_with_reserves(served)
    first = await convene(served, study, operators)
    devices = [one_shot_device(n) for n in range(5)]
    for device in devices:
        await send(served, first, device, POLICY)
    cohort, committee = await served.store.committees.committee(study, 1)
    operators.away = {2, 5}  # while devices send; one may drop out
    await served.pass_phase(study)
    await operators.act(served)
    assert await served.pass_phase(study) is Phase.FAILED
    await served.until_closed(study)
    assert await served.store.committees.bodies(cohort, MemberMessageKind.SUM) == {}
    page = await served.store.one_shot_messages.page(cohort, "", 10)
    assert [body for _, body in page] == [None] * 5  # encrypted shares are deleted

    second = await convene(served, study, operators, 2)
    assert members(second.cohorts[0].committee) == [0, 1, 3, 4, 6, 7, 8]
    with pytest.raises(PolicyError, match="second contribution"):
        await send(served, second, devices[0], POLICY)
    vectors = [await send(served, second, one_shot_device(n), POLICY) for n in range(10, 15)]
    await open_sum(served, study, operators, 2)
    assert await served.read_sum(study, 2) == sum_of_vectors(second, vectors)
    # A member keeps the key of the failed round for its committee alone, and signed no set in it.
    entry = operators.members[0].journal.entry(committee.plan_digest)
    assert (entry.committee, entry.signature, entry.sum) == (committee.digest, None, None)
    assert await phase_of(served, study) is Phase.FAILED


async def test_a_device_counts_all_named_operators_that_may_collude(served: Served) -> None:
    """A committee of five with one colluder is refused if two of the named ten may collude.

    Guards: the number of named operators in `Policy._committee_violations`.
    """
    ten = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 11))
    names = tuple(each.public.hex() for each in ten)
    terms = CommitteeTerms(members=names, corrupt=0.1, dropout=0.3, size=7)
    study = await create(served, terms=TERMS | {"committee": terms.model_dump()})
    view = await convene(served, study, Operators.of(identities=ten))
    policy = Policy(
        min_cohort=MINIMUM,
        min_threshold=0,
        committee=frozenset(each.public for each in ten),
        trust_server_identities=True,
    )
    with pytest.raises(PolicyError, match="assumes 1 of 10 operators that collude, below 2"):
        await send(served, view, one_shot_device(1), policy)
