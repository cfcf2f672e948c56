"""Populations that bracket reality, for the range of F1 that one study has over data.

F1 depends on two properties of the data that nobody knows before a study. *Flat* counts put many
items near the threshold, and crowd the tables with items that are not heavy. *Long* strings cost
words: hashed keys are short, but each byte of a heavy string is fetched. So the range is over flat
and steep counts, each with short and long strings where the domain has strings of several lengths.

The flat population has 5/3 items for each that could be heavy, with shares as rank^-0.5: few counts
are far from the threshold. Lists of popular domains and of cities are as flat as this. The steep
one has shares as rank^-1.3, like clicks. Texts are between them, with exponents of about 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from blindtally.console.data_files import load_dataset
from blindtally.console.options import DEFAULT_ITEMS, DEFAULT_ZIPF
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.reading_report import ReadingReport
from blindtally.planning.f1_by_words import StudyCase, StudySetting
from blindtally.simulate.populations import ItemPopulation, population_of
from blindtally.simulate.token_study import KeyedPopulation
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.strings import Alphabet

_FLAT_ZIPF: Final = 0.5
_STEEP_ZIPF: Final = 1.3
_FLAT_ITEMS_PER_HEAVY_ITEM: Final = 5 / 3
_MIN_FLAT_ITEMS: Final = 20
_SHORT_BYTES: Final = 8
WHY_LOW_OR_HIGH: Final = (
    "F1 is low where many items have counts near the threshold (flat) or strings are long, since "
    "each byte of a heavy string is fetched. It is high where few short items have most of the "
    "counts (steep)."
)


@dataclass(frozen=True, slots=True)
class AssumedCounts:
    """Items whose shares fall as rank^-zipf; None stands for a value that is not assumed."""

    items: int | None = None
    zipf: float | None = None


@dataclass(frozen=True, slots=True)
class NamedCase:
    """A case to simulate, and its description."""

    name: str
    case: StudyCase


def middle_case(
    domain: Domain, assumed: AssumedCounts, tokens: int, contribution: int
) -> NamedCase:
    """Return the case of the assumed counts, by default of a text.

    Raises:
        ValueError: if the domain has too few items.
    """
    items, zipf = assumed.items or DEFAULT_ITEMS, assumed.zipf or DEFAULT_ZIPF
    return _case("as assumed", zipf_population(domain, items, zipf), zipf, tokens, contribution)


def bracketing_cases(
    domain: Domain, assumed: AssumedCounts, setting: StudySetting, contribution: int
) -> list[NamedCase]:
    """Return the cases that bracket reality; what is assumed is the same in all of them."""
    heavy = setting.rounds * setting.tokens / setting.tau  # at most
    flat_items = max(_MIN_FLAT_ITEMS, round(_FLAT_ITEMS_PER_HEAVY_ITEM * heavy))
    steep_items = assumed.items or DEFAULT_ITEMS
    if isinstance(domain, Alphabet):
        steep_items = min(steep_items, domain.base**domain.width)
    shapes = {
        "flat": (min(flat_items, steep_items), _FLAT_ZIPF),
        "steep": (steep_items, _STEEP_ZIPF),
    }
    if assumed.zipf is not None:
        shapes = {"as assumed": (steep_items, assumed.zipf)}
    return [
        _case(f"{length}{shape}", population, zipf, setting.tokens, contribution)
        for shape, (items, zipf) in shapes.items()
        for length, population in _lengths(zipf_population(domain, items, zipf))
    ]


def case_of_file(
    path: Path, column: str | None, setting: StudySetting, contribution: int
) -> tuple[NamedCase, ReadingReport]:
    """Return the case of a file's own items, and its own users if it has any, with a report.

    Raises:
        ValueError: if the file cannot be used.
    """
    data, report = load_dataset(path, column)
    users = data if isinstance(data, DeviceHistograms) else None
    population = population_of(data)
    known = KeyedPopulation.of(population, setting.tokens, setting.words)
    case = NamedCase(f"the items of {path}", StudyCase(known, "none", contribution, users))
    return case, report


def zipf_population(domain: Domain, items: int, zipf: float) -> ItemPopulation:
    """Return a population of invented items whose shares fall as rank^-zipf.

    Raises:
        ValueError: if the domain has fewer than `items` of them.
    """
    shares = np.arange(1, items + 1) ** -zipf
    if not isinstance(domain, Alphabet):
        names = tuple(f"item {number}" for number in range(items))
        if names[-1] not in domain:
            names = tuple(f"{number:x}" for number in range(items))
        if names[-1] not in domain:
            raise ValueError(f"{domain} does not have {items:,} items: allow longer ones")
        return ItemPopulation(names, shares / shares.sum(), domain)
    characters, length = domain.characters, domain.length
    if len(characters) ** length < items:
        raise ValueError(
            f"{len(characters)} characters make {len(characters) ** length:,} strings of "
            f"{length}: assume fewer --items"
        )
    grid = np.stack([np.arange(items) // len(characters) ** place for place in range(length)])
    codes = (grid % len(characters)).T.tolist()
    names = tuple("".join(characters[code] for code in row) for row in codes)
    return ItemPopulation(names, shares / shares.sum(), domain)


def _lengths(population: ItemPopulation) -> Iterator[tuple[str, ItemPopulation]]:
    """Yield the population with short and with the longest strings, or alone if all are equal."""
    domain = population.domain
    if not isinstance(domain, Hashed):
        yield "", population
        return
    numbers = [f"{number:x}" for number in range(len(population.items))]
    for name, size in (("short strings, ", _SHORT_BYTES), ("long strings, ", domain.max_bytes)):
        width = min(domain.max_bytes, max(size, len(numbers[-1])))
        items = tuple(number.rjust(width, "x") for number in numbers)
        yield name, ItemPopulation(items, population.shares, domain)


def _case(
    name: str, population: ItemPopulation, zipf: float, tokens: int, contribution: int
) -> NamedCase:
    known = KeyedPopulation.of(population, tokens)
    longest = max(len(item.encode()) for item in population.items)
    facts = f"{len(population.items):,} items of up to {longest} bytes, shares as rank^-{zipf:g}"
    return NamedCase(f"{name}: {facts}", StudyCase(known, "none", contribution))
