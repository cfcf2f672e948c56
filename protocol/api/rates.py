"""Documents of the API about rates over time: series by round, changes, and two studies compared.

Rates are tokens per 1,000 devices, with 95% intervals that include the chance of which devices
came. Items whose counts are not published have no rates. `estimation/rate_changes.py` has the
statistics.
"""

from typing import Final, Literal

from protocol.estimation.rate_changes import ChangeKind
from protocol.public_model import PublicModel, Rows

MAX_SERIES_ITEMS = 100  # of one request for rates by round
RATE_DEVICES: Final = 1000  # rates are per this number of devices
Observation = Literal["counted", "sampled", "not read"]


class RoundRate(PublicModel):
    """Rate of an item in the rounds from `first_round` to `last_round`, with its interval.

    These are one round, or several in a study of more than 64. `how` is counted if all tokens of
    the item were counted, sampled if only a part of the `devices` was observed, and not read if
    none was: then the rate and its interval are null.
    """

    item: str
    first_round: int
    last_round: int
    devices: int
    how: Observation
    rate: float | None
    low: float | None
    high: float | None


class RoundRates(PublicModel):
    """Rates of items by round, in the order of the request and of rounds."""

    rates: Rows[RoundRate]


class ItemChange(PublicModel):
    """Change of an item's rate from `rate_before` to `rate_after`, each with its interval.

    `change` is null unless it is significant at the false-discovery rate. `factor` is the later
    rate divided by the earlier one. It is null if nothing was observed before, and the end of its
    interval is null if nothing bounds it. The rate is null where an answer does not list the item;
    its interval ends at the bound.
    """

    item: str
    change: ChangeKind | None
    rate_before: float | None
    low_before: float
    high_before: float
    rate_after: float | None
    low_after: float
    high_after: float
    factor: float | None
    factor_low: float
    factor_high: float | None
    p_value: float


class ItemChanges(PublicModel):
    """Changes of items, by p-value, at a false-discovery rate among `tested` items.

    `changed` of them are significant, and intervals of factors have the level `interval_level`, so
    that of those of the changed items on average at most this rate misses the truth. `before` and
    `after` are the first and the last round of the compared rounds; all rounds of two studies.
    `differences` are those of the questions of two studies, in words: rates may differ for these
    reasons alone.
    """

    changes: Rows[ItemChange]
    before: tuple[int, int]
    after: tuple[int, int]
    tested: int
    changed: int
    false_discovery_rate: float
    interval_level: float
    differences: tuple[str, ...] = ()
