"""Held-out data: counts that nothing in this repository was chosen on.

    python -m benchmarks.held_out_data --wheel wordfreq-3.1.1-py3-none-any.whl --language de \
        --out DIR
    python -m benchmarks.held_out_data --baskets kosarak_100k.txt.gz --out DIR

The first makes `words_de.csv`, the words of a language with their counts per billion, and
`words_de_trunc3.csv`, their first three characters of the paper's 46, padded with blanks; words
with another character among the three are left out. The second counts the baskets of each item.

Source: wordfreq 3.1.1 by Robyn Speer (`pip download --no-deps wordfreq==3.1.1`), whose data are
under CC BY-SA 4.0: lists of words, the i-th of those with a share of 10^(-i / 100).
"""

import argparse
import csv
import gzip
import io
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgpack

from blindtally.simulate.populations import PAPER_ALPHABET

_TOTAL_WORDS = 10**9  # the sum of all counts


def words_of(wheel: Path, language: str) -> dict[str, int]:
    """Return the count of each word in a billion of `language`, by the data in `wheel`."""
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.read(f"wordfreq/data/large_{language}.msgpack.gz")
    buckets: list[list[str]] = msgpack.unpackb(gzip.decompress(packed), raw=False)[1:]
    return {
        word: max(1, round(_TOTAL_WORDS * 10 ** (-place / 100)))
        for place, words in enumerate(buckets)
        for word in words
    }


def truncate_items(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of the first three characters, if all are in the alphabet."""
    starts = Counter[str]()
    for item, count in counts.items():
        start = item[: PAPER_ALPHABET.length].ljust(PAPER_ALPHABET.length)
        if start in PAPER_ALPHABET:
            starts[start] += count
    return dict(starts)


def count_holders(baskets: Path) -> dict[str, int]:
    """Return the number of lines of `baskets` that hold each item."""
    with gzip.open(baskets, "rt") as lines:
        return Counter(item for line in lines for item in set(line.split()))


def write(path: Path, counts: Mapping[str, int]) -> None:
    """Write `counts` as CSV, the largest first."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("item", "count"))
    table.writerows(sorted(counts.items(), key=lambda row: (-row[1], row[0])))
    path.write_text(text.getvalue())
    print(f"{path}: {len(counts):,} items")


def main() -> None:
    """Write the requested files."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--language", default="de")
    parser.add_argument("--baskets", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    options = parser.parse_args()
    if options.wheel:
        words = words_of(options.wheel, options.language)
        write(options.out / f"words_{options.language}.csv", words)
        write(options.out / f"words_{options.language}_trunc3.csv", truncate_items(words))
    if options.baskets:
        name = options.baskets.name.split(".")[0]
        write(options.out / f"{name}.csv", count_holders(options.baskets))


if __name__ == "__main__":
    main()
