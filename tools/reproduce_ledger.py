"""Independent recomputation of the numbers in a ledger's statement.

    blindtally privacy STUDY --json statement.json
    python tools/reproduce_ledger.py statement.json

This script is for reviewers. It uses numpy, SciPy's special functions and the definitions, and
neither blindtally's code nor the libraries that do its accounting.

For sample-and-threshold, the curve of the best test is maximised over the number of other
devices, which takes every value where it matters. For noise, the curve is a sum over all outcomes.
Curves are joined by straight lines at multiples of `STEP`, so a result is never below the true
one and, at this step, almost never above it. Where devices join by a coin, a party that knows
which devices joined has only the coin of the vote to guess; its probability is that of both coins
over that of joining. Local reports and exact sums need no recomputation.

The script prints the epsilon of each party in the statement and as recomputed. Its exit code is 1
if they differ by more than one hundredth.
"""

import json
import math
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ive

Floats = NDArray[np.float64]

STEP = 4e-3
MAX_LOSS = 40.0  # of all releases together


def at_least(heads: Floats, trials: int, p: float) -> Floats:
    """Return the probability of `heads` or more heads."""
    inside = (heads > 0) & (heads <= trials)
    safe = np.where(inside, heads, 1)
    tail = betainc(safe, trials - safe + 1, p)
    return np.where(heads <= 0, 1.0, np.where(inside, tail, 0.0))


def sampled_curves(p: float, theta: int, x: Floats) -> tuple[Floats, Floats]:
    """Return delta at each of `x` for a device that leaves, and for one that joins."""
    leaves, joins = np.maximum(0, -np.expm1(x)), np.maximum(0, -np.expm1(x))
    few = np.arange(theta - 1, math.ceil(3 * theta / p))
    many = np.geomspace(few[-1], 1000 * few[-1], 60).astype(int)  # where the curve changes little
    for k in [*few.tolist(), *many.tolist()]:
        for sign, curve in ((1, leaves), (-1, joins)):
            # More heads reveal more, so the best test has the form "this many heads or more".
            q = -np.expm1(math.log1p(-p) - sign * x)
            first = np.maximum(theta, np.floor(q * (k + 1)) + 1)
            for heads in (np.maximum(first - 1, theta), first):
                mine, others = at_least(heads, k + 1, p), at_least(heads, k, p)
                if sign < 0:
                    mine, others = 1 - others, 1 - mine
                np.maximum(curve, mine - np.exp(x) * others, out=curve)
    return leaves, joins


def noisy_curves(variance: float, probability: float, x: Floats) -> tuple[Floats, Floats]:
    """Return delta at each of `x` for a count with Skellam noise, shifted with `probability`."""
    end = math.ceil(40 + 12 * math.sqrt(variance))
    z = np.arange(-end, end + 2)
    without, moved = ive(abs(z), variance), ive(abs(z - 1), variance)
    with_it = (1 - probability) * without + probability * moved
    return tuple(  # type: ignore[return-value]
        np.array([np.maximum(mine - math.exp(at) * others, 0).sum() for at in x])
        for mine, others in ((with_it, without), (without, with_it))
    )


def losses(curve: Floats, x: Floats) -> tuple[Floats, float]:
    """Return the probability of each loss whose curve joins the dots, and of a total loss."""
    y = np.exp(x)
    curve = np.minimum.accumulate(curve)
    curve[0] = 1 - y[0]
    slopes = np.concatenate(([-1.0], np.diff(curve) / np.diff(y), [0.0]))
    return np.maximum(np.diff(slopes), 0.0) * y, float(curve[-1])


def composed(parts: list[tuple[Floats, float, int, int]]) -> tuple[Floats, float]:
    """Return the probabilities of sums of losses, and of a total loss.

    A part is (probabilities, total loss, first multiple of STEP, repetitions).
    """
    size = 2 * round(MAX_LOSS / STEP)
    spectrum, finite = np.ones(size // 2 + 1, np.complex128), 1.0
    for probabilities, total, first, times in parts:
        ring = np.zeros(size)
        np.add.at(ring, np.arange(first, first + len(probabilities)) % size, probabilities)
        spectrum = spectrum * np.fft.rfft(ring) ** times
        finite *= (1 - total) ** times
    return np.maximum(np.roll(np.fft.irfft(spectrum, size), size // 2), 0.0), 1 - finite


def epsilon(parts: list[tuple[Floats, float, int, int]], delta: float) -> float:
    """Return the smallest epsilon with `delta`."""
    probabilities, total = composed(parts)
    at = (np.arange(len(probabilities)) - len(probabilities) // 2) * STEP
    low, high = 0.0, MAX_LOSS
    while high - low > 1e-6:
        middle = (low + high) / 2
        over = at > middle
        spent = total + float(probabilities[over] @ -np.expm1(middle - at[over]))
        low, high = (low, middle) if spent <= delta else (middle, high)
    return high


def event_for(event: dict[str, Any], party: str) -> dict[str, Any] | None:
    """Return an event with only the coins that are secret to `party`; None if unbounded."""
    if event["kind"] == "sample-threshold":
        parties_that_see_joins = ("devices",)  # by the roster
        if party == "server" or event["threshold"] <= event["colluders"]:
            return None
    elif event["kind"] == "noise":
        parties_that_see_joins = ("devices", "server", "analyst")
    else:
        return None
    seen = event["join_probability"] if party in parties_that_see_joins else 1.0
    return event | {"probability": event["probability"] / seen, "join_probability": 1.0}


@cache
def parts_of(text: str) -> list[tuple[Floats, float, int, int]]:
    """Return the losses of one event for a leaving and for a joining device."""
    event = json.loads(text)
    times = event["releases"] * event.get("items", 1)
    steps = np.arange(-round(6 / STEP), round(6 / STEP) + 1)
    if event["kind"] == "sample-threshold":
        theta = event["threshold"] - event["colluders"]
        curves = sampled_curves(event["probability"], theta, steps * STEP)
    else:
        curves = noisy_curves(event["variance"], event["probability"], steps * STEP)
    # The delta for tables that are not read is charged once for all releases.
    failure = 1 - (1 - event.get("table_failure_delta", 0.0)) ** (1 / times)
    first = int(steps[0])
    return [
        (probabilities, 1 - (1 - total) * (1 - failure), first, times)
        for probabilities, total in (losses(curve, steps * STEP) for curve in curves)
    ]


def reproduced(statement: dict[str, Any], party: str) -> float | None:
    """Return the add-remove epsilon of `party` for all entries; None if it has no bound."""
    events = [event_for(line["entry"]["event"], party) for line in statement["lines"]]
    texts = [json.dumps(event) for event in events if event is not None]
    if len(texts) < len(events):
        return None
    parts = [parts_of(text) for text in texts]
    largest = max(epsilon([part[way] for part in parts], statement["delta"]) for way in (0, 1))
    return None if largest >= 0.999 * MAX_LOSS else largest


def main() -> int:
    """Compare the epsilons of a statement with those computed here."""
    statement = json.loads(Path(sys.argv[1]).read_text())
    wrong = 0
    for row in statement["parties"]:
        stated, recomputed = row["epsilon"], reproduced(statement, row["party"])
        sys.stdout.write(f"{row['party']:8} stated {stated}, recomputed {recomputed}\n")
        if (stated is None) != (recomputed is None):
            wrong = 1
        elif stated is not None and recomputed is not None:
            wrong |= abs(stated - recomputed) > 0.01 * max(stated, 0.1)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
