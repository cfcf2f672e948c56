"""Environment variables that blindtally reads, and misspelt ones that nothing reads."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from server.settings import Settings

PREFIX: Final = "BLINDTALLY_"
# Variables that other programs read: the commands, compose and the tests.
_OTHER_VARIABLES: Final = (
    *("API_KEY", "URL", "ENROLMENT_TOKEN", "MEMBER_KEY", "REPLICAS", "TAG"),
    *("CHROMIUM", "COMPOSE", "EXAMPLES"),
)
KNOWN_VARIABLES: Final = frozenset(
    PREFIX + name.upper() for name in (*Settings.model_fields, *_OTHER_VARIABLES)
)


def unknown_variables(names: Iterable[str]) -> dict[str, str | None]:
    """Return each of `names` that has our prefix and is unknown, with the nearest known name."""
    return {
        name: next(iter(get_close_matches(name.upper(), KNOWN_VARIABLES, 1, cutoff=0.8)), None)
        for name in sorted(names)
        if name.upper().startswith(PREFIX) and name.upper() not in KNOWN_VARIABLES
    }
