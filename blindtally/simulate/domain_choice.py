"""Choice of the domain of a simulated study: by default the one whose keys cost the fewest words.

Each cell of a table holds a key. A key of an alphabet or of UTF-8 is the whole item, so that it
grows with the longest item. A hashed key has one size, and only `tracked` fetches the strings of
heavy keys later, for which it uses words too.

Keys of more than 64 bits are hashed, and with few words those of more than 96. Measured with
`tracked`, 30 rounds of 10,000 devices and threshold 50: F1 with whole strings and with hashed keys,
of web words cut to some characters of 26 (the first three rows), of words of commit messages, whose
alphabet is larger, and of the bundled words:

    characters   bits   500 words        1,500 words
             5     24   0.80 and 0.47    0.97 and 0.96
            10     48   0.70 and 0.45    0.94 and 0.96
            16     80   0.55 and 0.47    0.89 and 0.95
            16    114   0.51 and 0.59    0.89 and 0.98

    bundled words, 80 bits   600 words        800 words        1,000 words
                             0.86 and 0.65    0.94 and 0.92    0.96 and 0.98

A study of one round fetches no strings, so that its keys are whole strings. Words of commit
messages, 1,000 words: F1 0.29 and 0 in one round, 0.36 and 0.36 in two, 0.32 and 0.38 in three.
"""

from collections.abc import Collection
from typing import Final

from blindtally.simulate.options import DomainChoice
from protocol.domains import Domain
from protocol.domains.hashed import Hashed, min_key_bits
from protocol.domains.strings import Alphabet, Utf8, alphabet_of, smallest_domain

_MAX_PLAIN_KEY_BITS: Final = 64  # items with longer keys are hashed
_MAX_PLAIN_KEY_BITS_OF_FEW_WORDS: Final = 96
_FEW_WORDS: Final = 900  # with fewer, fetched strings take too large a part


def cheapest_domain(
    plain: Domain,
    items: Collection[str],
    max_tokens: int,
    words: int | None = None,
    max_bytes: int | None = None,
) -> Domain:
    """Return `plain`, or hashed keys for `tracked` if the keys of `plain` are long for its words.

    Hashed keys are as short as rounds of `max_tokens` allow. Without `words` there are many.
    """
    has_few_words = words is not None and words < _FEW_WORDS
    limit = _MAX_PLAIN_KEY_BITS_OF_FEW_WORDS if has_few_words else _MAX_PLAIN_KEY_BITS
    if plain.key_bit_count <= limit:
        return plain
    return hashed_domain(items, max_tokens, max_bytes)


def hashed_domain(items: Collection[str], max_tokens: int, max_bytes: int | None = None) -> Hashed:
    """Return the domain of the shortest hashed keys for `items` in rounds of `max_tokens`."""
    longest = max((len(item.encode()) for item in items), default=1)
    return Hashed(max_bytes=max_bytes or max(1, longest), key_bits=min_key_bits(max_tokens))


def choose_domain(
    choice: DomainChoice,
    items: Collection[str],
    *,
    mechanism: str,
    max_tokens: int,
    words: int,
    rounds: int = 2,
    alphabet: str | None = None,
    length: int | None = None,
) -> Domain:
    """Return the domain of `choice` for `items`, of these characters and this length if given.

    Raises:
        ValueError: if the options contradict each other, or no such domain holds the items.
    """
    if alphabet is not None and choice not in ("auto", "alphabet"):
        raise ValueError(f"--alphabet has the characters of an alphabet, not of --domain {choice}")
    if choice == "hashed" and mechanism != "tracked":
        raise ValueError(
            "--domain hashed goes with tracked, which fetches the strings of its keys: "
            f"{mechanism} would find keys only"
        )
    if choice == "hashed":
        return hashed_domain(items, max_tokens, length)
    if choice == "alphabet" or alphabet is not None:
        characters = alphabet or "".join(sorted(set().union(*items)))
        return alphabet_of(characters, items, length)
    if choice == "utf8":
        longest = max((len(item.encode()) for item in items), default=1)
        return Utf8(max_bytes=length or max(1, longest))
    fetches_strings = mechanism == "tracked" and rounds > 1
    return _automatic_domain(items, fetches_strings, max_tokens, words, length)


def _automatic_domain(
    items: Collection[str],
    fetches_strings: bool,
    max_tokens: int,
    words: int,
    length: int | None,
) -> Domain:
    try:
        plain: Alphabet | Utf8 = Utf8(max_bytes=length) if length else smallest_domain(items)
    except ValueError:
        if not fetches_strings or not items:
            raise
        return hashed_domain(items, max_tokens)  # as long items have no other domain
    if not fetches_strings:
        return plain
    return cheapest_domain(plain, items, max_tokens, words, length)
