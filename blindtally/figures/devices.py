"""Rounds of devices that hold up to m items each, and methods that see no more than they send.

The tokens of a round are dealt to devices at random, m to each. A device that samples decides
item by item (`protocol/sampling.py`), so what a round sends is one sample of each *holding*: a
device's count of an item. The sum of the tables is made of the sampled totals, each key inserted
once; counters add up as counts do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

import numpy as np
from numpy.typing import NDArray

from blindtally.figures import paper
from blindtally.figures.ours import terms_for
from blindtally.figures.populations import Population, Round
from protocol.domain import Domain
from protocol.hashed import Hashed, fewest_bits
from protocol.item_space import Keys
from protocol.mechanisms.pace import halfway
from protocol.mechanisms.tracked import Tracked, TrackedPlan, TrackedQuestion
from protocol.sampling import Threshold
from protocol.tally import NOTHING, Tally
from secagg.ring import Vector

_LONG = 64  # bits of a key from which on items are hashed

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Held:
    """The holdings of a round's devices: of which item, and how often."""

    items: NDArray[np.int64]
    counts: NDArray[np.int64]
    devices: int
    contribution: int

    def sample(self, t: float, kinds: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Return the total of each of `kinds` items after sampling, in units."""
        threshold = Threshold(t, self.contribution)
        kept = threshold.sample(self.counts, rng.random(len(self.counts)))
        return np.bincount(self.items, kept, kinds).astype(np.int64)


def deal(counts: Round, contribution: int, rng: np.random.Generator) -> Held:
    """Return the devices that `counts` tokens are dealt to."""
    tokens = np.repeat(np.arange(len(counts)), counts)
    rng.shuffle(tokens)
    device = np.arange(len(tokens)) // contribution
    holdings, held = np.unique(device * len(counts) + tokens, return_counts=True)
    return Held(holdings % len(counts), held, int(device[-1]) + 1, contribution)


@dataclass(frozen=True)
class Known:
    """A population's items as a domain has them: their keys, and which items a name stands for."""

    population: Population
    domain: Domain

    @classmethod
    def of(cls, population: Population, tokens: int) -> "Known":
        """Return the population with its own domain, or hashed where keys would be long.

        These are as short as rounds of so many `tokens` on average allow, whatever the items.
        """
        if population.domain.bits <= _LONG:
            return cls(population, population.domain)
        longest = max(len(item.encode()) for item in population.items)
        bits = fewest_bits(terms_for(tokens).devices)
        return cls(population, Hashed(max_bytes=longest, key_bits=bits))

    @cached_property
    def admitted(self) -> Mask:
        """Return which items are of the domain: `#00ff00` is none where keys have such names."""
        return np.array([item in self.domain for item in self.population.items])

    @cached_property
    def keys(self) -> Keys:
        """Return the key of each item, zeros of one that has none."""
        items, rows = self.population.items, np.flatnonzero(self.admitted)
        keys = np.zeros((len(items), self.domain.chunks), np.uint64)
        keys[rows] = self.domain.encode([items[row] for row in rows.tolist()])
        return keys

    @cached_property
    def members(self) -> dict[str, list[int]]:
        """Return the rows of the items of each name: one, or several that share a key."""
        rows = dict[str, list[int]]()
        for row in np.flatnonzero(self.admitted).tolist():
            rows.setdefault(self.domain.name(self.population.items[row]), []).append(row)
        return rows

    def held(self, name: str, counts: NDArray[np.int64]) -> list[tuple[str, str, int]]:
        """Return the items of `name` that somebody holds, by `counts`: (name, item, count)."""
        rows = self.members.get(name, [])
        return [(name, self.population.items[row], int(counts[row])) for row in rows if counts[row]]


def paper_adaptive(
    rounds: Sequence[Held], kinds: int, words: int, tau: float, rng: np.random.Generator
) -> Mask:
    """Return what algorithm 4 finds at the paper's price."""
    table, estimates = paper.PaperTable(words), np.zeros(kinds)
    t = max(1.0, rounds[0].devices * rounds[0].contribution / table.room)
    for held in rounds:
        threshold = Threshold(t, held.contribution)
        sampled = held.sample(t, kinds, rng)
        is_read, distinct = table.distinct(int((sampled > 0).sum()), rng)
        if is_read:
            estimates += sampled * threshold.unit
        t = max(1.0, halfway(t, distinct, table.room))
    return estimates >= tau


@dataclass(frozen=True, slots=True)
class Found:
    """What a study found, by item, and as many more as it has no item for; rounds read; sizes.

    `vector` and `plan` are the bytes that a device sends and hears in the last round, `tally` is
    what is known after it.
    """

    mask: Mask
    read: int
    vector: int
    plan: int
    tally: Tally


class TooFewWordsError(ValueError):
    """There is no table of so many words."""


def tracked(
    rounds: Sequence[Held], known: Known, words: int, tau: float, rng: np.random.Generator
) -> Found:
    """Return what `tracked` finds, by the names that it knows in the end.

    Raises:
        TooFewWordsError: if there is no table of so many words.
    """
    mechanism, seeds = Tracked(), Random(int(rng.integers(2**62)))
    question = TrackedQuestion(
        threshold=tau, contribution=rounds[0].contribution, domain=known.domain, words=words
    )
    most = max(held.devices for held in rounds)
    try:
        plan = mechanism.first_plan(question, terms_for(most), "figures", len(rounds), seeds)
    except ValueError as error:
        raise TooFewWordsError(str(error)) from None
    tally, read, last = NOTHING, 0, plan
    for held in rounds:
        total = _send(plan, held, known, rng)
        answer = mechanism.decode(plan, total, held.devices, tally)
        tally, last = answer.tally, plan
        read += answer.decoded
        plan = mechanism.next_plan(plan, answer, tally, seeds)
    found = np.zeros(len(known.population.items), np.bool_)
    numbers = {item: row for row, item in enumerate(known.population.items)}
    wrong = 0
    for one in mechanism.conclude(question, tally):
        if one.item in numbers:
            found[numbers[one.item]] = True
        else:
            wrong += 1
    mask = np.concatenate([found, np.ones(wrong, np.bool_)])
    return Found(mask, read, mechanism.ring(last).nbytes, len(last.model_dump_json()), tally)


def _send(plan: TrackedPlan, held: Held, known: Known, rng: np.random.Generator) -> Vector:
    """Return the sum of what the devices send."""
    counters, kinds = plan.counters, len(known.population.items)
    counts = np.bincount(held.items, held.counts, kinds).astype(np.int64) * known.admitted
    counted = [known.held(name, counts) for name in counters.items]
    sampled, outside = held.sample(plan.t, kinds, rng) * known.admitted, counts.copy()
    for name in counters.items:
        rows = known.members.get(name, [])
        sampled[rows] = outside[rows] = 0
    some = np.flatnonzero(sampled)
    table = plan.table.iblt.insert(known.keys[some], sampled[some])
    fetched = [one for fetch in plan.fetches for one in known.held(fetch.name, counts)]
    strings = (plan.strings.encode(fetched),) if plan.fetches else ()
    held_still, sketch = np.flatnonzero(outside), plan.sketch
    past = sketch.insert(known.keys[held_still], outside[held_still]) if sketch else ()
    in_counters = np.array([sum(count for *_, count in of) for of in counted], np.int64)
    return (*counters.encode(in_counters), *strings, *past, *table)
