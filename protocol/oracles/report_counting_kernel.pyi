import numpy as np
from numpy.typing import NDArray

INTERFACE: int

def count_preimages(
    counted: NDArray[np.uint32],
    a: NDArray[np.int64],
    b: NDArray[np.int64],
    y: NDArray[np.int64],
    m: int,
) -> int: ...
def count_solutions(
    counted: NDArray[np.uint32],
    r: NDArray[np.int64],
    y: NDArray[np.int64],
    products: NDArray[np.int64],
    _: NDArray[np.int64],
    binary: bool,
) -> None: ...
def count_hashed(
    counted: NDArray[np.uint32], seeds: NDArray[np.uint64], y: NDArray[np.uint64], m: int
) -> None: ...
