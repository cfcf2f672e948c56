"""A simulated round in parts that may be played anywhere, and whose sums add.

A *stretch* is 2^18 devices of a round in a row, with chance of its own for whatever they draw: who
holds what, what is clipped, who joins and who is lost, what is sampled. So its sum is the same
whoever computes it, at whichever time and beside whichever others: a plan goes out to the workers,
and sums of stretches come back, exact to the bit. The first stretch draws by the round's own
generators, as a round that has one only; the chance of stretch s > 0 hangs on their seeds and s.

Shorter stretches would cost a generator each, of 20 us, for less; longer ones would leave workers
with nothing to do. Nothing else hangs on the length but which devices a seed draws.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.chance import Chance, seeded
from protocol.histograms import Histograms, Total
from protocol.mechanism import Histogram, P, Summing
from protocol.round import Phase, phases
from protocol.sampling import clip_all
from secagg.parameters import Mode
from secagg.ring import Vector

STRETCH: Final = 2**18  # devices
PHASES = phases("active")
STAYS = len(PHASES)  # of a device that vanishes in no phase
BEFORE_A_VECTOR = (Phase.ENROLLING, Phase.SHARING, Phase.MASKING)  # later losses are in the sum
_ENROLLING = PHASES.index(Phase.ENROLLING)

Flags: TypeAlias = NDArray[np.bool_]
Losses: TypeAlias = Callable[[int], NDArray[np.int8]]  # of the next so many: places in PHASES
Losing: TypeAlias = Callable[[int], Losses]  # of a stretch by number
Block: TypeAlias = Sequence[Histogram]
Blocks: TypeAlias = Iterable[Block]
B_co = TypeVar("B_co", bound=Block, covariant=True)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class People(Generic[B_co]):
    """The devices of a round: of the first stretch in blocks, and of later ones how to make these.

    What makes later ones can be pickled. Iterating goes through the blocks of all, once.
    """

    first: Iterable[B_co]
    later: Sequence[Callable[[], Iterable[B_co]]] = ()

    def __iter__(self) -> Iterator[B_co]:
        yield from self.first
        for blocks in self.later:
            yield from blocks()


def generator(seed: int | Sequence[int], stretch: int) -> np.random.Generator:
    """Return the generator of what is drawn by `seed` in a stretch."""
    if not stretch:
        return np.random.default_rng(seed)
    return np.random.default_rng([*((seed,) if isinstance(seed, int) else seed), stretch])


def nobody(stretch: int) -> Losses:
    """Return that all devices stay."""
    del stretch
    return _none


def _none(count: int) -> NDArray[np.int8]:
    return np.full(count, STAYS, np.int8)


@dataclass(frozen=True, slots=True)
class AtRandom:
    """Losses of this rate, in all phases of `mode` alike."""

    dropout: float
    mode: Mode
    seed: int

    def __call__(self, stretch: int) -> Losses:
        """Return the losses of a stretch."""
        if not self.dropout:
            return _none
        speaking = np.array([PHASES.index(one) for one in phases(self.mode)] + [STAYS], np.int8)
        rng, last = generator(self.seed, stretch), len(speaking) - 1

        def losses(count: int) -> NDArray[np.int8]:
            share = rng.random(count) * (last / self.dropout)
            return speaking[np.minimum(share, last).astype(np.intp)]

        return losses


@dataclass(frozen=True, slots=True)
class Turn(Generic[P]):
    """One round as its devices play it: its plan, and the seeds of their chance.

    Without a seed of `clips` nobody holds more than the contribution. Where devices join by coins,
    those who stay away are not there from the start.
    """

    mechanism: Summing[Any, P]
    plan: P
    losing: Losing
    samples: int = field(repr=False)
    coins: int = field(repr=False)
    clips: int | None = field(default=None, repr=False)

    def chance(self, stretch: int) -> Chance:
        """Return what devices of a stretch sample by."""
        return seeded(generator(self.samples, stretch))

    def attending(
        self, stretch: int, blocks: Blocks
    ) -> Iterator[tuple[Histograms, NDArray[np.int8], Flags]]:
        """Yield a stretch block by block: clipped, where each is lost, and who is estimated.

        Estimates are of those, too, who stay away.
        """
        plan, losses = self.plan, self.losing(stretch)
        clips = None if self.clips is None else generator(self.clips, stretch)
        coins = seeded(generator(self.coins, stretch)) if plan.invited < 1 else None
        for block in blocks:
            held = Histograms.of(block)
            if clips is not None:
                held = clip_all(held, plan.question.contribution, clips)
            lost = losses(len(held))
            is_here = gives(lost)
            if coins is not None:
                lost = np.where(plan.joining(coins, len(held)), lost, np.int8(_ENROLLING))
            yield held, lost, is_here


def gives(lost: NDArray[np.int8]) -> Flags:
    """Return which devices give a vector, by where each is lost."""
    return ~np.isin(lost, [PHASES.index(phase) for phase in BEFORE_A_VECTOR])


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch that is not the first, by its number in the round."""

    number: int
    blocks: Callable[[], Blocks]


class Growing(Protocol[A]):
    """What stretches add up to, in the order of their numbers, played here or elsewhere."""

    @property
    def elsewhere(self) -> Callable[[Sequence[Stretch]], A]:
        """Return what makes of stretches what they add to it; it can be pickled."""

    def play(self, stretch: int, blocks: Blocks) -> object:
        """Add a stretch, played here."""

    def add(self, part: A) -> None:
        """Add stretches that were played elsewhere."""


@dataclass(frozen=True, slots=True)
class Part:
    """What stretches add to a round: their sum, who enrolled, and what they hold together.

    `sat` has a bit for each device that enrolled, in their order: whether it is in the sum.
    """

    total: Vector
    enrolled: int
    sat: NDArray[np.uint8]
    truth: Total


class Sums(Generic[P]):
    """A round's sum as it grows, without noise; `seat` is told of those who enrol, in order.

    Stretches are added in the order of their numbers, played here or elsewhere.
    """

    def __init__(self, turn: Turn[P], seat: Callable[[Flags], None]) -> None:
        self.turn = turn
        self.total = turn.mechanism.ring(turn.plan).zero()
        self.truth = Total()
        self._seat = seat

    def play(self, stretch: int, blocks: Blocks) -> Chance:
        """Add a stretch, block by block; return the chance that its devices sampled by."""
        mechanism, plan = self.turn.mechanism, self.turn.plan
        ring, chance = mechanism.ring(plan), self.turn.chance(stretch)
        for held, lost, is_here in self.turn.attending(stretch, blocks):
            is_in = gives(lost)
            given = held if is_in.all() else held.take(np.flatnonzero(is_in))
            ring.add(self.total, mechanism.encode_sum(plan, given, chance))
            self._seat(is_in[lost != _ENROLLING])
            self.truth.add(given if plan.invited == 1 else held.take(np.flatnonzero(is_here)))
        return chance

    @property
    def elsewhere(self) -> Callable[[Sequence[Stretch]], Part]:
        """Return what plays stretches elsewhere."""
        return partial(play, self.turn)

    def add(self, part: Part) -> None:
        """Add stretches that were played elsewhere."""
        self.turn.mechanism.ring(self.turn.plan).add(self.total, part.total)
        self._seat(np.unpackbits(part.sat, count=part.enrolled).astype(np.bool_))
        self.truth.join(part.truth)


def play(turn: Turn[P], stretches: Sequence[Stretch]) -> Part:
    """Return what these stretches of a round add to it: what a worker does."""
    seated: list[Flags] = []
    sums = Sums(turn, seated.append)
    for one in stretches:
        sums.play(one.number, one.blocks())
    sat = np.concatenate(seated)
    return Part(sums.total, len(sat), np.packbits(sat), sums.truth)


class Cohorts:
    """How many enrol in each cohort, and are in its sum: whoever enrols joins the first with room.

    Of those who enrol it is said in their order, block by block, whether each is in a sum.
    """

    def __init__(self, size: int) -> None:
        self.survivors = np.zeros(0, np.int64)
        self._size, self._enrolled = size, 0

    def add(self, sat: Flags) -> None:
        """Seat the next devices."""
        if not len(sat):
            return
        first = self._enrolled // self._size
        end = self._enrolled + len(sat)
        starts = np.arange(first * self._size, end, self._size) - self._enrolled
        found = np.add.reduceat(sat, np.maximum(starts, 0), dtype=np.int64)
        survivors = np.zeros(first + len(found), np.int64)
        survivors[: len(self.survivors)] = self.survivors
        survivors[first:] += found
        self.survivors, self._enrolled = survivors, end

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for number, survivors in enumerate(self.survivors.tolist()):
            yield min(self._size, self._enrolled - number * self._size), survivors
