"""Costs of a secure sum: bytes equal those of the messages, seconds follow the operations."""

import re
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from blindtally.planning.sum_costs import OperationSeconds, SumCost, measure_operations
from protocol.api.device_messages import JoinRequest, Survivors
from protocol.api.device_policy import Policy
from secagg.keys import Identity
from secagg.messages import pack_signatures, pack_signed_inputs
from secagg.parameters import Assumptions, Mode, choose_parameters
from secagg.roster import (
    roster_bytes,
    share_commitments_bytes,
)
from secagg.shares import received_shares_bytes
from tests.secagg.conftest import RING, assemble

N = 40
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
    registrar = Identity.generate(Random(1)) if has_registrar else None
    group = assemble(N, Assumptions(0.1, 0.2, mode=mode), registrar=registrar)
    for step in (group.share, group.mask, group.confirm, group.reveal):
        step()
    signed = group.signed_inputs
    held = [{d: signed[d] for d in group.request.dealers_of(slot)} for slot in group.masked]
    request = JoinRequest(
        identity="00" * 32,
        mask_key="00" * 32,
        encryption_key="00" * 32,
        signature="00" * 64,
        registrar_signature="00" * 64 if registrar else None,
    )
    cost = cost_of(mode, registrar=has_registrar)
    up = {
        "join": len(request.model_dump_json()),
        "shares": len(group.key_shares[0].pack()),
        "complaints": len(group.complaints[0].pack()),
        "input": len(group.masked_inputs[0].pack()) - RING.nbytes,
        "confirmation": len(group.confirmations[0]),
        "reveal": sum(len(shares.pack()) for shares in group.unmasking_shares.values())
        / N,  # the mean
    }
    down = {
        "roster": len(roster_bytes(group.session.roster)),
        "received": mean(len(received_shares_bytes(shares)) for shares in group.received.values()),
        "sharers": len(share_commitments_bytes(group.transcript.share_commitments)),
        "survivors": len(Survivors(survivors=tuple(sorted(group.masked))).model_dump_json()),
        "confirmations": len(pack_signatures(group.confirmations)),
        "inputs": mean(len(pack_signed_inputs(inputs)) for inputs in held),
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
