"""Choice of keys for known items: by default the keys that cost `tracked` the fewest words.

Each cell of a table holds a key. A key of an alphabet or of UTF-8 is the whole item, so that it
grows with the longest item. A hashed key has one size, and `tracked` fetches the strings of heavy
keys later, for which it uses words too.

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

from protocol.domains import Domain
from protocol.domains.hashed import Hashed, min_key_bits
from protocol.domains.known_items import KnownItems

_MAX_PLAIN_KEY_BITS: Final = 64  # items with longer keys are hashed
_MAX_PLAIN_KEY_BITS_OF_FEW_WORDS: Final = 96
_FEW_WORDS: Final = 900  # with fewer, fetched strings take too large a part


def cheapest_domain(
    plain: Domain, items: Collection[str], max_tokens: int, words: int | None
) -> Domain:
    """Return `plain`, or hashed keys if the keys of `plain` are long for the words.

    Hashed keys are as short as rounds of `max_tokens` allow. Without `words` there are many.
    """
    has_few_words = words is not None and words < _FEW_WORDS
    limit = _MAX_PLAIN_KEY_BITS_OF_FEW_WORDS if has_few_words else _MAX_PLAIN_KEY_BITS
    if plain.key_bit_count <= limit:
        return plain
    longest = max((len(item.encode()) for item in items), default=1) or 1
    return Hashed(max_bytes=longest, key_bits=min_key_bits(max_tokens))


def domain_of_known_items(known: KnownItems, contribution: int) -> Domain:
    """Return the wished domain, or the cheapest one.

    Raises:
        ValueError: if the wishes contradict each other, or no such domain holds the items.
    """
    max_tokens = known.devices * contribution
    hashed = Hashed(max_bytes=known.longest, key_bits=min_key_bits(max_tokens))
    if known.choice == "hashed":
        if known.alphabet is not None:
            raise ValueError("an alphabet has the characters of an alphabet, not of hashed keys")
        return hashed
    is_free = known.choice == "auto" and known.alphabet is None
    if not is_free or known.rounds == 1:
        return known.text_domain()
    try:
        plain = known.text_domain()
    except ValueError:
        if not known.items or known.are_numbers:
            raise
        return hashed  # as items of more than 1,024 bytes have no other domain
    cheapest = cheapest_domain(plain, known.items, max_tokens, known.words)
    return cheapest if cheapest is plain else hashed
