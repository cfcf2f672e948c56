"""Costs are those of the messages, byte for byte; seconds follow what is done how often."""

from dataclasses import replace
from random import Random

import pytest

from blindtally.costs import Cost, Units, measure
from protocol.messages import (
    Join,
    Survivors,
    pack_confirmations,
    pack_parcels,
    pack_roster,
    pack_sharers,
)
from secagg.aggregator import settle_deals
from secagg.cohort import Cohort, Entry, Registry, View
from secagg.keys import Identity
from secagg.parameters import Assumptions, Mode, parameters
from secagg.participant import join
from secagg.ring import Lane, Ring

N = 40
RING = Ring((Lane(2**16, 8),))
UNITS = Units(*[1.0] * 12)


def cost(mode: Mode = "active", n: int = N, registrar: bool = True) -> Cost:
    assumptions = Assumptions(0.1, 0.2, mode=mode)
    return Cost(parameters(n, assumptions), assumptions, registrar)


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
@pytest.mark.parametrize("has_registrar", [True, False])
def test_the_bytes_are_those_of_the_messages(mode: Mode, has_registrar: bool) -> None:
    rng, assumptions = Random(1), Assumptions(0.1, 0.2, mode=mode)
    registrar = Identity.generate(rng)
    registry = Registry(registrar.public, bytes(32)) if has_registrar else None
    joined = [join(Identity.generate(rng), rng) for _ in range(N)]
    roster = [
        Entry(
            one.identity.public,
            one.public,
            one.advertise(bytes(32)),
            registrar.sign(registry.enrolment(one.identity.public)) if registry else b"",
        )
        for one in joined
    ]
    cohort = Cohort(bytes(32), 0, tuple(roster), assumptions, registry)
    shared, deals = {}, {}
    for slot, one in enumerate(joined):
        shared[slot], deals[slot] = one.share(slot, cohort, rng)
    view = View(cohort, {slot: deal.sharer for slot, deal in deals.items()})
    masked, uploads = {}, {}
    for slot, one in shared.items():
        masked[slot], uploads[slot] = one.mask(view, RING, RING.zero(), rng)
    settled = settle_deals(view, deals, {slot: one.deal for slot, one in uploads.items()})
    confirmed, signatures = {}, {}
    for slot, one in masked.items():
        confirmed[slot], signatures[slot] = one.confirm(settled.survivors)
    reveals = {
        slot: one.reveal(signatures, settled.inboxes[slot], rng) for slot, one in confirmed.items()
    }
    asked = Join(
        identity="00" * 32,
        mask_key="00" * 32,
        seal_key="00" * 32,
        signature="00" * 64,
        enrolment="00" * 64 if registry else None,
    )
    found = cost(mode, registrar=has_registrar)
    up = {
        "join": len(asked.model_dump_json()),
        "shares": len(deals[0].pack()),
        "deal": len(uploads[0].pack()) - RING.nbytes,
        "confirmation": len(signatures[0]),
        "reveal": sum(len(one.pack()) for one in reveals.values()) / N,  # the mean of all
    }
    down = {
        "roster": len(pack_roster(roster)),
        "sharers": len(pack_sharers(view.sharers)),
        "survivors": len(Survivors(survivors=tuple(sorted(masked))).model_dump_json()),
        "confirmations": len(pack_confirmations(signatures)),
        "parcels": sum(len(pack_parcels(box)) for box in settled.inboxes.values()) / N,
    }
    if mode == "semi-honest":
        del up["confirmation"], down["confirmations"]
    assert found.up == up
    assert found.down == down
    assert list(found.up) == list(up)
    assert found.messages == len(up)


def test_partners_are_those_picked_and_those_that_pick() -> None:
    one = cost()
    chosen = [Random(slot).sample(range(N - 1), one.found.partners) for slot in range(N)]
    pairs = {
        frozenset((slot, other + (other >= slot)))
        for slot, picks in enumerate(chosen)
        for other in picks
    }
    assert one.partners == pytest.approx(2 * len(pairs) / N, rel=0.1)
    complete = replace(one.found, holders=N - 1, partners=N - 1)
    assert replace(one, found=complete).partners == N - 1


def test_nobody_checks_signatures_where_the_server_is_trusted() -> None:
    assert cost("semi-honest").checked == 0
    active = cost()
    assert active.checked == 2 * active.found.holders + active.found.witnesses
    assert cost(registrar=False).checked == active.found.holders + active.found.witnesses


def test_words_cost_masks_and_losses_cost_the_server() -> None:
    one = cost()
    few, many = (one.device_seconds(UNITS, words) for words in (10, 20))
    assert many["masks"] - few["masks"] == pytest.approx(10 * (one.partners + 1))
    assert {name for name in few if few[name] != many[name]} == {"masks"}
    none, some = (one.server_seconds(UNITS, 10, lost) for lost in (0, 8))
    assert none["masks"] == N * 11  # one seed of each; 10 words, and a stream
    assert none["keys"] == 0
    assert some["masks"] > none["masks"]
    assert some["vectors"] < none["vectors"]


@pytest.mark.parametrize("n", [4, 40, 1000])
def test_each_operation_takes_some_time_but_not_much(n: int) -> None:
    found = measure(cost(n=n).found)
    for name in Units.__slots__:
        assert 0 < getattr(found, name) < 0.05, name
    assert found.word < found.arrival < found.agree
