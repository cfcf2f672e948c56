"""Bytes of a secure sum: they equal those of the messages."""

import re
from pathlib import Path
from random import Random
from statistics import mean

import pytest

from blindtally.planning.sum_costs import SumCost
from protocol.api.messages_outside_sums import JoinRequest, Survivors
from protocol.device_policy.policy import Policy
from secagg.keys import Identity
from secagg.messages import pack_signatures, pack_signed_inputs
from secagg.parameters import Assumptions, choose_parameters
from secagg.roster import roster_bytes, share_commitments_bytes
from secagg.shares import received_shares_bytes
from tests.secagg.conftest import RING, assemble

N = 40


def cost_of(n: int = N, registrar: bool = True) -> SumCost:
    assumptions = Assumptions(0.1, 0.2)
    return SumCost(choose_parameters(n, assumptions), assumptions, registrar)


def test_the_page_states_what_more_corrupt_devices_cost() -> None:
    page = (Path(__file__).parents[3] / "docs" / "research" / "secure-sum.md").read_text()
    row = r"^\| (0\.\d+).*?\| (\d+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|"
    rows = re.findall(row, page, re.MULTILINE)
    assert [float(corrupt) for corrupt, *_ in rows] == [0.05, Policy().min_corrupt, 0.2]
    for corrupt, *stated in rows:
        assumptions = Assumptions(float(corrupt), 0.2)
        cost = SumCost(choose_parameters(1000, assumptions), assumptions, has_registrar=True)
        sent, received = sum(cost.upload_bytes.values()), sum(cost.download_bytes.values())
        computed = cost.parameters.holders, cost.parameters.threshold, sent, received
        assert [f"{number:,}" for number in computed] == stated


@pytest.mark.parametrize("has_registrar", [True, False])
def test_the_bytes_are_those_of_the_messages(has_registrar: bool) -> None:
    registrar = Identity.generate(Random(1)) if has_registrar else None
    group = assemble(N, Assumptions(0.1, 0.2), registrar=registrar)
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
    cost = cost_of(registrar=has_registrar)
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
        "dealers": len(share_commitments_bytes(group.transcript.share_commitments)),
        "survivors": len(Survivors(survivors=tuple(sorted(group.masked))).model_dump_json()),
        "confirmations": len(pack_signatures(group.confirmations)),
        "inputs": mean(len(pack_signed_inputs(inputs)) for inputs in held),
    }
    assert cost.upload_bytes == up
    assert cost.download_bytes == down
    assert list(cost.upload_bytes) == list(up)
    assert cost.message_count == len(up)
