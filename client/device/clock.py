"""Clock of a device, by which its journal frees what it has spent.

No single reading frees anything. The journal stores a reading a day, and a vector is old once two
readings agree on it, the second a day later (`protocol/clock_readings.py`). For example, with a
period of 30 days:

    day     run                       two readings agree on
    0       gives a vector            nothing
    31      is refused                day 0
    32      may give the next one     day 31

A device that runs once a month has one reading a month, so it may give again at every second run.

A vector that is given while the clock is behind would be old too early. So after a reading that is
a day or more before the last one the device gives nothing, until a later reading follows: either
the clock is right again, or it has been as it is for a day.
"""

from dataclasses import dataclass
from typing import Final

from protocol.clock_readings import DAY_SECONDS, ClockReadings
from protocol.device_policy.policy import PolicyError

MIN_TIME: Final = 19_723 * DAY_SECONDS  # 2024: before it, this program did not exist
MAX_TIME: Final = 2**40  # seconds; finite, so that every entry can be compared


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """The clock `now`, the readings until now, and the seconds by which the last one went back."""

    now: float
    readings: ClockReadings
    set_back: float = 0.0

    @property
    def confirmed(self) -> float:
        """Return the time that has passed by two readings, and by the clock."""
        return min(self.now, self.readings.confirmed)

    def check(self) -> None:
        """Check that a vector may be recorded at this time.

        Raises:
            PolicyError: if the clock is before 2024, because a vector that is recorded in 1970
                would be forgotten once the clock is right; or if it was set back.
        """
        if not is_credible(self.now):
            raise PolicyError(
                "clock", "asks for a sum while the clock of this device is before 2024"
            )
        if self.set_back >= DAY_SECONDS:
            days = self.set_back / DAY_SECONDS
            reason = f"asks for a sum while the clock of this device is {days:.0f} days behind"
            raise PolicyError("clock", f"{reason} its last reading; try again in a day")


def is_credible(now: float) -> bool:
    """Return whether a clock may show `now`; False for NaN."""
    return MIN_TIME <= now < MAX_TIME
