"""What a study that tracks items remembers of them, and what it expects of them next.

The tally keeps, block by block of rounds, what was seen of each item and among how many devices
it was exposed (`local_level.py`): `devices` and `offered` for all items alike, and for each item
what it was exposed to besides, by being counted. An item that was never seen before was exposed
to all that was offered, which its first sample makes known: no column needs to be filled.

Most items that are ever sampled are rare. They are remembered as well: what is known of them is
taken off the cells of sketches that they share with others (`hindsight.py`). Once there are very
many, the rarest of those that cannot become heavy any more, by six standard errors, are *given up*:
their keys are all that is kept, since they help to read a table that is stuck. One that is sampled
again begins anew, as if it had not been seen.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.drift import measure_drift
from protocol.item_space import Keys
from protocol.local_level import Drift, Floats, History, filter_levels
from protocol.mechanism import Estimate, Plan, add_estimates
from protocol.mechanisms.counters import Group, beside, bits_for
from protocol.mechanisms.hindsight import levels_of
from protocol.sampling import Threshold
from protocol.tally import Tally

MOST_BLOCKS = 64  # a longer study has several rounds in a block
_MANY = 2**14  # items, from which on some are given up: 64 blocks of these take 100 to 350 MB
_MOST_KEYS = 2**16  # that are kept of them; to try more takes seconds
_GIVEN_UP = 6.0  # standard errors below the threshold at which their numbers are
_HOPE = 2.0  # standard errors below the threshold at which an item is given up
_DOUBT = 1.0  # standard errors above it at which an item is taken for heavy before the end
_LAST = 0.25  # of the rounds: the end
_JUMP = 3.0  # deviations, and a token, by which the last block must belie the rate
_NEWS = 0.25  # of how many devices a round is expected to have: what the last one counts
_USUAL = 1.3  # by which it may differ; beyond, others have come, and may stay
_DEVICES, _OFFERED, _CROWD = "devices", "offered", "crowd"  # arrays of the tally
_DRIFT, _TREND = "drift", "trend"  # two more; a tally of earlier versions has no trend
_KEYS = "given up"  # another
_SEEN, _EXPOSED = "seen {}", "exposed {}"  # and columns, one a block
_SLIP, _SLIPPED = "slip", "slipped"  # of the last round, and variances of all
_WIDER = 4  # bits that a slip makes a counter wider by at most


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
    tally = tally.keep(_CROWD, _crowd(tally, participants))
    items = [one.item for one in counted]
    seen = np.array([one.count for one in counted], np.float64)
    exposed = np.full(len(items), participants - offered)
    doubt = np.array([one.variance for one in counted], np.float64)
    columns = {_SEEN.format(block): seen, _EXPOSED.format(block): exposed, _SLIPPED: doubt}
    tally = tally.add(items, columns)
    if sampled:
        items = [one.item for one in sampled]
        tokens = np.array([one.count for one in sampled]) / threshold.mean
        tally = tally.add(items, {_SEEN.format(block): tokens})
    tally = add_estimates(tally, [*counted, *(sampled or [])])
    drift = measure_drift(history_of(tally))
    jumps = [drift.breaks.get(number, 0.0) for number in range(len(tally.arrays[_DEVICES]))]
    tally = tally.keep(_TREND, np.array([drift.trend]))
    return tally.keep(_DRIFT, np.array([drift.phi, drift.dispersion, *jumps]))


def remember_slips(tally: Tally, items: Sequence[str], slips: NDArray[np.int64]) -> Tally:
    """Return `tally` with the last round's `slips`, in the place of those before."""
    every = np.zeros(len(tally.items))
    every[[tally.rows[item] for item in items]] = slips
    return tally.put(_SLIP, every)


def slipped(tally: Tally) -> Floats:
    """Return the variance of what was counted of each item, which only slips make."""
    return tally.column(_SLIPPED)


def crowd(tally: Tally) -> float:
    """Return how many devices the next round is expected to have, for one of the last."""
    latest, usual = tally.arrays.get(_CROWD, np.ones(2)).tolist()
    return float(usual / latest)


def history_of(tally: Tally) -> History:
    """Return what `tally` remembers, of a study that has had a round."""
    devices, offered = tally.arrays[_DEVICES], tally.arrays[_OFFERED]
    blocks = range(len(devices))
    seen = np.stack([tally.column(_SEEN.format(block)) for block in blocks], axis=1)
    exposed = np.stack([tally.column(_EXPOSED.format(block)) for block in blocks], axis=1)
    last = int(np.flatnonzero(devices)[-1]) + 1 if devices.any() else 0
    return History(seen[:, :last], (exposed + offered)[:, :last], devices[:last])


def drift_of(tally: Tally) -> Drift:
    """Return how much rates were seen to move, in a study that has had a round."""
    phi, dispersion, *jumps = tally.arrays[_DRIFT].tolist()
    breaks = {block: jump for block, jump in enumerate(jumps) if jump}
    return Drift(phi, dispersion, breaks, float(tally.arrays.get(_TREND, np.zeros(1))[0]))


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
    drift = drift_of(tally)
    levels = filter_levels(history, drift)
    rates, variances = levels.rates, levels.rate_variances + (drift.phi * history.rates) ** 2
    seen, exposed = np.maximum(history.seen[:, -1], 0), np.maximum(history.exposed[:, -1], 1e-9)
    usual = np.sqrt(drift.dispersion * rates * exposed + variances * exposed**2)
    jumped = np.abs(seen - rates * exposed) - 1 > _JUMP * usual
    rates = np.where(jumped, seen / exposed, rates)
    variances = np.where(jumped, drift.dispersion * (seen + 1) / exposed**2, variances)
    return rates * devices, np.sqrt(drift.dispersion * rates * devices + variances * devices**2)


@dataclass(frozen=True, eq=False)
class Outlook:
    """What all items of `tally` will have come to at the end of the study, with deviations.

    It is that after `plan`'s round.
    """

    plan: Plan
    tally: Tally
    totals: Floats
    deviations: Floats

    @classmethod
    def of(cls, plan: Plan, tally: Tally) -> "Outlook":
        """Return what is to be expected, of no items before there was a round."""
        if not tally.items:
            return cls(plan, tally, np.zeros(0), np.zeros(0))
        domain = plan.question.domain
        levels = levels_of(domain, tally, history_of(tally), drift_of(tally))
        to_come = (plan.rounds - plan.round) * plan.terms.devices
        spread = levels.variances + levels.rate_variances * to_come**2 + levels.rates * to_come
        return cls(plan, tally, levels.totals + levels.rates * to_come, np.sqrt(spread))

    def reaches(self, hope: float) -> NDArray[np.bool_]:
        """Return which totals, with `hope` deviations, will reach the threshold."""
        hoped: Floats = self.totals + hope * self.deviations
        return hoped >= likely_from(self.plan.question.threshold)

    def reaching(self, hope: float) -> list[str]:
        """Return the items whose totals do so, the highest first."""
        found = np.flatnonzero(self.reaches(hope))
        ordered = found[np.argsort(-self.totals[found], kind="stable")]
        return [self.tally.items[row] for row in ordered.tolist()]


def likely_from(threshold: float) -> float:
    """Return the estimate from which on a total is likelier to reach `threshold` than not.

    Totals are whole: one that is estimated at 49.6 is likelier to be 50 than 49.
    """
    return math.ceil(threshold) - 0.5


def worth_tracking(outlook: Outlook, nbytes: int) -> tuple[Group, ...]:
    """Return counters for the items that may yet be heavy, the most frequent first.

    They, and a total for each group of one width, take at most `nbytes`.
    """
    plan, tally, items = outlook.plan, outlook.tally, outlook.reaching(_HOPE)
    bits = _bits(plan, tally, items)
    most = plan.terms.devices * plan.question.contribution
    bits_beside = 8 * (1 + sum(lane.nbytes for lane in beside(most)))
    bits = np.minimum(bits, most.bit_length()).astype(np.int64)
    widths = len(np.unique(bits))
    kept = np.cumsum(bits) <= 8 * nbytes - widths * bits_beside
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


def _bits(plan: Plan, tally: Tally, items: Sequence[str]) -> NDArray[np.int64]:
    """Return the bits of each item's counter, with what has just slipped in mind.

    If several counts left their windows, none of them went further than all of them together.
    """
    if not items:
        return np.zeros(0, np.int64)
    bits = bits_for(*expect(tally, plan.terms.devices, items))
    slips = tally.column(_SLIP)[[tally.rows[item] for item in items]]
    wider = np.ceil(np.log2(1 + 2 * slips / 2.0**bits)).astype(np.int64)
    widened: NDArray[np.int64] = bits + np.minimum(wider, _WIDER)
    return widened


def likely_heavy(outlook: Outlook) -> list[str]:
    """Return the items that will be heavy in the end, by what is known by now.

    That is sure to a deviation while there is time to become surer, in the last quarter of a
    study it is what is expected.
    """
    return outlook.reaching(0.0 if is_ending(outlook.plan) else -_DOUBT)


def is_ending(plan: Plan) -> bool:
    """Return whether the round after `plan` is in the last quarter of the study."""
    return plan.round + 1 > (1 - _LAST) * plan.rounds


def give_up(plan: Plan, tally: Tally) -> Tally:
    """Return `tally` without the numbers of the rarest beyond `_MANY` that will not be heavy.

    That is after `plan`'s round.
    """
    beyond = len(tally.items) - _MANY
    if beyond <= 0:
        return tally
    outlook = Outlook.of(plan, tally)
    hopeless = np.flatnonzero(~outlook.reaches(_GIVEN_UP))
    rarest = hopeless[np.argsort(outlook.totals[hopeless], kind="stable")][:beyond]
    names = [tally.items[row] for row in rarest.tolist()]
    keys = np.concatenate([given_up(plan, tally), plan.question.domain.keys_of(names)])
    kept = np.ones(len(tally.items), np.bool_)
    kept[rarest] = False
    return tally.where(kept).keep(_KEYS, np.unique(keys, axis=0)[:_MOST_KEYS])


def given_up(plan: Plan, tally: Tally) -> Keys:
    """Return the keys of what was given up."""
    none = np.zeros((0, plan.question.domain.chunks), np.uint64)
    found: Keys = tally.arrays.get(_KEYS, none)
    return found


def _crowd(tally: Tally, participants: int) -> Floats:
    """Return the devices of the last round, and those of an usual one."""
    latest = float(max(1, participants))
    usual = float(tally.arrays.get(_CROWD, np.array([latest, latest]))[1])
    if not 1 / _USUAL <= latest / usual <= _USUAL:
        return np.array([latest, latest])
    return np.array([latest, usual + _NEWS * (latest - usual)])


def _block(plan: Plan) -> int:
    return (plan.round - 1) * min(plan.rounds, MOST_BLOCKS) // plan.rounds
