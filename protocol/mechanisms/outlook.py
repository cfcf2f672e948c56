"""What a study that tracks items remembers of them, and what it expects of them next.

The tally keeps, block by block of rounds, what was seen of each item and among how many devices
it was exposed (`local_level.py`): `devices` and `offered` for all items alike, and for each item
what it was exposed to besides, by being counted. An item that was never seen before was exposed
to all that was offered, which its first sample makes known: no column needs to be filled.
"""

import math
from collections.abc import Sequence

import numpy as np

from protocol.local_level import Floats, History, filter_levels, measure_drift
from protocol.mechanism import Estimate, Plan, add_estimates
from protocol.mechanisms.counters import Group, bits_for
from protocol.sampling import Threshold
from protocol.tally import Tally

MOST_BLOCKS = 64  # a longer study has several rounds in a block
_HOPE = 2.0  # standard errors below the threshold at which an item is given up
_JUMP = 3.0  # deviations, and a token, by which the last block must belie the rate
_DEVICES, _OFFERED = "devices", "offered"  # arrays of the tally
_SEEN, _EXPOSED = "seen {}", "exposed {}"  # and columns, one a block


def remember(
    plan: Plan,
    tally: Tally,
    participants: int,
    counted: Sequence[Estimate],
    sampled: Sequence[Estimate] | None,
) -> Tally:
    """Return `tally` with a round in which items were `counted`, and `sampled` unless None."""
    threshold, block = Threshold(plan.t, plan.question.contribution), _block(plan)
    offered = participants / threshold.mean if sampled is not None else 0.0
    for name, amount in ((_DEVICES, participants), (_OFFERED, offered)):
        blocks = tally.arrays.get(name, np.zeros(min(plan.rounds, MOST_BLOCKS))).copy()
        blocks[block] += amount
        tally = tally.keep(name, blocks)
    items = [one.item for one in counted]
    seen = np.array([one.count for one in counted], np.float64)
    exposed = np.full(len(items), participants - offered)
    tally = tally.add(items, {_SEEN.format(block): seen, _EXPOSED.format(block): exposed})
    if sampled:
        items = [one.item for one in sampled]
        tokens = np.array([one.count for one in sampled]) / threshold.mean
        tally = tally.add(items, {_SEEN.format(block): tokens})
    return add_estimates(tally, [*counted, *(sampled or [])])


def history_of(tally: Tally) -> History:
    """Return what `tally` remembers, of a study that has had a round."""
    devices, offered = tally.arrays[_DEVICES], tally.arrays[_OFFERED]
    blocks = range(len(devices))
    seen = np.stack([tally.column(_SEEN.format(block)) for block in blocks], axis=1)
    exposed = np.stack([tally.column(_EXPOSED.format(block)) for block in blocks], axis=1)
    last = int(np.flatnonzero(devices)[-1]) + 1 if devices.any() else 0
    return History(seen[:, :last], (exposed + offered)[:, :last], devices[:last])


def expect(tally: Tally, devices: int, items: Sequence[str]) -> tuple[Floats, Floats]:
    """Return the count to expect of each of `items` among `devices`, and its deviation.

    Where the last block belies the rate that all blocks together give, the last block is
    believed: something has happened.

    Raises:
        KeyError: if an item is not in the tally; only what is known is ever tracked.
    """
    rows = np.array([tally.rows[item] for item in items], np.int64)
    whole = history_of(tally)
    history = History(whole.seen[rows], whole.exposed[rows], whole.devices)
    drift = measure_drift(whole)
    levels = filter_levels(history, drift)
    rates, variances = levels.rates, levels.rate_variances + (drift.phi * history.rates) ** 2
    seen, exposed = history.seen[:, -1], np.maximum(history.exposed[:, -1], 1e-9)
    usual = np.sqrt(drift.dispersion * rates * exposed + variances * exposed**2)
    jumped = np.abs(seen - rates * exposed) - 1 > _JUMP * usual
    rates = np.where(jumped, seen / exposed, rates)
    variances = np.where(jumped, drift.dispersion * (seen + 1) / exposed**2, variances)
    return rates * devices, np.sqrt(drift.dispersion * rates * devices + variances * devices**2)


def worth_tracking(plan: Plan, tally: Tally, nbytes: int) -> tuple[Group, ...]:
    """Return counters for the items that may yet be heavy, the most frequent first.

    They, and a total for each group of one width, take at most `nbytes`.
    """
    if not tally.items:
        return ()
    history = history_of(tally)
    drift = measure_drift(history)
    levels = filter_levels(history, drift)
    to_come = (plan.rounds - plan.round) * plan.terms.devices
    outlook = levels.totals + levels.rates * to_come
    spread = levels.variances + levels.rate_variances * to_come**2 + levels.rates * to_come
    may_be = np.flatnonzero(outlook + _HOPE * np.sqrt(spread) >= plan.question.threshold)
    ordered = may_be[np.argsort(-outlook[may_be], kind="stable")]
    items = [tally.items[row] for row in ordered.tolist()]
    bits = bits_for(*expect(tally, plan.terms.devices, items)) if items else np.zeros(0)
    total = (plan.terms.devices * plan.question.contribution).bit_length()
    bits = np.minimum(bits, total).astype(np.int64)
    widths = len(np.unique(bits))
    kept = np.cumsum(bits) <= 8 * nbytes - widths * (8 * math.ceil(total / 8) + 8)
    return tuple(
        Group(
            bits=width,
            items=tuple(
                item
                for item, of, is_kept in zip(items, bits.tolist(), kept.tolist(), strict=True)
                if of == width and is_kept
            ),
        )
        for width in np.unique(bits[kept]).tolist()
    )


def _block(plan: Plan) -> int:
    return (plan.round - 1) * min(plan.rounds, MOST_BLOCKS) // plan.rounds
