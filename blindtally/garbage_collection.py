"""Threshold of Python's search for garbage in the processes of `blindtally`.

The search runs when there are more new objects than the threshold, 700 by default. A device of a
fleet or a request of a service makes thousands that are freed without any search, because few of
them refer to each other in a cycle. So each process searches less often, from its start.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 20_000  # before a search; with 700 it takes a tenth of the processor


def collect_rarely() -> None:
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
