import numpy as np
from numpy.typing import NDArray

from protocol.sketches.iblt.peeling import PeelingState, TableParameters

INTERFACE: int

def peel(
    rows: NDArray[np.int64],
    parameters: TableParameters,
    state: PeelingState,
    _: NDArray[np.uint64],
    strict: bool,
) -> None: ...
def add_entry(
    rows: NDArray[np.int64],
    _: TableParameters,
    state: PeelingState,
    __: NDArray[np.uint64],
    key: NDArray[np.uint64],
    cell: int,
    value: int,
) -> None: ...
