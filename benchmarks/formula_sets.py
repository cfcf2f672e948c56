"""Sets of long strings by formula: shared words, and counts that fall as 1 / rank.

    python -m benchmarks.formula_sets FOLDER
    blindtally simulate tracked --data FOLDER/logs.csv --words 1500 --domain hashed

The folder gets `packages.csv` (18 to 55 bytes), `articles.csv` (27 to 60) and `logs.csv` (30 to 93,
and 900 bytes for one of a hundred), each with 30,000 items of some 400 words. Runs of the program
make the same sets.
"""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

ITEMS = 30_000
LEVELS, COLOURS = ("INFO", "WARN", "ERROR"), ("red", "blue", "black", "white", "green")
ENDINGS = ("a", "e", "i", "o", "u", "an", "er", "in", "ol")


class Writer:
    """A writer of names that share words, of which some are far more common than others."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        syllables = [first + rest for first in "bcdfghklmnprstvz" for rest in ENDINGS]
        made = (
            "".join(rng.choice(syllables) for _ in range(rng.choice((2, 2, 3, 4))))
            for _ in range(400)
        )
        self.words = sorted(set(made))

    def word(self) -> str:
        rank = int(self.rng.paretovariate(0.7))
        return self.words[min(len(self.words), rank) - 1]

    def package(self) -> str:
        length = self.rng.randrange(18, 48)
        text = f"@{self.word()}/" if self.rng.random() < 0.5 else ""
        while True:
            text += self.word()
            if len(text) >= length:
                return text[:55]
            text += "-"

    def article(self) -> str:
        name = f"{self.word().title()} {self.word()} {self.word()} {self.word()}"
        kind = f"{self.rng.choice(COLOURS)} {self.rng.choice('SML')}"
        return f"{name}, {kind} {self.rng.randrange(100)}"[:60]

    def log(self) -> str:
        length = 900 if self.rng.random() < 0.01 else self.rng.randrange(30, 85)
        text = f"{self.rng.choice(LEVELS)} [{self.word()}.{self.word()}] "
        while len(text) < length:
            text += self.word() + " "
        return text.strip()[:900]


def different(make: Callable[[], str]) -> list[str]:
    """Return `ITEMS` different strings that `make` returns, in the order in which they come."""
    items: dict[str, None] = {}
    while len(items) < ITEMS:
        items[make()] = None
    return list(items)


def main(folder: Path) -> None:
    """Write the three sets into `folder`."""
    writer = Writer(Random(55))
    makers = {"packages": writer.package, "articles": writer.article, "logs": writer.log}
    for name, make in makers.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("item", "count"))
            rows.writerows((x, 10**8 // (i + 3)) for i, x in enumerate(different(make)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
