"""Costs of a secure sum: bytes equal those of the messages, seconds follow the operations."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from blindtally.planning.sum_costs import OperationSeconds, SumCost, measure_operations
from client.device.policy import Policy
from protocol.api.messages import JoinRequest, Survivors
from secagg.aggregator import UnmaskingRequest, route_shares
from secagg.keys import Identity
from secagg.messages import pack_signatures, pack_signed_inputs
from secagg.parameters import Assumptions, Mode, choose_parameters
from secagg.participant import join
from secagg.ring import Lane, Ring
from secagg.roster import (
    Roster,
    RosterEntry,
    ShareCommitments,
    roster_bytes,
    share_commitments_bytes,
)
from secagg.session import Registry, Session, Transcript
from secagg.shares import received_shares_bytes

N = 40
RING = Ring((Lane(2**16, 8),))
UNITS = OperationSeconds(*[1.0] * 12)


def cost_of(mode: Mode = "active", n: int = N, registrar: bool = True) -> SumCost:
    assumptions = Assumptions(0.1, 0.2, mode=mode)
    return SumCost(choose_parameters(n, assumptions), assumptions, registrar)


def test_the_security_review_states_what_more_corrupt_devices_cost() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security-review.md").read_text()
    section = page.partition("## 1.")[2].partition("## 2.")[0]
    row = r"^\| (0\.\d+).*?\| (\d+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|"
    rows = re.findall(row, section, re.MULTILINE)
    assert [float(corrupt) for corrupt, *_ in rows] == [0.05, Policy().min_corrupt, 0.2]
    for corrupt, *stated in rows:
        assumptions = Assumptions(float(corrupt), 0.2)
        cost = SumCost(choose_parameters(1000, assumptions), assumptions, has_registrar=True)
        sent, received = sum(cost.upload_bytes.values()), sum(cost.download_bytes.values())
        computed = cost.parameters.holders, cost.parameters.threshold, sent, received
        assert [f"{number:,}" for number in computed] == stated


@pytest.mark.parametrize("mode", ["active", "semi-honest"])
@pytest.mark.parametrize("has_registrar", [True, False])
def test_the_bytes_are_those_of_the_messages(mode: Mode, has_registrar: bool) -> None:
    rng, assumptions = Random(1), Assumptions(0.1, 0.2, mode=mode)
    registrar = Identity.generate(rng)
    registry = Registry(registrar.public, bytes(32)) if has_registrar else None
    joined = [join(Identity.generate(rng), rng) for _ in range(N)]
    roster = [
        RosterEntry(
            device.identity.public,
            device.public_keys,
            device.advertise(bytes(32)),
            registrar.sign(registry.enrolment_statement(device.identity.public))
            if registry
            else b"",
        )
        for device in joined
    ]
    session = Session(bytes(32), 0, Roster.of(roster), assumptions, registry)
    shared, key_shares = {}, {}
    for slot, device in enumerate(joined):
        shared[slot], key_shares[slot] = device.share(slot, session, rng)
    received = route_shares(session, key_shares)
    checked, complaints = {}, {}
    for slot, sharer in shared.items():
        checked[slot], complaints[slot] = sharer.check(received[slot])
    commitments = {slot: message.share_commitment for slot, message in key_shares.items()}
    transcript = Transcript(session, ShareCommitments.of(commitments))
    masked, inputs = {}, {}
    for slot, state in checked.items():
        masked[slot], inputs[slot] = state.mask(transcript, RING, RING.zero())
    collected = UnmaskingRequest(transcript, frozenset(masked))
    signed = {slot: message.signed_input for slot, message in inputs.items()}
    confirmed, signatures = {}, {}
    for slot, sender in masked.items():
        confirmed[slot], signatures[slot] = sender.confirm(collected.survivors)
    unmasking = [state.unmask(signatures, signed, rng) for state in confirmed.values()]
    held = [{dealer: signed[dealer] for dealer in collected.dealers_of(slot)} for slot in masked]
    request = JoinRequest(
        identity="00" * 32,
        mask_key="00" * 32,
        encryption_key="00" * 32,
        signature="00" * 64,
        registrar_signature="00" * 64 if registry else None,
    )
    cost = cost_of(mode, registrar=has_registrar)
    up = {
        "join": len(request.model_dump_json()),
        "shares": len(key_shares[0].pack()),
        "complaints": len(complaints[0].pack()),
        "input": len(inputs[0].pack()) - RING.nbytes,
        "confirmation": len(signatures[0]),
        "reveal": sum(len(message.pack()) for message in unmasking) / N,  # the mean
    }
    down = {
        "roster": len(roster_bytes(roster)),
        "received": sum(len(received_shares_bytes(shares)) for shares in received.values()) / N,
        "sharers": len(share_commitments_bytes(transcript.share_commitments)),
        "survivors": len(Survivors(survivors=tuple(sorted(masked))).model_dump_json()),
        "confirmations": len(pack_signatures(signatures)),
        "inputs": sum(len(pack_signed_inputs(inputs)) for inputs in held) / N,
    }
    if mode == "semi-honest":
        del up["confirmation"], down["confirmations"], down["inputs"]
    assert cost.upload_bytes == up
    assert cost.download_bytes == down
    assert list(cost.upload_bytes) == list(up)
    assert cost.message_count == len(up)


def test_neighbours_are_those_selected_and_those_that_select() -> None:
    cost = cost_of()
    chosen = [Random(slot).sample(range(N - 1), cost.parameters.neighbours) for slot in range(N)]
    pairs = {
        frozenset((slot, other + (other >= slot)))
        for slot, others in enumerate(chosen)
        for other in others
    }
    assert cost.mean_neighbours == pytest.approx(2 * len(pairs) / N, rel=0.1)
    complete = replace(cost.parameters, holders=N - 1, neighbours=N - 1)
    assert replace(cost, parameters=complete).mean_neighbours == N - 1


def test_devices_check_no_signatures_if_the_server_is_trusted() -> None:
    assert cost_of("semi-honest").checked_signatures == 0
    active = cost_of()
    assert (
        active.checked_signatures == 3 * active.parameters.holders + active.parameters.spot_checks
    )
    assert (
        cost_of(registrar=False).checked_signatures
        == 2 * active.parameters.holders + active.parameters.spot_checks
    )


def test_words_cost_masks_and_dropouts_cost_the_server() -> None:
    cost = cost_of()
    few, many = (cost.device_seconds(UNITS, words) for words in (10, 20))
    assert many["masks"] - few["masks"] == pytest.approx(10 * (cost.mean_neighbours + 1))
    assert {name for name in few if few[name] != many[name]} == {"masks"}
    none, some = (cost.server_seconds(UNITS, 10, dropouts) for dropouts in (0, 8))
    assert none["masks"] == N * 11  # one seed per device: 10 words, and a stream
    assert none["keys"] == 0
    assert some["masks"] > none["masks"]
    assert some["vectors"] < none["vectors"]


@pytest.mark.parametrize("n", [4, 40, 1000])
def test_each_operation_takes_some_time_but_not_much(n: int) -> None:
    measured = measure_operations(cost_of(n=n).parameters)
    for name in OperationSeconds.__slots__:
        assert 0 < getattr(measured, name) < 0.05, name
    assert measured.word < measured.arrival < measured.agree
