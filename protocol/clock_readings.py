"""Readings of a clock, of which two must agree before something is deleted or forgotten.

A clock may be wrong once: a machine has an empty battery, or a person mistypes a year. So a time
counts as past only once two stored readings agree, of which the second is a day later:

    reading          latest           confirmed
    1 May 12:00      1 May 12:00      never
    2 May 12:00      2 May 12:00      1 May 12:00
    13 Sep 2027      13 Sep 2027      2 May 12:00    this reading is a year ahead
    2 May 12:05      2 May 12:05      2 May 12:00    and is forgotten when the clock is right

Programs store both times where they store what they delete, so that a restart does not matter.
Times are seconds since 1970.
"""

import math
from dataclasses import dataclass
from typing import Final

DAY_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ClockReadings:
    """The latest reading that was stored, and the time that is `confirmed`: it has passed."""

    latest: float
    confirmed: float = -math.inf

    def after(self, now: float) -> "ClockReadings":
        """Return the readings after one more; the same if it is less than a day later."""
        if now >= self.latest + DAY_SECONDS:
            return ClockReadings(now, self.latest)
        if now >= self.latest:
            return self
        return ClockReadings(now, min(self.confirmed, now))
