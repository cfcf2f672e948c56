"""One whole secure sum, with all participants and the server in one process. Read this first.

    0 enrolling   each participant makes keys; the server fixes the roster     AdvertiseKeys
    1 sharing     each shares its mask key among its holders                   ShareKeys
    2 masking     each sends its masked input, and shares its seed             MaskedInputCollection
    3 confirming  the survivors sign one set of survivors                      ConsistencyCheck
    4 unmasking   the survivors reveal one share per dealer: of the seed       Unmasking
                  for a survivor, of the mask key for a dropout

The server learns the sum of the survivors' vectors and nothing else about any vector. Over HTTP
the same calls are made by devices (`client.device.participation`) and by the service
(`server.rounds.decoding`). The right column has the names of [Bonawitz17, figure 4].
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from secagg.aggregator import (
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
    collect_masked_inputs,
)
from secagg.keys import Identity
from secagg.parameters import Assumptions
from secagg.participant import join
from secagg.ring import Ring, Vector
from secagg.roster import Roster, RosterEntry, ShareCommitments
from secagg.session import Session, Transcript
from secagg.unmasking import unmask


class Attendance(NamedTuple):
    """The slots that still take part in each step; a slot missing from a step has dropped out."""

    sharing: Collection[int]
    masking: Collection[int]
    confirming: Collection[int]
    unmasking: Collection[int]


@dataclass(frozen=True, slots=True)
class SecureSum:
    """The sum of the vectors of `survivors`."""

    total: Vector
    survivors: frozenset[int]


def run_secure_sum(  # noqa: PLR0917 - the parameters of a whole protocol
    ring: Ring,
    vectors: Sequence[Vector],
    assumptions: Assumptions,
    rng: Random,
    attendance: Attendance | None = None,
    plan_digest: bytes = bytes(32),
    cohort_number: int = 0,
) -> SecureSum:
    """Return the sum of the survivors' vectors; without `attendance` nobody drops out.

    `rng` makes all secrets. A seeded generator keeps none of them secret: use it in simulations
    only.

    Raises:
        UnsafeRequestError: if fewer than a quorum share, mask or confirm.
        RecoveryError: if too few of the survivors unmask.
    """
    slots = range(len(vectors))
    present = attendance or Attendance(slots, slots, slots, slots)

    # 0 Enrolling
    joined = [join(Identity.generate(rng), rng) for _ in vectors]
    roster = Roster.of(
        [
            RosterEntry(state.identity.public, state.public_keys, state.advertise(plan_digest))
            for state in joined
        ]
    )
    session = Session(plan_digest, cohort_number, roster, assumptions)

    # 1 Sharing
    shared, key_shares = {}, {}
    for slot in present.sharing:
        shared[slot], key_shares[slot] = joined[slot].share(slot, session, rng)
        check_key_shares(session, slot, key_shares[slot])
    commitments = {slot: message.share_commitment for slot, message in key_shares.items()}
    transcript = Transcript(session, ShareCommitments.of(commitments))
    assert transcript.graph.keys() == key_shares.keys()  # one graph serves all participants here

    # 2 Masking
    masked, seed_shares, masked_sum = {}, {}, ring.zero()
    for slot in present.masking:
        masked[slot], masked_input = shared[slot].mask(transcript, ring, vectors[slot], rng)
        check_masked_input(transcript, slot, masked_input)
        seed_shares[slot] = masked_input.seed_shares
        ring.add_packed(masked_sum, masked_input.vector)
    request = collect_masked_inputs(transcript, key_shares, seed_shares)

    # 3 Confirming; in the semi-honest mode no signature leaves the device
    confirmed, confirmations = {}, {}
    for slot in present.confirming:
        confirmed[slot], confirmations[slot] = masked[slot].confirm(request.survivors)
        check_confirmation(transcript, slot, request.survivors, confirmations[slot])

    # 4 Unmasking
    unmasking_shares = {}
    for slot in present.unmasking:
        received = request.received_shares[slot]
        unmasking_shares[slot] = confirmed[slot].unmask(confirmations, received, rng)
        check_unmasking_shares(request, slot, unmasking_shares[slot])
    return SecureSum(unmask(request, ring, unmasking_shares, masked_sum).total, request.survivors)
