"""Totals over all rounds, of which some could not be read.

A table that is too full shows no counts. The devices of its round have counted all the same, so
totals are estimated for them too. An item with c tokens in the D_r devices of the rounds that were
read is assumed to have had the same rate in the D_u devices of the others:

    total     =  c (1 + g),   g = D_u / D_r
    variance  =  v (1 + g)^2 + c g (1 + g)

The first term is that of the estimate of c, whose variance is v. The second is that of the tokens:
they are Poisson in both, so that the unread ones differ from c g by c g + c g^2. It holds if rates
do not change; `tracked` measures how they do, unless it is to assume nothing.

An item that is counted exactly has its counts in a round whose table was not read, too; the devices
of that round are not unread for it.
"""

from collections.abc import Sequence

import numpy as np

from protocol.arrays import Floats
from protocol.mechanism import COUNT_COLUMN, VARIANCE_COLUMN
from protocol.study import StudyState

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


def read_devices(state: StudyState) -> tuple[Floats, Floats]:
    """Return for each item the devices of the rounds that showed its count, and of the others."""
    devices, unread_devices = state.arrays.get(_DEVICES_ARRAY, np.zeros(2)).tolist()
    unread = unread_devices - state.column(_COUNTED_COLUMN)
    return np.maximum(devices - unread, 1), unread


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
