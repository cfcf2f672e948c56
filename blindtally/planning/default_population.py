"""Population that a plan assumes by default."""

from typing import Final

DEFAULT_ITEMS: Final = 100_000
DEFAULT_ZIPF: Final = 1.0
