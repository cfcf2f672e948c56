"""One whole secure sum, with all participants and the server in one process. Read this first.

    0 enrolling   each participant makes keys; the server fixes the roster     AdvertiseKeys
    1 sharing     each shares its mask key and a seed among its holders        ShareKeys
    2 checking    each checks the shares that it holds, or complains
      answering   a dealer answers complaints, or is left out
    3 masking     each sends its masked input                                  MaskedInputCollection
    4 confirming  the survivors sign one set of survivors                      ConsistencyCheck
    5 unmasking   the survivors reveal one share per dealer: of the seed       Unmasking
                  for a survivor, of the mask key for a dropout

The server learns the sum of the survivors' vectors and nothing else about any vector. Over HTTP
the same calls are made by devices (`client.device.participation`) and by the service
(`server.rounds.cohort_sums`). The right column has the names of [Bonawitz17, figure 4]. Here all
dealers are honest, so that nobody complains and no phase of answers is needed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from secagg.aggregator import (
    UnmaskingRequest,
    check_complaints,
    check_confirmation,
    check_key_shares,
    check_masked_input,
    check_unmasking_shares,
    route_shares,
)
from secagg.keys import Identity
from secagg.parameters import Assumptions
from secagg.participant import join
from secagg.ring import Ring, Vector
from secagg.roster import Roster, RosterEntry, ShareCommitments
from secagg.session import Session, Transcript
from secagg.unmasking import SumMessages, unmask


class Attendance(NamedTuple):
    """The slots that still take part in each step; a slot missing from a step has dropped out."""

    sharing: Collection[int]
    checking: Collection[int]
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
        UnsafeRequestError: if fewer than a quorum check, mask or confirm.
        RecoveryError: if too few of the survivors unmask.
    """
    slots = range(len(vectors))
    present = attendance or Attendance(*(slots for _ in Attendance._fields))

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

    # 2 Checking
    received, checked = route_shares(session, key_shares), {}
    for slot in present.checking:
        checked[slot], complaints = shared[slot].check(received[slot])
        check_complaints(session, slot, received[slot], complaints)
    commitments = {slot: key_shares[slot].share_commitment for slot in checked}
    transcript = Transcript(session, ShareCommitments.of(commitments))
    assert transcript.graph.keys() == checked.keys()  # one graph serves all participants here

    # 3 Masking
    masked, signed_inputs, masked_sum = {}, {}, ring.zero()
    for slot in present.masking:
        masked[slot], masked_input = checked[slot].mask(transcript, ring, vectors[slot])
        check_masked_input(transcript, slot, masked_input)
        signed_inputs[slot] = masked_input.signed_input
        ring.add_packed(masked_sum, masked_input.vector)
    request = UnmaskingRequest(transcript, frozenset(masked))

    # 4 Confirming
    confirmed, confirmations = {}, {}
    for slot in present.confirming:
        confirmed[slot], confirmations[slot] = masked[slot].confirm(request.survivors)
        check_confirmation(transcript, slot, request.survivors, confirmations[slot])

    # 5 Unmasking
    unmasking_shares = {}
    for slot in present.unmasking:
        unmasking_shares[slot] = confirmed[slot].unmask(confirmations, signed_inputs, rng)
        check_unmasking_shares(request, slot, unmasking_shares[slot])
    messages = SumMessages(key_shares, unmasking_shares)
    return SecureSum(unmask(request, ring, messages, masked_sum).total, request.survivors)
