"""Notes under tables of items."""

import pytest

from blindtally.console.tables import key_notes
from protocol.domains import Domain
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.strings import Utf8
from protocol.mechanisms.tracked.plan import TrackedQuestion


@pytest.mark.parametrize(
    ("domain", "items", "has_note"),
    [
        (Hashed(max_bytes=9), ["hello", "#4ba6bccb99"], True),
        (HashedProduct(max_bytes=9, segments=("a", "b")), ["#4ba6bccb99"], True),
        (Hashed(max_bytes=9), ["hello"], False),
        (Utf8(max_bytes=9), ["#hashtag"], False),
    ],
)
def test_keys_of_items_are_explained(domain: Domain, items: list[str], *, has_note: bool) -> None:
    question = TrackedQuestion(threshold=5, contribution=1, domain=domain, message_bytes=3584)
    notes = key_notes(question, items)
    assert any("key of an item whose string was not fetched" in note for note in notes) is has_note
