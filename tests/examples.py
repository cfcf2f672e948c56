"""Numbers of examples for properties whose examples take long."""

from typing import Any

from hypothesis import settings


def fewer(part: float, **others: Any) -> settings:
    """Return settings for this part of the profile's examples, at least 2."""
    return settings(max_examples=max(2, round(part * settings.default.max_examples)), **others)
