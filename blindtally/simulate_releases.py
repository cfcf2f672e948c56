"""A study whose counts are released with central privacy, in memory, measured against the truth.

Devices are arrays here: an item's digits, and which item each holds. They flip the same coins and
vote by the same function as one that is alone (`vector_of`); noise is the sum of their shares,
cohort by cohort. So a million devices and ten levels take a fraction of a second.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blindtally import tables
from blindtally.data import LEAST, Population, read
from blindtally.measures import Comparison, compare, heavy_hitters
from blindtally.progress import steps
from protocol.chance import Chance, happens, seeded
from protocol.domain import Alphabet, Utf8
from protocol.histograms import Histograms
from protocol.mechanism import Estimate, Terms
from protocol.mechanisms.releasing import noisy, seats_for
from protocol.mechanisms.trie_votes import vector_of
from protocol.mechanisms.triehh import TrieHh, TrieHhPlan, TrieHhQuestion
from protocol.privacy.entries import PARTIES, Entry
from protocol.privacy.ledger import Ledger
from protocol.privacy.release import Mode
from protocol.sampling import clip_all
from protocol.tally import NOTHING
from secagg.ring import Vector

WORDS = 2**16
_COHORT = 100_000  # of Terms, the most: with noise each cohort has all of it
_RANKS = (50, 100, 300, 1000)
_MOST_SYMBOLS = 256
_TRIE = TrieHh()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command's options say."""

    data: Path
    column: str | None
    clients: int
    levels: int
    threshold: float
    words: int
    contribution: int
    alphabet: str | None
    epsilon: float
    delta: float
    mode: Mode
    corrupt: float
    dropout: float
    invited: float
    settings: dict[str, Any]
    seed: int


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds what: `device` holds the item at place `item` of `items`, one holding a row."""

    items: tuple[str, ...]
    device: NDArray[np.int64]
    item: NDArray[np.int64]
    clients: int
    cut: int  # items of the file that were cut to fit
    left_out: int  # items of the file that are outside the domain

    @property
    def truth(self) -> dict[str, int]:
        """Return how many devices hold each item."""
        counts = np.bincount(self.item, minlength=len(self.items)).tolist()
        return {item: count for item, count in zip(self.items, counts, strict=True) if count}


@dataclass(frozen=True)
class Released:
    """What a study found, beside what is true, and what it cost.

    `seconds` are of the processor for all levels, from the first coin to the conclusion; `joined`
    are the most devices in a level's sum.
    """

    plan: TrieHhPlan
    holders: Holders
    compared: Comparison
    levels: int
    seconds: float
    words: int
    ledger: Ledger
    joined: int

    def at(self, most: int) -> tuple[float, float]:
        """Return recall of the `most` items that most devices hold, and F1 with the best found."""
        truth = self.holders.truth
        heavy = set(sorted(truth, key=lambda item: (-truth[item], item))[:most])
        found = [one.item for one in self.compared.found]
        right, recall = len(heavy & set(found[:most])), len(heavy & set(found)) / len(heavy)
        precision = right / len(found[:most]) if found else 0.0
        both = recall + precision
        return recall, 2 * recall * precision / both if both else 0.0


def asked(options: dict[str, Any], words: int | None, settings: dict[str, Any]) -> Wanted:
    """Return what the command's options say, with room enough if they say nothing of it."""
    return Wanted(**options, words=words or WORDS, settings=settings)


def run(wanted: Wanted) -> Released:
    """Return what a study over a data file finds.

    Raises:
        ValueError: if there is none; says why, and where in the file.
    """
    population = read(wanted.data, wanted.column)
    question = _question(wanted, population)
    rng = np.random.default_rng(wanted.seed)
    holders = hold(population, question, wanted.clients, rng)
    seats = max(3, seats_for(holders.clients, question.invited))
    size = -(-seats // -(-seats // _COHORT))
    terms = Terms(
        cohort_size=size,
        minimum=max(3, size // 2),
        cohorts=-(-seats // size),
        corrupt=wanted.corrupt,
        dropout=max(0.1, wanted.dropout + 0.1),
    )
    chance = Random(wanted.seed)
    plan = _TRIE.first_plan(question, terms, "simulation", wanted.levels, chance)
    rows, started = question.rows_of(holders.items), time.process_time()
    tally, words, level, joined = NOTHING, 0, 0, 0
    with steps("levels", wanted.levels) as step:
        while level < wanted.levels:
            level += 1
            total, participants = _round(plan, rows, holders, wanted.dropout, rng)
            words = max(words, -(-_TRIE.ring(plan).nbytes // 2))
            joined = max(joined, participants)
            answer = _TRIE.decode(plan, total, participants, tally)
            tally = answer.tally
            step(1)
            if _TRIE.is_over(plan, answer, tally):
                break
            plan = _TRIE.next_plan(plan, answer, tally, chance)
    found = _TRIE.conclude(question, tally)
    seconds = time.process_time() - started
    compared = _compared(found, holders.truth, wanted.threshold)
    loss = _TRIE.loss(plan, level)
    ledger = Ledger(entries=(Entry(name="simulation", mechanism=loss),))
    return Released(plan, holders, compared, level, seconds, words, ledger, joined)


def _question(wanted: Wanted, population: Population) -> TrieHhQuestion:
    """Return the question; longer items than it has levels for are cut, unless told otherwise."""
    stride = wanted.settings.get("stride", 1)
    length = wanted.levels * (stride if isinstance(stride, int) and stride > 0 else 1)
    own = {
        "threshold": wanted.threshold,
        "contribution": wanted.contribution,
        "domain": _domain(population.items, wanted.alphabet, length),
        "words": wanted.words,
        "epsilon": wanted.epsilon,
        "delta": wanted.delta,
        "mode": wanted.mode,
        "invited": wanted.invited,
        "truncate": True,
    }
    return TrieHhQuestion.model_validate(own | wanted.settings)


def _domain(items: tuple[str, ...], alphabet: str | None, length: int) -> Alphabet | Utf8:
    symbols = "".join(sorted(set(alphabet or "".join(items)) - {"\0"}))
    if not symbols or len(symbols) >= _MOST_SYMBOLS:
        return Utf8(max_bytes=length)
    return Alphabet(characters="\0" + symbols, length=length, pad="\0")


def hold(
    population: Population, question: TrieHhQuestion, clients: int, rng: np.random.Generator
) -> Holders:
    """Return `clients` devices, or as many as there are, with what each of them counts.

    Raises:
        ValueError: if nothing in the file is within the domain, or devices are fewer than three.
    """
    admitted = {item: question.admit(item) for item in population.items}
    kept = {item: name for item, name in admitted.items() if name is not None}
    if not kept:
        raise ValueError(f"none of the items is in the domain {question.domain!r}")
    clients = population.clients(1, clients)
    if clients < LEAST:
        raise ValueError(f"the data holds {clients} devices: {LEAST} are the fewest")
    numbers: dict[str, int] = {}
    place = {item: numbers.setdefault(name, len(numbers)) for item, name in kept.items()}
    within = population.where(kept.__contains__)
    drawn = Histograms.joined(next(within.rounds(1, clients, question.contribution, rng)))
    held = clip_all(drawn, question.contribution, rng)
    item = np.array([place[name] for name in held.items], np.int64)[held.which]
    cut = sum(item != name for item, name in kept.items())
    return Holders(tuple(numbers), held.devices, item, clients, cut, len(admitted) - len(kept))


def _round(
    plan: TrieHhPlan,
    rows: NDArray[np.uint8],
    holders: Holders,
    dropout: float,
    rng: np.random.Generator,
) -> tuple[Vector, int]:
    """Return one round's sum, of those who were not lost, and how many they are."""
    chance: Chance = seeded(rng)
    device, item, participants = holders.device, holders.item, holders.clients
    here = np.ones(holders.clients, np.bool_)
    if dropout:
        here &= rng.random(holders.clients) >= dropout
    if plan.invited < 1:
        here &= happens(chance, math.floor(plan.invited * 2**64), holders.clients)
    if not here.all():
        participants = int(here.sum())
        device, item = device[here[device]], item[here[device]]
    total = vector_of(plan, rows, item, chance, device)
    shares = _TRIE.shares(plan, plan.terms.cohort_size)
    if shares is not None:
        total = noisy(plan, total[0], float(shares.share * participants), rng)
    return total, participants


def _compared(found: Iterable[Estimate], truth: dict[str, int], threshold: float) -> Comparison:
    return compare(((e.item, e.count, e.variance**0.5) for e in found), truth, threshold)


def as_json(wanted: Wanted, result: Released) -> dict[str, Any]:
    """Return what scripts read: what was found, how well, and what it told of a device."""
    release, truth = result.plan.release, result.holders.truth
    ranks = [rank for rank in _RANKS if rank <= len(truth)]
    scores = {rank: result.at(rank) for rank in ranks}
    sights = {party: result.ledger.epsilon(wanted.delta, party) for party in PARTIES}
    return {
        "mechanism": "triehh",
        "mode": release.mode,
        "found": len(result.compared.found),
        "recall_at": {str(rank): recall for rank, (recall, _) in scores.items()},
        "f1_at": {str(rank): f1 for rank, (_, f1) in scores.items()},
        "epsilon": sights["public"],
        "epsilon_by_party": sights,
        "epsilon_replace_one": result.ledger.epsilon(wanted.delta, "public", "replace-one"),
        "delta": wanted.delta,
        "theta": release.threshold,
        "m": round(release.probability * result.holders.clients),
        "probability": release.probability,
        "invited": result.plan.invited,
        "joined": result.joined,
        "noise_variance": release.variance,
        "levels": result.levels,
        "clients": result.holders.clients,
        "cpu_seconds": result.seconds,
        "words": result.words,
        "threshold": wanted.threshold,
        **asdict(result.compared.score),
        "items_cut": result.holders.cut,
        "items_left_out": result.holders.left_out,
        "heavy_hitters": [asdict(one) for one in result.compared.found],
        "question": result.plan.question.model_dump(mode="json"),
        "asked": {"data": str(wanted.data), "column": wanted.column, "seed": wanted.seed},
    }


def show(wanted: Wanted, result: Released) -> None:
    """Print the heaviest items, how many were found, and what that told of a device, and whom."""
    compared, holders, release = result.compared, result.holders, result.plan.release
    told = {"found": f"{len(compared.found):,} items in {result.levels} levels"}
    for rank in _RANKS:
        if rank <= len(holders.truth):
            recall, f1 = result.at(rank)
            told[f"the top {rank:,}"] = f"recall {recall:.3f}, F1 {f1:.3f}"
    voting = f"{release.probability:.2%} of {holders.clients:,} devices vote in a level"
    told[release.mode] = f"{voting}, shown from {release.threshold:,} votes"
    if result.plan.invited < 1:
        own = f"each with odds of {result.plan.invited:.4g} by its own coin"
        told["joined"] = f"{result.joined:,} devices in a level at most, {own}"
    if release.variance:
        told["noise"] = f"standard deviation {release.variance**0.5:.3g} a cohort"
    sights = {party: result.ledger.epsilon(wanted.delta, party) for party in PARTIES}
    for party, epsilon in sights.items():
        cost = "no bound" if epsilon is None else f"epsilon {epsilon:.4g}, delta {wanted.delta:g}"
        told[f"to {party}"] = cost
    length = result.plan.question.digits.width
    cut = f"{holders.cut:,} items are longer than {length} symbols and were cut"
    told |= {
        "words": f"{result.words:,} of 16 bits a device and level, at most",
        "processor": f"{result.seconds:.3f} s for all levels",
        "domain": f"{cut}, {holders.left_out:,} left out",
    }
    tables.show(heavy_hitters(compared.found), tables.facts(told))
