"""False shares are outvoted and named, or there is no sum: it is never wrong."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg import aggregator
from secagg.aggregator import Heard
from secagg.errors import RecoveryError
from secagg.graph import Assumptions
from secagg.participant import Reveal
from secagg.ring import Lane, Ring, Vector
from secagg.shamir import P, split

RING = Ring((Lane(2**13, 9), Lane(131071, 5), Lane(2**32, 2), Lane(2**61 - 1, 3)))
N = 15
EVERYBODY = set(range(N))
GONE = 3  # shares, and is lost before it masks


@pytest.fixture(scope="module")
def group(gather: Callable[..., Any]) -> Any:
    return gather(N, Assumptions(corrupt=0.15, dropout=0.2))


@pytest.fixture(scope="module")
def heard(group: Any) -> tuple[Heard, Vector]:
    still = EVERYBODY - {GONE}
    found: tuple[Heard, Vector] = group.hear(EVERYBODY, still, still)
    return found


def unmask(group: Any, heard: Heard, masked_sum: Vector) -> aggregator.Unmasked:
    return aggregator.unmask(group.cohort, RING, heard, masked_sum)


def falsify(heard: Heard, false: set[tuple[int, int]]) -> Heard:
    """Return what would be heard if each (owner, holder) of `false` had been another share."""
    chance = Random(7)
    reveals = {}
    for holder, reveal in heard.reveals.items():
        changed = [
            {
                owner: chance.randrange(P).to_bytes(33, "big")
                if (owner, holder) in false
                else share
                for owner, share in shares.items()
            }
            for shares in (reveal.seed_shares, reveal.key_shares)
        ]
        reveals[holder] = Reveal(*changed)
    return replace(heard, reveals=reveals)


def is_exact(group: Any, total: Vector) -> bool:
    expected = group.plain_sum(EVERYBODY - {GONE})
    return all(np.array_equal(a, b) for a, b in zip(total, expected, strict=True))


def test_nothing_is_disputed_among_the_honest(group: Any, heard: Any) -> None:
    found = unmask(group, *heard)
    assert is_exact(group, found.total)
    assert not found.disputed


@pytest.mark.parametrize("owner", [0, GONE])  # a seed, and a mask key
def test_false_shares_are_outvoted_and_named(group: Any, heard: Any, owner: int) -> None:
    said, masked_sum = heard
    near = sorted(set(group.cohort.graph.neighbours(owner)) & said.reveals.keys())
    room = (len(near) - group.cohort.parameters.threshold) // 2
    assert room >= 1
    false = {(owner, holder) for holder in near[:room]}
    found = unmask(group, falsify(said, false), masked_sum)
    assert is_exact(group, found.total)
    assert found.disputed == false


def test_a_holder_who_lies_about_everybody_is_named_with_each(group: Any, heard: Any) -> None:
    said, masked_sum = heard
    liar = min(group.cohort.graph.neighbours(GONE))
    given = said.reveals[liar]
    false = {(owner, liar) for owner in given.seed_shares | given.key_shares}
    found = unmask(group, falsify(said, false), masked_sum)
    assert is_exact(group, found.total)
    assert found.disputed
    assert {holder for _, holder in found.disputed} == {liar}


@pytest.mark.parametrize("owner", [0, GONE])
def test_too_many_false_shares_cost_the_sum(group: Any, heard: Any, owner: int) -> None:
    said, masked_sum = heard
    with pytest.raises(RecoveryError, match=f"participant {owner} .* another secret"):
        unmask(group, falsify(said, {(owner, holder) for holder in EVERYBODY}), masked_sum)


def test_an_owner_who_deals_another_seed_than_it_committed_to_is_named(
    group: Any, heard: Any
) -> None:
    said, masked_sum = heard
    holders = [holder + 1 for holder in EVERYBODY]
    dealt = split(bytes(32), holders, group.cohort.parameters.threshold, Random(1))
    reveals = {
        holder: Reveal(
            {o: dealt[holder + 1] if o == 0 else s for o, s in reveal.seed_shares.items()},
            reveal.key_shares,
        )
        for holder, reveal in said.reveals.items()
    }
    with pytest.raises(RecoveryError) as caught:
        unmask(group, replace(said, reveals=reveals), masked_sum)
    assert caught.value.owner == 0


def test_noise_in_the_place_of_a_share_counts_as_none(group: Any, heard: Any) -> None:
    said, masked_sum = heard
    holder = min(group.cohort.graph.neighbours(0))
    noise = Reveal({**said.reveals[holder].seed_shares, 0: b"\xff" * 33}, {})
    keys = said.reveals[holder].key_shares
    noisy = replace(said, reveals={**said.reveals, holder: replace(noise, key_shares=keys)})
    assert is_exact(group, unmask(group, noisy, masked_sum).total)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whatever_is_false_the_sum_is_exact_or_there_is_none(
    group: Any, heard: Any, data: st.DataObject
) -> None:
    said, masked_sum = heard
    pairs = st.tuples(st.sampled_from(range(N)), st.sampled_from(range(N)))
    false = data.draw(st.sets(pairs, max_size=60))
    try:
        found = unmask(group, falsify(said, false), masked_sum)
    except RecoveryError:
        return
    assert is_exact(group, found.total)
    assert found.disputed <= false


def test_unmasking_leaves_the_masked_sum_as_it_is(group: Any, heard: Any) -> None:
    said, masked_sum = heard
    before = [lane.copy() for lane in masked_sum]
    unmask(group, said, masked_sum)
    assert all(np.array_equal(a, b) for a, b in zip(before, masked_sum, strict=True))
