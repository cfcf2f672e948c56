"""How many examples a property is tried with, where one example takes long."""

from typing import Any

from hypothesis import settings


def fewer(part: float, **others: Any) -> settings:
    """Return settings for this part of the profile's examples, 2 at least."""
    return settings(max_examples=max(2, round(part * settings.default.max_examples)), **others)
