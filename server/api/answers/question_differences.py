"""Differences of two studies' questions in words, and the items of a domain in words.

Rates are per device, so studies of different questions compare; but these can be why rates differ.
"""

from collections.abc import Iterator
from typing import Any, Final

from protocol.domains import Domain
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, Listed, Utf8
from protocol.mechanisms.registry import AnyQuestion

_KEY_FIELDS: Final = {"salt", "key_bits"}  # of hashed keys; they do not change which items exist


def question_differences(first: AnyQuestion, second: AnyQuestion) -> Iterator[str]:
    """Yield phrases of what the first study asks, and then the second, where rates depend on it."""
    if first.mechanism != second.mechanism:
        yield f"the mechanism: {first.mechanism}, then {second.mechanism}"
    if _items(first.domain) != _items(second.domain):
        before, after = domain_in_words(first.domain), domain_in_words(second.domain)
        yield f"the items: {before}, then {after if before != after else 'others of that kind'}"
    if first.asks_every_round != second.asks_every_round:
        parts = ("one round", "every round") if second.asks_every_round else ("every round", "one")
        yield f"the rounds in which a device takes part: {parts[0]}, then {parts[1]}"
    if first.contribution != second.contribution:
        most = f"{first.contribution:,}, then {second.contribution:,}"
        yield f"the largest number of items that a device gives: {most}"


def _items(domain: Domain) -> dict[str, Any]:
    """Return the fields of a domain that determine its items; texts may have keys of any kind."""
    document = domain.model_dump(exclude=_KEY_FIELDS)
    if document["kind"] in ("hashed", "utf8"):
        document["kind"] = "text"
    return document


def domain_in_words(domain: Domain) -> str:
    """Return the items of a domain, as a noun phrase in the plural."""
    match domain:
        case HashedProduct():
            return f"texts of up to {domain.max_bytes:,} bytes in {_segments(domain.segments)}"
        case Hashed() | Utf8():
            return f"texts of up to {domain.max_bytes:,} bytes"
        case Alphabet():
            length = f"up to {domain.length:,}" if domain.pad else f"{domain.length:,}"
            letters = domain.characters.replace(domain.pad, "")
            if len(letters) > 64 or not letters.isprintable():
                letters = f"{len(letters):,} different ones"
            return f"strings of {length} characters from {letters}"
        case Listed():
            return f"{len(domain.items):,} listed items"
        case NumericInterval():
            return f"numbers from {_number(domain.low)} to {_number(domain.high)}"
        case Product():
            return f"{domain_in_words(domain.inner)} in {_segments(domain.segments)}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _segments(segments: tuple[str, ...]) -> str:
    return f"{len(segments):,} {'segment' if len(segments) == 1 else 'segments'}"
