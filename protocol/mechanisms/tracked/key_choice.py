"""Choice of keys for known items: by default the keys that cost `tracked` the fewest words.

Each cell of a table holds a key. A key of an alphabet or of UTF-8 is the whole item, so that it
grows with the longest item. A hashed key has one size, and `tracked` fetches the strings of heavy
keys later, for which it uses words too.

Keys of more than 32 bits are hashed, and with few words or rounds those of more than 64. Measured
with `tracked`, 10,000 devices a round and threshold 50: F1 with whole strings and with hashed keys,
of web words cut to some characters of 26.

    rounds   characters   bits   300 words        500 or 700 words   1,500 words
        30            5     24   0.67 and 0.31    0.85 and 0.69      0.97 and 0.96
        30            8     40   0.53 and 0.40    0.72 and 0.73      0.94 and 0.95
        30           10     48   0.49 and 0.35    0.70 and 0.71
        30           16     80   0.32 and 0.35    0.57 and 0.66
        10           10     48                    0.73 and 0.81      0.91 and 0.93
         5           10     48                    0.69 and 0.82      0.89 and 0.88
         3           10     48                    0.67 and 0.69      0.91 and 0.87
         3           16     80                    0.59 and 0.61      0.84 and 0.88

With 30 rounds there are 500 words, otherwise 700. A study of one round fetches no strings, so that
its keys are whole strings.
"""

from collections.abc import Collection
from typing import Final

from protocol.domains import Domain
from protocol.domains.hashed import Hashed, min_key_bits
from protocol.domains.known_items import KnownItems

_MAX_PLAIN_KEY_BITS: Final = 32  # items with longer keys are hashed
_MAX_PLAIN_KEY_BITS_IF_FEW: Final = 64
_FEW_WORDS: Final = 500  # with fewer, fetched strings take too large a part
_FEW_ROUNDS: Final = 3  # in which strings are fetched late


def cheapest_domain(
    plain: Domain, items: Collection[str], max_tokens: int, words: int | None, rounds: int = 30
) -> Domain:
    """Return `plain`, or hashed keys if the keys of `plain` are long for the words and rounds.

    Hashed keys are as short as rounds of `max_tokens` allow. Without `words` there are many.
    """
    has_few = rounds <= _FEW_ROUNDS or (words is not None and words < _FEW_WORDS)
    limit = _MAX_PLAIN_KEY_BITS_IF_FEW if has_few else _MAX_PLAIN_KEY_BITS
    if isinstance(plain, Hashed) or plain.key_bit_count <= limit:
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
    cheapest = cheapest_domain(plain, known.items, max_tokens, known.words, known.rounds)
    return cheapest if cheapest is plain else hashed
