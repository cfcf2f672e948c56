"""Seating of a round: its registrar draws at random which joiners share a cohort, and signs it.

A server that chose the cohort of each device could surround one device with floor(gamma n)
colluders of the whole round. Therefore the registrar divides the list of joiners at random:

    the joiners of a plan, fixed -> a random order -> cohorts of equal size -> a signature for each

A device checks the signature over its own cohort before it shares keys. The signature covers the
plan, the number of joiners of the round, and all identities of the cohort in the order of slots. So
one signature proves that the device and all of its holders were seated, and one cohort that the
server selects cannot pass for a round.

Let c of J joiners collude. A cohort of n has Hyp(J, c, n) colluders, hypergeometric, and is safe
with at most A = floor(gamma n). A server may use one of `MAX_DRAWS` draws for a device. So
`max_colluders` is the largest c for which MAX_DRAWS times the sum of Pr[Hyp(J, c, n) > A] over all
cohorts is at most 2^-sigma. A study that asks the same devices in each of R rounds has
MAX_DRAWS + R draws, and a probability that is larger by 1 + R / MAX_DRAWS.

Source: random division into committees as in sharded systems, computed exactly; an addition of
blindtally.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from secagg.keys import KEY_BYTES, SIGNATURE_BYTES, Identity, is_signed, statement
from secagg.parameters import Assumptions, log_sum_exp, log_tail

MAX_DRAWS: Final = 3  # seatings of one identity in a study that asks it once
_HEADER_BYTES: Final = 8 + SIGNATURE_BYTES


def cohort_sizes(joiners: int, cohorts: int) -> tuple[int, ...]:
    """Return the numbers of participants of `cohorts` cohorts; the first ones may have one more."""
    size, larger = divmod(joiners, cohorts)
    return (size + 1,) * larger + (size,) * (cohorts - larger)


@dataclass(frozen=True, slots=True)
class SeatedRound:
    """The facts on which all cohorts of a round agree: its plan, its registrar and its size."""

    plan_digest: bytes
    registrar: bytes
    joiners: int
    cohorts: int

    def statement(self, cohort: int, identities: bytes | memoryview) -> bytes:
        """Return the statement that seats `identities`, joined in the order of slots."""
        counts = self.joiners.to_bytes(4, "big") + self.cohorts.to_bytes(4, "big")
        return statement("seating", self.plan_digest, cohort, counts, identities)

    def sign(self, registrar: Identity, cohort: int, identities: bytes) -> "CohortSeating":
        """Return the registrar's word that these identities make up a cohort."""
        signature = registrar.sign(self.statement(cohort, identities))
        return CohortSeating(cohort, self.joiners, signature)

    def is_authentic(self, seating: "CohortSeating", identities: bytes | memoryview) -> bool:
        """Return whether the registrar seated exactly `identities` in the cohort of `seating`."""
        signed = self.statement(seating.cohort, identities)
        return is_signed(self.registrar, signed, seating.signature)


@dataclass(frozen=True, slots=True)
class CohortSeating:
    """The registrar's word on one cohort: its number, the joiners of the round, the signature.

    Raises:
        ValueError: if a number does not fit in 32 bits, or the signature has a wrong size.
    """

    cohort: int
    joiners: int
    signature: bytes

    def __post_init__(self) -> None:
        if not (0 <= self.cohort < 2**32 and 0 <= self.joiners < 2**32):
            raise ValueError(f"cohort {self.cohort} of {self.joiners} joiners: not 32 bits")
        if len(self.signature) != SIGNATURE_BYTES:
            raise ValueError(f"a signature has {SIGNATURE_BYTES} bytes")

    def pack(self) -> bytes:
        """Return the bytes that precede the entries of a seated roster."""
        return self.cohort.to_bytes(4, "big") + self.joiners.to_bytes(4, "big") + self.signature

    @classmethod
    def split(cls, body: bytes) -> tuple["CohortSeating", bytes]:
        """Return the seating at the start of `body`, and the rest; raises ValueError if short."""
        if len(body) < _HEADER_BYTES:
            raise ValueError(f"a seated roster has {_HEADER_BYTES} bytes and its entries")
        head, rest = body[:_HEADER_BYTES], body[_HEADER_BYTES:]
        numbers = (int.from_bytes(head[:4], "big"), int.from_bytes(head[4:8], "big"))
        return cls(*numbers, head[8:]), rest


def seating_fault(
    seated_round: SeatedRound, seating: CohortSeating, identities: Sequence[bytes], minimum: int
) -> str | None:
    """Return the fault of a cohort of `identities` in slot order; None if there is none.

    The round must have `minimum` joiners for each cohort, the cohort must be an even part of it,
    and the signature must be the registrar's.
    """
    joiners, cohorts, size = seated_round.joiners, seated_round.cohorts, len(identities)
    if joiners < cohorts * minimum:
        return f"seats {joiners} devices, and promised {cohorts} cohorts of {minimum} or more"
    if seating.cohort >= cohorts or size != cohort_sizes(joiners, cohorts)[seating.cohort]:
        part = f"cohort {seating.cohort} of {cohorts} in a round of {joiners}"
        return f"shows {size} devices as {part}, which is not an even part"
    if not seated_round.is_authentic(seating, b"".join(identities)):
        return "shows a cohort that the study's registrar did not seat"
    return None


def split_identities(identities: Sequence[bytes], cohorts: int) -> list[bytes]:
    """Return the identities of each cohort, joined in the order of slots."""
    parts, start = [], 0
    for size in cohort_sizes(len(identities), cohorts):
        parts.append(b"".join(identities[start : start + size]))
        start += size
    assert sum(map(len, parts)) == KEY_BYTES * len(identities)
    return parts


def log_unsafe_probability(
    joiners: int, cohorts: int, colluders: int, assumptions: Assumptions
) -> float:
    """Return a log bound on the probability that some cohort has too many of `colluders`.

    It covers all draws, and is the sum over all cohorts, so at least the probability.
    """
    sizes = cohort_sizes(joiners, cohorts)
    marked = np.array([float(colluders)])
    terms = []
    for size in set(sizes):
        tail = log_tail(joiners, marked, size, assumptions.max_corrupt(size) + 1)
        terms.append(math.log(MAX_DRAWS * sizes.count(size)) + tail.item())
    return log_sum_exp(np.array(terms)).item()


def max_colluders(joiners: int, cohorts: int, assumptions: Assumptions) -> int:
    """Return the number of `joiners` of a seated round that may collude with the server.

    With more, some cohort may have more than floor(gamma n) of them, with a probability above
    2^-sigma over all draws.
    """
    allowed = -assumptions.sigma * math.log(2)

    def log_probability(colluders: int) -> float:
        return log_unsafe_probability(joiners, cohorts, colluders, assumptions)

    # A round without colluders is safe, and one of colluders only is not.
    return bisect_right(range(1, joiners), allowed, key=log_probability)


@lru_cache(maxsize=256)
def promised_colluders(
    minimum: int, cohort_size: int, cohorts: int, assumptions: Assumptions
) -> int:
    """Return the number of colluders from which each round is safe, by the sizes of its cohorts.

    Between two steps of floor(gamma n), more joiners spread the colluders less evenly. So the
    smallest number is that of the smallest cohorts, or of the largest with the same floor.
    """
    steps = assumptions.max_corrupt(minimum)
    last = minimum
    while last < cohort_size and assumptions.max_corrupt(last + 1) == steps:
        last += 1
    rounds = (minimum * cohorts, last * cohorts)
    return min(max_colluders(joiners, cohorts, assumptions) for joiners in rounds)
