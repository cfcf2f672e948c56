"""Words of the tables of `tracked` with which a study finds what it looks for, by simulation.

The simulated items have shares that fall as 1 / rank, as those of `blindtally plan`; with other
items the same words find more or less (`blindtally plan` shows a range).
"""

import math
from typing import Final

from blindtally.planning.bracketing_populations import AssumedCounts, middle_case
from blindtally.planning.f1_by_words import TRACKED, StudySetting, f1_over_sizes
from protocol.domains.hashed import Hashed

_SEED: Final = (1, 0)
_GRID_STEP: Final = 4  # steps of the grid of sizes before the search bisects
_MIN_WORDS: Final = 50


def recommend_words(
    threshold: float,
    devices: int,
    rounds: int,
    *,
    contribution: int = 1,
    max_bytes: int = 64,
    f1: float = 0.95,
) -> int:
    """Return the 16-bit words per round with which `tracked` reaches an `f1` of 0.8, 0.9 or 0.95.

    F1 is the harmonic mean of precision and recall, over `rounds` rounds of `devices` devices with
    at most `contribution` items of `max_bytes` bytes each. The search takes some seconds.

    Raises:
        ValueError: if no number of words up to 200,000 reaches it, or no assumed item is heavy.
    """
    setting = StudySetting(rounds, threshold, devices * contribution, _MIN_WORDS)
    domain = Hashed(max_bytes=max_bytes)
    case = middle_case(domain, AssumedCounts(), setting.tokens, contribution).case
    curve = f1_over_sizes(case, TRACKED, setting, [_SEED], every=_GRID_STEP)
    words = curve.x_reaching(f1)
    if words == TRACKED.min_words:  # nothing to find
        raise ValueError(f"no assumed item is held {threshold:g} times: lower the threshold")
    if words is None:
        raise ValueError(
            f"no study of this size reaches an F1 of {f1:g}: raise the threshold, or the number "
            "of devices or rounds"
        )
    return math.ceil(words)
