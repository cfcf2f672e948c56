"""Limits of a device, each with its name.

A device compares what the service asks for with its policy (`plan_check.py`, `cohort_check.py`). A
refusal names its limit, so that the operator of the devices knows which one to change.
"""

from dataclasses import dataclass, fields
from numbers import Real
from typing import Final

from protocol.arguments import NamedFields
from protocol.question_and_plan import (
    DEFAULT_MAX_CONTRIBUTION,
    DEFAULT_MAX_DELTA,
    DEFAULT_MAX_EPSILON,
    DEFAULT_MAX_UPLOAD_BYTES,
    DEFAULT_MIN_COMMITTEE,
    DEFAULT_MIN_COMMITTEE_CORRUPT,
    DEFAULT_MIN_CORRUPT,
    DEFAULT_MIN_SUMMED,
    DEFAULT_MIN_THRESHOLD,
)
from secagg.errors import UnsafeRequestError
from secagg.keys import KEY_BYTES
from secagg.seating import MAX_DRAWS

# Limits of all devices. The documents state the probability that follows from the first two: each
# sharing of keys in a study, until a vector is sent, gives an attacker who wants certain holders,
# or a cohort of colluders, another chance of 2^-sigma.
MIN_SIGMA: Final = 40
MAX_SHARINGS: Final = MAX_DRAWS
# A shorter period allows no more than a larger `Policy.max_exact_studies` does.
EXACT_PERIOD_DAYS: Final = 30.0
_FIXED_LIMITS: Final = {"min_sigma", "max_sharings"}


class PolicyError(UnsafeRequestError):
    """The service asks for more than the device's policy allows.

    Attributes:
        limit: the name of the limit, in `Policy` or above, or of the promise that was broken.
        reason: what the study or its server does, such as "asks for ...".
        needed: the value of the limit that would accept the request, if one value is enough.
    """

    def __init__(self, limit: str, reason: str, needed: float | str | None = None) -> None:
        super().__init__(f"{reason} ({limit})")
        # The study chooses what a policy limits; its server passes that on.
        if limit in Policy.__dataclass_fields__ or limit in _FIXED_LIMITS:
            self.args = (f"the study {reason} ({limit})",)
        self.limit = limit
        self.reason = reason
        self.needed = needed


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy(metaclass=NamedFields):
    """Limits of a device: upper bounds on its contribution, lower bounds on its protection.

    Attributes:
        max_contribution: items that the device adds to a round.
        min_cohort: devices in a sum.
        min_corrupt: the fraction of corrupt devices that a study assumes. Terms that assume none
            protect nobody.
        max_upload_bytes: bytes that the device sends in one round before the survivors are known:
            its key shares and its vector, or its report. A vector has at most one
            element for every two of them.
        registrar: the public key of the one registrar that may enrol the devices. It must come to
            the device by another way than the server.
        min_threshold: the threshold of a study of exact sums, and of released counts that have no
            noise. An item that fewer devices hold is not common: offices of statistics hide counts
            below 3 to 10. The device counts an item once; below 1, in trials, all of its copies.
        committee: the public keys of the operators that may open one-shot sums; each member of a
            plan's committee must be one of them. They must come to the device by another way than
            the server. Without any, the device refuses one-shot sums.
        min_committee: members of a committee.
        min_volunteers: devices from which `registrar` draws the committee of a one-shot sum. By
            default the device accepts no committee of devices. Of this number, the fraction
            `min_corrupt` may work for the server, in the whole study.
        min_committee_corrupt: the fraction of the operators that a plan names, rounded down, that
            may work for the server. A committee must tolerate this number, and one at least.
        trust_server_identities: accepts secure sums without `registrar`. A dishonest server can
            then invent all other devices of a sum, and read what this one holds.
        max_epsilon: epsilon of the locally private reports in all studies together.
        max_delta: the probability that a report reveals more than its epsilon. For reports only
            `max_epsilon`, `max_delta`, `registrar` and `max_upload_bytes` matter.
        max_rounds: rounds of a study that asks the same devices in every round. The noise of all
            of them together must keep `max_epsilon` at `max_delta`.
        max_round_seconds: how long the device stays in one round.
        repeat_exact: accepts such a study even if it adds no noise. The difference of two sums, of
            which one contains the device and the other does not, then reveals its contribution.
        accept_exact_estimates: accepts `number-sums`, `count-median`, `count-sketch` and
            `approximate-histogram` with a sketch, all without noise. Their estimates can show what
            one device holds: a device that lies for the analyst lets a segment of one other device
            pass the threshold, and the cells of a sketch show rare items together with common ones.
        max_exact_studies: studies of exact sums to which the device gives the items of one
            collection within `EXACT_PERIOD_DAYS`, over all services. The difference of two exact
            sums may reveal its items. A sum with noise is not exact as long as the noise of all
            such sums in that time together keeps `max_epsilon` at `max_delta`.

    Raises:
        ArgumentsError: if an argument has no name, or one that is not here.
        ValueError: if a key is not 32 bytes, or a limit is not a number from 0 up.
    """

    max_contribution: int = DEFAULT_MAX_CONTRIBUTION
    min_cohort: int = DEFAULT_MIN_SUMMED
    min_threshold: float = DEFAULT_MIN_THRESHOLD
    min_corrupt: float = DEFAULT_MIN_CORRUPT
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES
    registrar: bytes | None = None
    committee: frozenset[bytes] = frozenset()
    min_committee: int = DEFAULT_MIN_COMMITTEE
    min_committee_corrupt: float = DEFAULT_MIN_COMMITTEE_CORRUPT
    min_volunteers: int | None = None
    trust_server_identities: bool = False
    max_epsilon: float = DEFAULT_MAX_EPSILON
    max_delta: float = DEFAULT_MAX_DELTA
    max_rounds: int = 32
    max_round_seconds: float = 7 * 24 * 3600
    repeat_exact: bool = False
    max_exact_studies: int = 1
    accept_exact_estimates: bool = False

    def __post_init__(self) -> None:
        self._check_types()
        object.__setattr__(self, "committee", frozenset(self.committee))
        for key in (*self.committee, *([] if self.registrar is None else [self.registrar])):
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise ValueError(  # it may be a secret key, so it is not shown
                    f"registrar and committee have public keys of {KEY_BYTES} bytes: "
                    "bytes.fromhex reads a key of hexadecimal digits"
                )

    def _check_types(self) -> None:
        """Raise ValueError for a limit that is not a number from 0 up, or not a bool."""
        for field in fields(self):
            limit = getattr(self, field.name)
            if isinstance(field.default, bool) and limit not in (True, False):
                raise ValueError(f"{field.name} is True or False, got {limit!r}")
            if not isinstance(field.default, int | float) or isinstance(field.default, bool):
                continue
            is_number = isinstance(limit, Real) and not isinstance(limit, bool)
            if not is_number or not limit >= 0:
                raise ValueError(f"{field.name} is a number from 0 up, got {limit!r}")
