"""Phrases: common parts of strings, each of which is one digit where a string is sent.

With k phrases a string is a number of digits below k + 2: i stands for phrase i, from 1 on, and
0 for the end. At each place the first phrase that fits is taken, and longer ones come first. A byte
that begins no phrase takes three digits: k + 1, and the halves of the byte. Without phrases each
digit is a byte. For example, with `https://`, `.org/`, `e`, `t` and 26 others as phrases,
`https://tee.org/` is 1 4 3 3 2 0. A digit takes 5 bits, so it is 30 bits in place of 136.

The server learns phrases from known strings in several passes. Each codes the strings with the
phrases so far, and takes those parts, alone or with the part that follows, that save the most
digits. Later passes take fewer phrases, because the digits of few phrases are short. The shortest
code of all passes is chosen: it has long phrases if the strings share them, or single letters.

Everybody who reads a plan sees its phrases. So they are learnt only from strings that would be
listed in any case, and each is part of `MIN_PHRASE_ITEMS` of them or more.

Source: passes and longest matches are as in FSST [BonczNeumannLeis20], whose codes have 8 bits.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice, pairwise

from protocol.mechanisms.tracked import tuning_constants as tuning

# Characters of all phrases in a plan, with two quotes and a comma of each: logs of 1,500 words have
# plans of up to 17 kB, and 14.6 kB without phrases.
_MAX_LENGTH = 1280
# Most phrases of each pass. Twice as many passes save 1 to 4% of the digits.
_PASSES = (*[tuning.MAX_PHRASES] * 6, 180, 128, 90, 64, 45, 32, 22)
# Characters of the strings from which phrases are learnt, in 0.1 s. More give longer phrases, with
# less room for others: articles took 10.9 bytes, and 14.5 from 8,000 characters.
_SAMPLE_LENGTH = 6144


@dataclass(frozen=True)
class StringCode:
    """Code of strings with `phrases`, or of bytes without them."""

    phrases: tuple[str, ...] = ()

    @property
    def base(self) -> int:
        """Return the number of different digits."""
        return len(self.phrases) + 2 if self.phrases else 256

    @property
    def digit_bytes(self) -> float:
        """Return the bytes of a digit."""
        return math.log2(self.base) / 8

    @cached_property
    def _parts(self) -> re.Pattern[str]:
        return _first(each.encode().decode("latin1") for each in self.phrases)

    @cached_property
    def _digits(self) -> dict[str, list[int]]:
        """Return the digits of each phrase and each byte, as texts of Latin-1."""
        escape, numbers = len(self.phrases) + 1, range(256)
        digits = {chr(x): [escape, x >> 4, x & 15] if self.phrases else [x] for x in numbers}
        texts = (each.encode().decode("latin1") for each in self.phrases)
        return digits | {text: [digit] for digit, text in enumerate(texts, 1)}

    def encode(self, raw: bytes) -> list[int]:
        """Return the digits of `raw`, without the end."""
        parts = self._parts.findall(raw.decode("latin1"))
        return [digit for part in parts for digit in self._digits[part]]

    def decode(self, digits: Iterable[int]) -> bytes:
        """Return the bytes of `digits`, with NUL for the end; a byte that is cut is left out."""
        raw, rest = b"", iter(digits)
        for digit in rest:
            if not digit:
                return raw + b"\0"
            if not self.phrases:
                raw += bytes([digit])
            elif digit < self.base - 1:
                raw += self.phrases[digit - 1].encode()
            else:
                halves = list(islice(rest, 2))
                raw += bytes([(16 * halves[0] + halves[1]) % 256]) if len(halves) == 2 else b""
        return raw

    def size(self, texts: Iterable[str]) -> float:
        """Return the bytes of the digits of `texts`, with their ends."""
        return self.digit_bytes * sum(len(self.encode(each.encode())) + 1 for each in texts)


PLAIN = StringCode()  # bytes


def learn_phrases(texts: Collection[str]) -> StringCode:
    """Return the code that is short for `texts`, the most important ones first."""
    ends = accumulate(len(each) for each in texts)
    sample = [each for each, end in zip(texts, ends, strict=True) if end <= _SAMPLE_LENGTH]
    best, code, least = PLAIN, PLAIN, PLAIN.size(sample)
    for most in _PASSES:
        uses, items, pattern = Counter[str](), Counter[str](), _first(code.phrases)
        for text in sample:
            parts = pattern.findall(text)
            longer = [a + b for a, b in pairwise(parts) if len(a + b) <= tuning.MAX_PHRASE_LENGTH]
            uses.update(parts + longer)
            items.update({*parts, *longer})
        saved = (
            (count * (len(each) - 1 or tuning.ESCAPE_DIGITS * len(each.encode()) - 1), each)
            for each, count in uses.items()
            if items[each] >= tuning.MIN_PHRASE_ITEMS
        )
        chosen = [each for _, each in heapq.nlargest(most, saved)]
        room = accumulate(len(each) + 3 for each in chosen)
        fitting = [x for x, end in zip(chosen, room, strict=True) if end <= _MAX_LENGTH]
        code = StringCode(tuple(sorted(fitting, key=len, reverse=True)))
        if len(code.phrases) >= tuning.MIN_PHRASES and (size := code.size(sample)) < least:
            least, best = size, code
    return best


def _first(phrases: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of the first phrase that fits at a place, or of one character."""
    return re.compile("|".join([*map(re.escape, phrases), "."]), re.DOTALL)
