"""Questions and plans of `triehh` for tests.

`SURE_COINS` coins fall tails once in 2^40: results with them are certain
except with probability 1e-9.
"""

import random
from typing import Any

from protocol.domains.strings import Alphabet, Utf8
from protocol.mechanisms.central.trie_plan import TrieHhPlan, TrieHhQuestion
from protocol.mechanisms.central.triehh import TrieHh
from protocol.privacy.release import Release
from protocol.question_and_plan import Terms, first_plan_fields

TRIE = TrieHh()
TERMS = Terms(cohort_size=60, minimum=40)
LETTERS = Alphabet(characters="abcd", length=4)
PAD_DOMAIN = Alphabet(characters="_abc", length=4, pad="_")
TEXT = Utf8(max_bytes=5)
SURE_COINS = Release(probability=1 - 2**-40, threshold=3, variance=0.0)


def asked(**own: Any) -> TrieHhQuestion:
    common = {"threshold": 1, "contribution": 1, "domain": LETTERS, "message_bytes": 63_084}
    return TrieHhQuestion.model_validate(common | {"epsilon": 8, "delta": 1e-2} | own)


def first(release: Release = SURE_COINS, terms: Terms = TERMS, **own: Any) -> TrieHhPlan:
    fields = first_plan_fields(asked(**own), terms, "study", 30, random.Random(1))
    return TrieHhPlan(**fields, release=release, level=1, frontier=("",))


def at(plan: TrieHhPlan, level: int, *frontier: str) -> TrieHhPlan:
    rows = plan.question.digits.digits_of([item.ljust(4, "a") for item in frontier])
    start = (level - 1) * plan.question.stride
    prefixes = tuple(row[:start].tobytes().hex() for row in rows)
    return TrieHhPlan.model_validate(dict(plan) | {"level": level, "frontier": prefixes})
