"""Sizes of rounds: cohorts for a number of devices, seats for those that join, and messages."""

import math
from functools import lru_cache
from typing import Any, Final

from protocol.numerics.binary_search import first_true
from protocol.question_and_plan import MAX_MESSAGE_BYTES, Terms
from secagg.keys import SIGNATURE_BYTES
from secagg.messages import KeyShares
from secagg.oneshot.message import Layout
from secagg.oneshot.moduli import one_lane
from secagg.oneshot.sharing import Sharing
from secagg.parameters import choose_parameters
from secagg.ring import Lane, Ring

# The papers count a vector in words of 16 bits.
WORD_BYTES: Final = 2
MAX_COHORT_SIZE: Final = 100_000  # the largest of Terms
_SEAT_SDS, _EXTRA_SEATS = 10, 16  # seats above the mean of those that join
# A one-shot sum may have primes of these numbers of bits.
_PRIME_BITS: Final = range(5, 26)


def terms_for(
    devices: int,
    max_cohort_size: int = MAX_COHORT_SIZE,
    max_cohorts: int | None = None,
    **assumptions: Any,  # noqa: ANN401 (fields of terms)
) -> Terms:
    """Return terms for `devices` in the smallest number of cohorts, all of about the same size."""
    cohorts = -(-devices // max_cohort_size)
    if max_cohorts is not None:
        cohorts = min(max_cohorts, cohorts)
    size = -(-devices // cohorts)
    return Terms(cohort_size=size, minimum=max(3, size // 2), cohorts=cohorts, **assumptions)


def seats_for(devices: int, join_probability: float) -> int:
    """Return a number of seats that all of `devices` that join fit in, except with 1e-20.

    The number that joins is Bin(n, v): n v on average, with a standard deviation below sqrt(n v).
    Where that is small, its tail is longer than a normal one's. A device without a seat is lost,
    and then the devices with seats reveal something about the coins of the others. So there must
    be seats for all.
    """
    mean = devices * join_probability
    return min(devices, math.ceil(mean + _SEAT_SDS * math.sqrt(mean)) + _EXTRA_SEATS)


def message_bytes(terms: Terms, ring: Ring) -> int:
    """Return the bytes that a device sends for a vector of `ring`.

    They are those of a one-shot message, or of the key shares and the masked vector in a full
    cohort of a pairwise sum.

    Raises:
        ValueError: if the lanes of a one-shot sum have no suitable prime.
    """
    if terms.is_one_shot:
        return message_layout(terms, ring).message_bytes
    return _pairwise_shares(terms) + ring.nbytes


def message_layout(terms: Terms, ring: Ring) -> Layout:
    """Return the sizes of a one-shot message to the largest committee; raises `message_bytes`'s."""
    if terms.committee is None:
        raise ValueError("the round has no one-shot sum")
    parameters = terms.committee.parameters_of(terms.committee.largest)
    enrolment = 0 if terms.registrar is None else SIGNATURE_BYTES
    return Layout(enrolment, Sharing(one_lane(ring).lanes[0], parameters))


def vector_bytes(terms: Terms, message: int, prime: int = 0) -> int:
    """Return the size in bytes of the largest packed vector with which a device sends `message`.

    A one-shot sum has all lanes modulo `prime`; 0 stands for the least size with any prime. The
    size is 0 if there is no room.
    """
    if not terms.is_one_shot:
        return max(0, message - _pairwise_shares(terms))
    return _one_shot_vector(terms, message, prime)


def max_elements(terms: Terms, message: int, q: int) -> int:
    """Return the largest number of elements modulo `q` in the vector of a message of this size."""
    return terms.moduli.max_length(q, vector_bytes(terms, message, q))


def message_bytes_of(terms: Terms, vector: int) -> int:
    """Return the least message in which a vector of this size has room, with any prime."""
    if not terms.is_one_shot:
        return vector + _pairwise_shares(terms)
    return first_true(lambda size: vector_bytes(terms, size) >= vector, 1, MAX_MESSAGE_BYTES)


def _pairwise_shares(terms: Terms) -> int:
    holders = choose_parameters(terms.cohort_size, terms.assumptions).holders
    return KeyShares.nbytes(holders) + SIGNATURE_BYTES


@lru_cache(1024)
def _one_shot_vector(terms: Terms, message: int, prime: int) -> int:
    moduli = terms.moduli
    if not prime:
        primes = {moduli.above((1 << bits) - 1) for bits in _PRIME_BITS}
        return min(_one_shot_vector(terms, message, each) for each in primes)
    layout = message_layout(terms, Ring((Lane(prime, 1),)))
    sharing, parameters = layout.sharing, layout.sharing.parameters
    senders = parameters.members - parameters.corrupt
    share = (message - layout.message_bytes) // senders + sharing.share_bytes
    columns = moduli.max_length(prime, max(0, share)) - sharing.blinds
    if columns < 1:
        return 0
    # One element more would need a larger message.
    return moduli.lane_bytes(Lane(prime, columns * parameters.packed_secrets + 1)) - 1
