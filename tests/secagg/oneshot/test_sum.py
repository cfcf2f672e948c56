"""The whole sum is exact or does not open, with any dropouts and lying members."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from secagg.oneshot.moduli import Moduli
from secagg.oneshot.opening import OpeningError
from secagg.oneshot.parameters import CommitteeParameters
from secagg.oneshot.run import MemberAttendance, run_one_shot_sum
from secagg.ring import Lane, Ring
from tests.examples import fewer
from tests.secagg.oneshot.conftest import PARAMETERS, RING, Round, assemble, same

ALL_MEMBERS = frozenset(range(1, 10))


def false_sum(whole: Round, member: int, chance: Random) -> None:
    state, sharing = whole.agreed[member], whole.session.sharing
    sums = [chance.randrange(sharing.lane.q) for _ in range(sharing.columns)]
    packed = sharing.add_columns(np.array([sums], np.uint64))
    signed = whole.session.sum_statement(member, state.set_digest, packed)
    whole.sums[member] = replace(
        whole.sums[member], packed=packed, signature=state.identity.sign(signed)
    )


def test_the_sum_of_all_messages_is_exact(whole: Round) -> None:
    assert same(whole.total(), whole.plain_sum(range(6)))
    assert whole.open().liars == frozenset()


def test_devices_that_send_nothing_are_not_in_the_sum() -> None:
    whole = assemble(devices=8)
    whole.send([0, 3, 4, 7])
    assert same(whole.total(), whole.plain_sum([0, 3, 4, 7]))


@fewer(0.15, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_dropouts_and_lying_members_up_to_d_leave_the_sum_exact(data: st.DataObject) -> None:
    whole = assemble(devices=2)
    whole.send()
    drops_in = data.draw(
        st.dictionaries(st.sampled_from(sorted(ALL_MEMBERS)), st.integers(0, 2), max_size=2)
    )
    present = [
        ALL_MEMBERS - {member for member, step in drops_in.items() if step <= at} for at in range(3)
    ]
    spare = PARAMETERS.dropouts - len(drops_in)
    liars = data.draw(st.sets(st.sampled_from(sorted(present[2])), max_size=spare))
    whole.check(present[0])
    included, members = whole.choose()
    whole.agree(included, members & present[1])
    whole.release(present[2])
    for member in liars:
        false_sum(whole, member, Random(member))
    opened = whole.open()
    assert same(opened.total, whole.plain_sum(range(2)))
    assert opened.liars == liars


def test_fewer_than_t_plus_a_sums_do_not_open(whole: Round) -> None:
    whole.check()
    whole.agree(whole.set_of())
    whole.release(range(1, 7))
    with pytest.raises(OpeningError, match="6 members of the 7 needed"):
        whole.open()
    whole.complaints = {member: whole.complaints[member] for member in range(1, 7)}
    with pytest.raises(OpeningError, match="members of the 7 needed"):
        whole.choose()


def test_without_spare_sums_a_lying_member_is_noticed(whole: Round) -> None:
    whole.check()
    whole.agree(whole.set_of())
    whole.release(range(1, 8))
    for member in (2, 5):
        false_sum(whole, member, Random(member))
        with pytest.raises(OpeningError, match="7 sums disagree, and at most 0 false ones"):
            whole.open()


def test_each_member_that_lies_in_one_column_only_is_named(whole: Round) -> None:
    whole.check()
    whole.agree(whole.set_of())
    whole.release()
    sharing = whole.session.sharing
    for member, column in ((4, 0), (8, -1)):
        sums = sharing.unpack_sum(whole.sums[member].packed)[np.newaxis]
        sums[0, column] = (sums[0, column] + 1) % sharing.lane.q
        whole.sums[member] = replace(whole.sums[member], packed=sharing.add_columns(sums))
    opened = whole.open()
    assert opened.liars == {4, 8}
    assert same(opened.total, whole.plain_sum(range(6)))


COMMITTEES = [(1, 0, 0), (3, 0, 1), (5, 1, 1), (7, 1, 1), (40, 8, 8)]


@pytest.mark.parametrize("numbers", COMMITTEES)
def test_a_run_in_memory_is_exact_for_committees_of_all_sizes(
    numbers: tuple[int, int, int],
) -> None:
    m, a, d = numbers
    parameters = CommitteeParameters(m, a, d, m - a - d)
    p = Moduli.of(parameters).above(3)
    ring, chance = Ring((Lane(p, 30),)), np.random.default_rng(1)
    vectors = [ring.vector([chance.integers(0, p, 30, np.uint64)]) for _ in range(4)]
    members = range(1, m + 1)
    attendance = MemberAttendance(members, members, range(d + 1, m + 1))
    result = run_one_shot_sum(ring, vectors, parameters, Random(1), [0, 1, 3], attendance)
    total = ring.zero()
    for device in (0, 1, 3):
        ring.add(total, vectors[device])
    assert same(result.total, total)
    assert result.devices == {0, 1, 3}


def test_a_run_with_a_dropout_more_than_allowed_fails() -> None:
    everyone = range(1, 10)
    attendance = MemberAttendance(everyone, everyone, range(4, 10))
    with pytest.raises(OpeningError):
        run_one_shot_sum(RING, [RING.zero()] * 2, PARAMETERS, Random(1), attendance=attendance)
