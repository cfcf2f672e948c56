"""Size of a message with which `tracked` finds what a study looks for, by simulation.

The simulated items have shares that fall as 1 / rank, as those of `blindtally plan`; with other
items the same size finds more or less (`blindtally plan` shows a range).
"""

import math
from typing import Final

from blindtally.console.options import DEFAULT_ITEMS
from blindtally.console.presets import fitting_bytes
from blindtally.planning.bracketing_populations import AssumedCounts, middle_case
from blindtally.planning.f1_by_words import TRACKED, StudySetting, f1_over_sizes
from blindtally.planning.study_forecast import DEVICE_RANGE, ROUND_RANGE
from protocol.domains import Domain
from protocol.domains.hashed import Hashed, HashedProduct
from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanisms.registry import AnyQuestion
from protocol.question_and_plan import Terms
from protocol.round_sizes import WORD_BYTES, message_bytes_of, terms_for

GOAL_F1: Final = 0.95
_SEED: Final = (1, 0)
_GRID_STEP: Final = 4  # steps of the grid of sizes before the search bisects
_MIN_WORDS: Final = 50


def recommend_message_bytes(
    threshold: float,
    devices: int,
    rounds: int,
    *,
    contribution: int = 1,
    max_bytes: int = 64,
    f1: float = GOAL_F1,
) -> int:
    """Return the `message_bytes` with which `tracked` reaches an `f1` of 0.8, 0.9 or 0.95.

    F1 is the harmonic mean of precision and recall, over `rounds` rounds of `devices` devices with
    at most `contribution` items of `max_bytes` bytes each. The search takes some seconds.

    Raises:
        ValueError: if no vector up to 400,000 bytes reaches it, or no assumed item is heavy.
    """
    domain = Hashed(max_bytes=max_bytes)
    setting = StudySetting(rounds, threshold, devices * contribution, _MIN_WORDS)
    words = _recommend(domain, setting, contribution, f1)
    return message_bytes_of(terms_for(devices), WORD_BYTES * words)


def choose_size(question: AnyQuestion, terms: Terms, rounds: int) -> tuple[int, str]:
    """Return the `message_bytes` with which `question` reaches `GOAL_F1`, and the reason.

    A study without a table for ten items is refused, so a small study gets more than it needs.

    Raises:
        ValueError: if no size reaches it, no assumed item is heavy, or items of the domain cannot
            be assumed.
    """
    devices = terms.max_devices
    if devices not in DEVICE_RANGE or rounds not in ROUND_RANGE:
        limits = f"{DEVICE_RANGE[0]} to {DEVICE_RANGE[-1]:,} devices and {ROUND_RANGE[-1]:,} rounds"
        raise ValueError(f"only studies of {limits} are simulated: pass a number of message_bytes")
    setting = StudySetting(rounds, question.threshold, devices * question.contribution, _MIN_WORDS)
    domain = _domain_without_segments(question.domain)
    try:
        words = _recommend(domain, setting, question.contribution, GOAL_F1)
        size = max(
            message_bytes_of(terms, WORD_BYTES * words),
            fitting_bytes(question.model_dump(), terms, rounds),
        )
    except ValueError as error:
        text = f"message_bytes cannot be chosen: {error}; or pass a number"
        raise ValueError(text) from error
    return size, (
        f"{size:,} message_bytes: with these, simulated studies of {rounds} rounds of "
        f"{devices:,} devices with the threshold {question.threshold:g} reach an F1 "
        f"of {GOAL_F1:g}; `blindtally plan` tries other data"
    )


def _recommend(
    domain: Alphabet | Hashed | Utf8, setting: StudySetting, contribution: int, f1: float
) -> int:
    assumed = AssumedCounts(items=_assumed_items(domain))
    case = middle_case(domain, assumed, setting.tokens, contribution).case
    curve = f1_over_sizes(case, TRACKED, setting, [_SEED], every=_GRID_STEP)
    words = curve.x_reaching(f1)
    if words == TRACKED.min_words:  # nothing to find
        raise ValueError(f"no assumed item is held {setting.tau:g} times: lower the threshold")
    if words is None:
        raise ValueError(
            f"no study of this size reaches an F1 of {f1:g}: raise the threshold, or the number "
            "of devices or rounds"
        )
    return math.ceil(words)


def _domain_without_segments(domain: Domain) -> Alphabet | Hashed | Utf8:
    """Return the domain of simulated items: a segment adds a few bytes to an item.

    Raises:
        ValueError: if its items are not texts.
    """
    if isinstance(domain, HashedProduct):
        return Hashed(max_bytes=domain.max_bytes, key_bits=domain.key_bits)
    if isinstance(domain, Alphabet | Hashed | Utf8):
        return domain
    raise ValueError(
        f"message_bytes can be chosen for texts, not for the domain {domain.kind!r}: pass a number"
    )


def _assumed_items(domain: Alphabet | Hashed | Utf8) -> int:
    """Return the number of assumed items, which short strings limit."""
    strings: int = (
        len(domain.characters) ** domain.length
        if isinstance(domain, Alphabet)
        else 16**domain.max_bytes  # hexadecimal numbers
    )
    return min(DEFAULT_ITEMS, strings)
