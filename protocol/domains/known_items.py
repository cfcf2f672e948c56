"""Items that are known beforehand, as in a simulation, and the domains that hold them.

The domain of a real study is chosen without the items of any device. A simulation may look at its
data file. For example, the items `apple` and `fig` need an alphabet of seven letters and length
five, and the items `3.5` and `12` an interval from 3.5 to 12.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from protocol.domains.base import SEGMENT_SEPARATOR
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Listed, Utf8, alphabet_of, smallest_domain

_DIGITS_AND_SIGNS = re.compile(r"\W*\d[\d\W_]*")
_WITH_POINTS = re.compile(r"\s*[+-]?\d*\.[\d.]*\s*")
# In German, a point separates thousands: `1.000` is a thousand.
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}(\.\d{3})+\s*")
DomainChoice = Literal["auto", "alphabet", "utf8", "hashed", "numbers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownItems:
    """The `items` of `devices` in each of `rounds`, and wishes for the domain that holds them.

    `choice` is the kind of keys of texts, `alphabet` their characters, `levels` their length in
    characters or bytes. Numbers are between `low` and `high`, rounded to `alpha` ^ `levels` cells.
    A vector has about `words` 16-bit words.
    """

    items: Sequence[str]
    devices: int
    rounds: int
    words: int = 2000
    choice: DomainChoice = "auto"
    alphabet: str | None = None
    levels: int | None = None
    low: float | None = None
    high: float | None = None
    alpha: int | None = None

    @property
    def are_numbers(self) -> bool:
        """Return whether the items are wished to be numbers."""
        return self.choice == "numbers" or self.low is not None or self.high is not None

    @property
    def longest(self) -> int:
        """Return the bytes of the longest item, or of the longest wished one."""
        return self.levels or max((len(item.encode()) for item in self.items), default=1) or 1

    def text_domain(self) -> Alphabet | Utf8:
        """Return the domain of texts with the shortest keys, or the wished one.

        Raises:
            ValueError: if the wishes contradict each other, or no such domain holds the items.
        """
        self._refuse_numbers()
        if self.choice == "hashed":
            raise ValueError(
                "hashed keys go with a mechanism that fetches their strings, such as tracked: "
                "others would find keys only"
            )
        if self.choice == "alphabet" or self.alphabet is not None:
            if self.choice == "utf8":
                raise ValueError("an alphabet has the characters of an alphabet, not of utf8")
            characters = self.alphabet or "".join(sorted(set().union(*self.items)))
            return alphabet_of(characters, self.items, self.levels)
        if self.choice == "utf8" or self.levels:
            return Utf8(max_bytes=self.longest)
        return smallest_domain(self.items)

    def dictionary(self) -> Listed | Alphabet:
        """Return all strings of the wished alphabet, or the items that are not too long.

        Raises:
            ValueError: if there is one item only, or none.
        """
        self._refuse_numbers()
        if self.alphabet is not None:
            return alphabet_of(self.alphabet, self.items, self.levels)
        limit = self.levels or math.inf
        listed = tuple(i for i in dict.fromkeys(self.items) if len(i.encode()) <= limit)
        if len(listed) < 2:
            count = "one item only" if listed else "no item"
            bytes_limit = f" of {self.levels} bytes at most" if self.levels else ""
            raise ValueError(f"the file has {count}{bytes_limit}: a dictionary must have 2 or more")
        return Listed(items=listed)

    def interval(self, alpha: int, levels: int) -> NumericInterval:
        """Return the interval of the numbers, with `alpha` and `levels` unless others are wished.

        Raises:
            ValueError: if no item is a number of the interval, or points may separate thousands.
        """
        return self._interval_of(self.items, alpha, levels)

    def intervals_by_segment(self, alpha: int, levels: int) -> NumericInterval | Product:
        """Return the interval, with a segment for each text before a number: `north:3.5`.

        Raises:
            ValueError: if no item is a number of the interval, or points may separate thousands.
        """
        pairs = [item.partition(SEGMENT_SEPARATOR) for item in self.items]
        numbers = [number for segment, _, number in pairs if segment]
        if all(number_in(number) is None for number in numbers):
            return self.interval(alpha, levels)
        inner = self._interval_of(numbers, alpha, levels)
        segments = tuple(sorted({segment for segment, separator, _ in pairs if separator}))
        return Product(segments=segments, inner=inner)

    def _interval_of(self, texts: Sequence[str], alpha: int, levels: int) -> NumericInterval:
        if self.alphabet is not None:
            raise ValueError("numbers have no alphabet")
        check_numbers(texts)
        known = [number for number in map(number_in, texts) if number is not None]
        if not known:
            raise ValueError("there are no numbers, such as 32.3, in the file: name their --column")
        interval = NumericInterval(
            low=min(known) if self.low is None else self.low,
            high=max(known) if self.high is None else self.high,
            alpha=self.alpha or alpha,
            length=self.levels or levels,
        )
        if not any(interval.low <= number <= interval.high for number in known):
            raise ValueError(f"no number is between {interval.low:g} and {interval.high:g}")
        return interval

    def _refuse_numbers(self) -> None:
        if self.are_numbers or self.alpha is not None:
            raise ValueError("these items are texts: low, high and alpha go with numbers")


def check_numbers(items: Iterable[str]) -> None:
    """Raise ValueError if numbers of `items` are written as no program reads them for sure.

    Points may separate thousands, as in `1.000`, and a comma, a unit or a blank makes a text of a
    number. A number may follow a segment: `north:1.5`. Words are no numbers, and pass.
    """
    numbers = [item.rpartition(SEGMENT_SEPARATOR)[2] for item in items]
    pointed = [number for number in numbers if _WITH_POINTS.fullmatch(number)]
    if pointed and all(map(_THOUSANDS.fullmatch, pointed)):
        raise ValueError(
            f"{pointed[0]!r} may be {pointed[0].replace('.', '')}, or have three decimals: save "
            "numbers without points between thousands, or with other decimals"
        )
    for text in numbers:
        if _DIGITS_AND_SIGNS.fullmatch(text) and number_in(text) is None:
            raise ValueError(
                f"{text!r} is not a number such as 1234.5: save numbers with a decimal point, and "
                "without commas, units or blanks"
            )


def number_in(text: str) -> float | None:
    """Return the finite number that `text` is, None if it is not."""
    # `float` ignores underscores, which numbers in a file do not have.
    if "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
