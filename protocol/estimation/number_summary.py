"""Mean, variance and total of numbers that were summed exactly, with intervals.

Two kinds of results must be kept apart. For the n devices that took part, the sums are exact, up to
the rounding of each number to the middle of its cell, by w / 2 at most:

    mean m = S / n,   variance s^2 = (Q - S^2 / n) / (n - 1),   total = n m

The intervals are for the population, if the devices that took part are a random part of it:

    mean       m ± t s / sqrt(n), with the quantile t of Student's distribution of n - 1 degrees
    variance   s^2 ± z sqrt(s^2 (R^2 - s^2) / n), and at its upper end e^2 more, with the error
               e = z s / sqrt(n) of the mean, and R the distance of m to the farther end, plus e

The first is exact for normal numbers, and otherwise holds if n is large compared with the skew. The
second needs no shape: numbers within R of their mean have E (x - m)^4 <= R^2 s^2, so the interval
is too wide for most. Both are wider by the rounding: w / 2 for the mean and for the standard
deviation, up to n / (n - 1), since the latter is a norm.
"""

from collections.abc import Sequence
from math import inf, sqrt
from typing import Final

from protocol.domains.numeric import NumericInterval
from protocol.numerics import special
from protocol.numerics.array_types import Integers
from protocol.public_model import PublicModel, Rows

SEGMENTS_NOTE: Final = (
    "In each round, devices of a segment with fewer than the threshold are in no row."
)


class NoNumbersError(ValueError):
    """No segment of any round has enough devices for an answer."""


class NumberSummary(PublicModel):
    """Numbers of the devices in a `segment`, or in all segments of the answer if it is None.

    A segment with fewer devices than the threshold in a round is in no number of this round.
    `sum`, `mean`, `variance` and `standard_deviation` are those of the `devices` that took part,
    exact up to `rounding` per device. `low` and `high` ends are intervals of the population's
    values. A single device has no variance.
    """

    segment: str | None
    devices: int
    sum: float
    mean: float
    mean_low: float
    mean_high: float
    variance: float | None
    variance_low: float
    variance_high: float
    standard_deviation: float | None
    standard_deviation_low: float
    standard_deviation_high: float
    rounding: float


def segment_label(segment: str | None, has_segments: bool) -> str:
    """Return the name of a row: of a segment, of all that are shown, or of a study without any."""
    if segment is not None:
        return segment
    return "all shown" if has_segments else "all"


class NumberSummaries(PublicModel):
    """Summary of all devices, then of each segment; an interval misses with probability `beta`."""

    beta: float
    results: Rows[NumberSummary]


def summarise_numbers(
    interval: NumericInterval, sums: Integers, segments: Sequence[str] = (), beta: float = 0.05
) -> NumberSummaries:
    """Return the summaries of `sums`: rows n, S and Q of the numbers' cells, a column per segment.

    Segments without any number are left out. `beta` is the probability that an interval misses.
    """
    columns = [(int(n), int(s), int(q)) for n, s, q in sums.T.tolist()]
    n, s, q = (sum(column[row] for column in columns) for row in range(3))
    results = [_summary(interval, None, n, s, q, beta)]
    if segments:
        results += [
            _summary(interval, segment, *column, beta)
            for segment, column in zip(segments, columns, strict=True)
            if column[0]
        ]
    return NumberSummaries(beta=beta, results=tuple(results))


def _summary(
    interval: NumericInterval, segment: str | None, n: int, s: int, q: int, beta: float
) -> NumberSummary:
    """Return the summary of `n` devices whose cells have the sum `s` and the squares' sum `q`."""
    width = (interval.high - interval.low) / interval.cells
    rounding = width / 2
    mean = interval.low + width * (s / n + 0.5)
    variance = width**2 * ((n * q - s * s) / (n * (n - 1))) if n > 1 else None
    deviation = None if variance is None else sqrt(variance)
    margin = inf
    if deviation is not None:  # for a tiny beta the quantile is infinite, with any sign
        margin = deviation and abs(float(special.stdtrit(n - 1, beta / 2))) * deviation / sqrt(n)
    low, high = _deviation_interval(interval, n, mean, variance, rounding, beta)
    return NumberSummary(
        segment=segment,
        devices=n,
        sum=n * mean,
        mean=mean,
        mean_low=max(interval.low, mean - margin - rounding),
        mean_high=min(interval.high, mean + margin + rounding),
        variance=variance,
        variance_low=low**2,
        variance_high=high**2,
        standard_deviation=deviation,
        standard_deviation_low=low,
        standard_deviation_high=high,
        rounding=rounding,
    )


def _deviation_interval(
    interval: NumericInterval,
    n: int,
    mean: float,
    variance: float | None,
    rounding: float,
    beta: float,
) -> tuple[float, float]:
    """Return the ends of the interval of the population's standard deviation."""
    largest = (interval.high - interval.low) / 2  # half of the devices at each end
    if variance is None:
        return 0.0, largest
    z = -float(special.ndtri(beta / 2))
    error = variance and z * sqrt(variance / n)
    radius = min(2 * largest, max(interval.high - mean, mean - interval.low) + error)
    spread = sqrt(variance * max(0.0, radius**2 - variance) / n)
    margin = spread and z * spread
    rounded = rounding * sqrt(n / (n - 1))
    low = sqrt(max(0.0, variance - margin)) - rounded
    high = sqrt(variance + margin + error**2) + rounded
    # The numbers that took part may deviate more than any population, by n / (n - 1).
    return max(0.0, min(low, largest)), max(min(largest, high), sqrt(variance))
