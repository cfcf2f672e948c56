"""Counts of devices by round: of rounds that are not read, and of the next round.

**A round that is not read**, because its table is too full, shows no counts. Its devices have
counted all the same, so totals are estimated for them too. An item with c tokens in the D_r devices
of the rounds that were read is assumed to have had the same rate in the D_u devices of the others:

    total     =  c (1 + g),   g = D_u / D_r
    variance  =  v (1 + g)^2 + c g (1 + g)

The first term is that of the estimate of c, whose variance is v. The second is that of the tokens:
they are Poisson in both, so that the unread ones differ from c g by c g + c g^2. It holds if rates
do not change; `tracked` measures how they do, unless it is to assume nothing. An item that is
counted exactly has its counts in a round whose table was not read, too.

**The next round.** How many devices come is not known when t is set. A round at night may have a
twentieth of those by day. A table for too many devices only samples too little; one for too few is
not read at all. So t is set for the largest of the recent rounds.
"""

import math
from collections.abc import Sequence

import numpy as np

from protocol.estimates import COUNT_COLUMN, VARIANCE_COLUMN
from protocol.numerics.arrays import Floats
from protocol.study_state import StudyState

_MAX_UNREAD_SHARE = 0.05  # of the devices, for totals of many items together
_RECENT_ROUNDS = 4  # so that two small rounds after another, such as a weekend, are passed over
_SAME_SIZE_FACTOR = 1.3  # factor within which rounds have about the same number of devices
_RECENT_DEVICES_ARRAY = "recent devices"  # of the study state, the last round last
# Of the study state.
_DEVICES_ARRAY = "devices of all and of unread rounds"
_COUNTED_COLUMN = "devices of unread rounds that counted it"


def add_devices(
    state: StudyState, devices: int, *, is_read: bool, counted: Sequence[str] = ()
) -> StudyState:
    """Return `state` after a round of `devices`, in which the `counted` items were counted."""
    all_and_unread = state.arrays.get(_DEVICES_ARRAY, np.zeros(2))
    after = all_and_unread + np.array([devices, 0 if is_read else devices])
    state = state.with_array(_DEVICES_ARRAY, after)
    if is_read or not counted:
        return state
    return state.add(counted, {_COUNTED_COLUMN: np.full(len(counted), float(devices))})


def all_devices(state: StudyState) -> int:
    """Return the number of devices that all rounds of `state` counted, read or not."""
    return int(state.arrays.get(_DEVICES_ARRAY, np.zeros(2))[0])


def read_devices(state: StudyState) -> tuple[Floats, Floats]:
    """Return for each item the devices of the rounds that showed its count, and of the others."""
    devices, unread_devices = state.arrays.get(_DEVICES_ARRAY, np.zeros(2)).tolist()
    unread = unread_devices - state.column(_COUNTED_COLUMN)
    return np.maximum(devices - unread, 1), unread


def few_are_unread(state: StudyState) -> bool:
    """Return whether nearly all devices are in rounds that were read.

    Where t follows the data, a table is unread mostly if t is too low because the sample of the
    round before was small by chance. Then all that is estimated from samples is too low.
    """
    devices, unread = state.arrays.get(_DEVICES_ARRAY, np.zeros(2)).tolist()
    return bool(unread <= _MAX_UNREAD_SHARE * devices)


def totals_of_all_rounds(
    state: StudyState, variances: Floats | None = None
) -> tuple[Floats, Floats]:
    """Return the estimated counts of the items of `state` in all rounds, and their variances.

    `variances` are those of the estimates in the rounds that were read, by default the stored ones.
    """
    counts = state.column(COUNT_COLUMN)
    variances = state.column(VARIANCE_COLUMN) if variances is None else variances
    read, unread = read_devices(state)
    growth = unread / read
    tokens = np.maximum(counts, 0) * growth * (1 + growth)
    return counts * (1 + growth), variances * (1 + growth) ** 2 + tokens


def expected_devices(recent: Sequence[float], max_devices: int) -> float:
    """Return the devices for which to set t, from those of the `recent` rounds, the last one last.

    They are the largest of the last rounds, averaged with those of about the same size. If the last
    round is larger than all before by a factor, the next may grow by this factor again.
    """
    *earlier, latest = (max(1.0, devices) for devices in recent[-_RECENT_ROUNDS:])
    if earlier and is_small(max(earlier), latest):
        return min(max_devices, latest * latest / max(earlier))
    largest = max(latest, *earlier, 1.0)
    usual = [devices for devices in (*earlier, latest) if not is_small(devices, largest)]
    return min(max_devices, math.fsum(usual) / len(usual))


def is_small(devices: float, expected: float) -> bool:
    """Return whether a round had far fewer devices than expected."""
    return devices * _SAME_SIZE_FACTOR < expected


def recent_devices(state: StudyState) -> list[float]:
    """Return the devices of the last rounds of the study, the last one last."""
    sizes: list[float] = state.arrays.get(_RECENT_DEVICES_ARRAY, np.zeros(0)).tolist()
    return sizes


def add_recent_devices(state: StudyState, devices: int) -> StudyState:
    """Return `state` after a round of `devices`."""
    sizes = [*recent_devices(state), float(devices)][-_RECENT_ROUNDS - 1 :]
    return state.with_array(_RECENT_DEVICES_ARRAY, np.array(sizes))
