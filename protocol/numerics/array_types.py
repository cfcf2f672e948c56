"""Types of numpy arrays, each with one meaning: by element first, then by what the array holds."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]  # with a sign: counts, sums, noise
Words: TypeAlias = NDArray[np.uint64]
Bytes: TypeAlias = NDArray[np.uint8]
Flags: TypeAlias = NDArray[np.bool_]

Indices: TypeAlias = NDArray[np.int64]  # positions in another array
Keys: TypeAlias = NDArray[np.uint64]  # (n, chunks): items as a domain encodes them
ItemValues: TypeAlias = NDArray[np.uint64]  # (n,): each item as one integer
DigitRows: TypeAlias = NDArray[np.uint8]  # (..., digits): from the first digit to the last

Codes: TypeAlias = NDArray[np.uint64]  # (n,): each report as one integer
PackedReports: TypeAlias = NDArray[np.uint8]  # (n, nbytes): reports as they are sent
Votes: TypeAlias = NDArray[np.int8]  # (n, k): the vote of each report for each candidate
Support: TypeAlias = NDArray[np.int64]  # the sums of votes
Frequencies: TypeAlias = NDArray[np.float64]
