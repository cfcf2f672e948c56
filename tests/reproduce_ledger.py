"""Computes a ledger's numbers again, with nothing of ours and nothing of what it uses.

    blindtally privacy STUDY --json statement.json
    python tests/reproduce_ledger.py statement.json

For a reviewer: numpy, scipy's special functions and the definitions. Of sample-and-threshold the
curve of the worst test is taken over the numbers of others, one by one where it matters; of noise
over all outcomes. Curves are joined by straight lines at multiples of `STEP`, so what comes out is
never below the truth and, at this step, hardly above it. Where devices join by a coin, whoever
knows who joined has the vote's own coin to guess: the odds of both over those of joining. Local
reports and exact sums have no need of it. Prints each party's epsilon as the statement has it and
as it is here; ends with exit code 1 if they differ by more than a hundredth.
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
MOST_LOSS = 40.0  # of all releases together


def at_least(heads: Floats, trials: int, p: float) -> Floats:
    """Return the odds of so many heads or more."""
    inside = (heads > 0) & (heads <= trials)
    safe = np.where(inside, heads, 1)
    odds = betainc(safe, trials - safe + 1, p)
    return np.where(heads <= 0, 1.0, np.where(inside, odds, 0.0))


def sampled_curves(p: float, theta: int, x: Floats) -> tuple[Floats, Floats]:
    """Return delta at each of `x` for a device that leaves, and for one that joins."""
    leaves, joins = np.maximum(0, -np.expm1(x)), np.maximum(0, -np.expm1(x))
    few = np.arange(theta - 1, math.ceil(3 * theta / p))
    many = np.geomspace(few[-1], 1000 * few[-1], 60).astype(int)  # where next to nothing changes
    for k in [*few.tolist(), *many.tolist()]:
        for sign, curve in ((1, leaves), (-1, joins)):
            # Heads tell most where they are many: the best test is "at least so many".
            q = -np.expm1(math.log1p(-p) - sign * x)
            first = np.maximum(theta, np.floor(q * (k + 1)) + 1)
            for heads in (np.maximum(first - 1, theta), first):
                mine, others = at_least(heads, k + 1, p), at_least(heads, k, p)
                if sign < 0:
                    mine, others = 1 - others, 1 - mine
                np.maximum(curve, mine - np.exp(x) * others, out=curve)
    return leaves, joins


def noisy_curves(variance: float, sampled: float, x: Floats) -> tuple[Floats, Floats]:
    """Return the same of a count with Skellam noise; it is shifted by a coin of odds `sampled`."""
    end = math.ceil(40 + 12 * math.sqrt(variance))
    z = np.arange(-end, end + 2)
    without, moved = ive(abs(z), variance), ive(abs(z - 1), variance)
    with_it = (1 - sampled) * without + sampled * moved
    return tuple(  # type: ignore[return-value]
        np.array([np.maximum(mine - math.exp(at) * others, 0).sum() for at in x])
        for mine, others in ((with_it, without), (without, with_it))
    )


def losses(curve: Floats, x: Floats) -> tuple[Floats, float]:
    """Return the odds of each loss whose curve joins the dots, and those of a total loss."""
    y = np.exp(x)
    curve = np.minimum.accumulate(curve)
    curve[0] = 1 - y[0]
    slopes = np.concatenate(([-1.0], np.diff(curve) / np.diff(y), [0.0]))
    return np.maximum(np.diff(slopes), 0.0) * y, float(curve[-1])


def composed(parts: list[tuple[Floats, float, int, int]]) -> tuple[Floats, float]:
    """Return the odds of sums of losses, each (odds, total, first multiple of STEP, times)."""
    size = 2 * round(MOST_LOSS / STEP)
    spectrum, kept = np.ones(size // 2 + 1, np.complex128), 1.0
    for odds, total, first, times in parts:
        ring = np.zeros(size)
        np.add.at(ring, np.arange(first, first + len(odds)) % size, odds)
        spectrum = spectrum * np.fft.rfft(ring) ** times
        kept *= (1 - total) ** times
    return np.maximum(np.roll(np.fft.irfft(spectrum, size), size // 2), 0.0), 1 - kept


def epsilon(parts: list[tuple[Floats, float, int, int]], delta: float) -> float:
    """Return the least epsilon with `delta`."""
    odds, total = composed(parts)
    at = (np.arange(len(odds)) - len(odds) // 2) * STEP
    low, high = 0.0, MOST_LOSS
    while high - low > 1e-6:
        middle = (low + high) / 2
        over = at > middle
        spent = total + float(odds[over] @ -np.expm1(middle - at[over]))
        low, high = (low, middle) if spent <= delta else (middle, high)
    return high


def seen_by(mechanism: dict[str, Any], party: str) -> dict[str, Any] | None:
    """Return an entry as it is to `party`, all of whose coins are secret; None if unbounded."""
    if mechanism["kind"] == "sample-threshold":
        odds, knowing = "probability", ("devices",)  # the roster tells who joined
        if party == "server" or mechanism["threshold"] <= mechanism["colluders"]:
            return None
    elif mechanism["kind"] == "noise":
        odds, knowing = "sampled", ("devices", "server", "analyst")
    else:
        return None
    joined = mechanism["invited"] if party in knowing else 1.0
    return mechanism | {odds: mechanism[odds] / joined, "invited": 1.0}


@cache
def parts_of(text: str) -> list[tuple[Floats, float, int, int]]:
    """Return the losses of one entry for a leaving and for a joining device."""
    mechanism = json.loads(text)
    times = mechanism["releases"] * mechanism.get("items", 1)
    steps = np.arange(-round(6 / STEP), round(6 / STEP) + 1)
    if mechanism["kind"] == "sample-threshold":
        theta = mechanism["threshold"] - mechanism["colluders"]
        curves = sampled_curves(mechanism["probability"], theta, steps * STEP)
    else:
        curves = noisy_curves(mechanism["variance"], mechanism["sampled"], steps * STEP)
    unread = 1 - (1 - mechanism.get("unread", 0.0)) ** (1 / times)  # once, in all of them
    found = [losses(curve, steps * STEP) for curve in curves]
    first = int(steps[0])
    return [(odds, 1 - (1 - total) * (1 - unread), first, times) for odds, total in found]


def reproduced(statement: dict[str, Any], party: str) -> float | None:
    """Return what `party` learns by all entries, add-remove; None if that has no bound."""
    seen = [seen_by(line["entry"]["mechanism"], party) for line in statement["lines"]]
    texts = [json.dumps(one) for one in seen if one is not None]
    if len(texts) < len(seen):
        return None
    parts = [parts_of(text) for text in texts]
    found = max(epsilon([one[way] for one in parts], statement["delta"]) for way in (0, 1))
    return None if found >= 0.999 * MOST_LOSS else found


def main() -> int:
    """Compare a statement with what it should say."""
    statement = json.loads(Path(sys.argv[1]).read_text())
    wrong = 0
    for sight in statement["sights"]:
        told, found = sight["epsilon"], reproduced(statement, sight["party"])
        sys.stdout.write(f"{sight['party']:8} told {told}, found {found}\n")
        if (told is None) != (found is None):
            wrong = 1
        elif told is not None and found is not None:
            wrong |= abs(told - found) > 0.01 * max(told, 0.1)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
