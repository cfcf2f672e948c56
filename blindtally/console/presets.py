"""Presets of questions: a few options stand for a mechanism, a domain, and the size of a message.

| option            | exact         | with --private           |
|-------------------|---------------|--------------------------|
| --numbers 0:100   | `number-sums` | `hierarchical-histogram` |
| --options a,b,c   | `tracked`     | `count-median`           |
| --strings 64      | `tracked`     | `triehh`                 |

The value of --private is the epsilon that devices compute, at the delta that they accept by
default. Each device takes part once, so that the rounds do not share it.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final

from protocol.mechanisms.registry import MECHANISMS, REPORT_MECHANISMS, parse_question
from protocol.numerics.binary_search import first_true
from protocol.question_and_plan import DEFAULT_MAX_DELTA, Terms
from protocol.round_sizes import message_bytes_of

MAX_BYTES: Final = 2**21
BYTES_PER_OPTION, MIN_OPTIONS = 16, 12
_MECHANISMS: Final = {
    "numbers": ("number-sums", "hierarchical-histogram"),
    "options": ("tracked", "count-median"),
    "strings": ("tracked", "triehh"),
}


def preset_fields(
    numbers: str | None,
    strings: int | None,
    options: str | None,
    private: float | None,
    mechanism: str | None = None,
) -> dict[str, Any]:
    """Return the fields of a question, also its `mechanism`, that these options stand for.

    Another `mechanism` than the preset's gets only fields that it has.

    Raises:
        ValueError: if they contradict each other, or numbers are no interval.
    """
    given = {"numbers": numbers, "strings": strings, "options": options}
    kinds = [name for name, value in given.items() if value is not None]
    if len(kinds) > 1:
        raise ValueError(f"pass one of {', '.join(f'--{name}' for name in kinds)}")
    loss = {} if private is None else {"epsilon": private, "delta": DEFAULT_MAX_DELTA}
    if mechanism in REPORT_MECHANISMS:
        loss.pop("delta", None)
    if not kinds:
        return loss
    name = mechanism or _MECHANISMS[kinds[0]][private is not None]
    fields: dict[str, Any] = {"mechanism": name} | loss
    if name == "triehh" and private is not None:
        fields |= {"mode": "noise", "every_round": False}
    if numbers is not None:
        low, _, high = numbers.partition(":")
        # A million cells, or 1,024 in noise.
        length = 10 if private is None else 5
        return fields | {"domain": {"kind": "interval", "low": low, "high": high, "length": length}}
    if strings is not None:
        return fields | {"domain": {"kind": "utf8", "max_bytes": strings}}
    items = dict.fromkeys(each.strip() for each in str(options).split(","))
    return fields | {"domain": {"kind": "listed", "items": tuple(items)}}


def fitting_bytes(fields: Mapping[str, Any], terms: Terms, rounds: int = 1, items: int = 0) -> int:
    """Return the least `message_bytes` with which a study begins; a table has room for `items`.

    A larger sketch has less noise, so it has some bytes for each option.
    """
    if fields["mechanism"] == "count-median":
        question = parse_question({**fields, "message_bytes": MAX_BYTES})
        options = getattr(question.domain, "items", ())
        return message_bytes_of(terms, BYTES_PER_OPTION * max(len(options), MIN_OPTIONS))

    def suffices(size: int) -> bool:
        mechanism = MECHANISMS[fields["mechanism"]]
        try:
            question = parse_question({**fields, "message_bytes": size})
            plan = mechanism.first_plan(question, terms, "demo", rounds, Random(0))
        except ValueError:  # too few bytes
            return False
        capacity = mechanism.table_capacity(plan)
        return capacity is None or capacity >= items

    return first_true(suffices, 1, MAX_BYTES)


def lowest_threshold(fields: Mapping[str, Any], terms: Terms) -> int:
    """Return the threshold of `fields`, or the lowest above it that noise alone does not reach.

    Raises:
        ValueError: if the noise hides all counts of a round.
    """
    for threshold in range(math.ceil(fields["threshold"]), terms.max_devices + 1):
        with suppress(ValueError):
            question = parse_question({**fields, "threshold": threshold})
            MECHANISMS[fields["mechanism"]].first_plan(question, terms, "demo", 1, Random(0))
            return threshold
    raise ValueError(
        f"with epsilon {fields['epsilon']:g} the noise hides all counts of {terms.max_devices} "
        "users: use a larger epsilon, or more users"
    )
