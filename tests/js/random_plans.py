"""Random plans of one-shot sums that a device in JavaScript answers, with items and policies."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import rfc8785
from pydantic import ValidationError

from client.device.encoding import encode, make_contribution
from protocol.committee_terms import AnyCommitteeTerms, CommitteeTerms, VolunteerTerms
from protocol.device_policy.plan_check import max_copies, plan_violations
from protocol.device_policy.policy import Policy
from protocol.mechanisms.registry import (
    SUM_MECHANISMS,
    AnyPlan,
    parse_plan,
    parse_question,
    read_plan,
)
from protocol.mechanisms.tracked.mechanism import round_primes
from protocol.question_and_plan import Terms, first_plan_fields
from protocol.randomness import keyed_words
from secagg.oneshot.field import PackedRows
from secagg.oneshot.moduli import joined
from tests.support.one_shot_lanes import KEYS

MECHANISMS = ("tracked", "tracked", "triehh", "hierarchical-histogram", "number-sums")
_VALUES = (
    -1,
    0,
    0.5,
    1e18,
    1e300,
    "x",
    "\x1b",
    "",
    "a" * 64,
    None,
    True,
    [],
    ["x"],
    {},
    {"kind": "utf8"},
)
# JavaScript reads none of these values, and refuses a join_probability below 1.
_UNREAD = {"epsilon", "colluders", "mode", "relation", "theta", "probability", "vote_tables"}
_UNREAD |= {"join_probability"}
_LETTERS = "ab\u00e9\U0001f600\uff5e"  # the last two have another order as UTF-16


def random_case(rng: Random, mechanism: str | None = None) -> dict[str, Any]:
    """Return a plan, the items of a device with their counts, and a policy's limits.

    The keys `random` and `choices` are of streams of random words.
    """
    while True:
        with suppress(ValueError):
            plan = _plan(rng, mechanism or rng.choice(MECHANISMS))
            return {
                "plan": json.loads(plan.canonical_text()),
                "items": _items(rng, plan.question.domain),
                "policy": _policy(rng, plan.terms),
                "random": rng.randbytes(32).hex(),
                "choices": rng.randbytes(32).hex(),
            }


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Return what a device in Python answers to a case: its vector, and whether it refuses."""
    plan, policy = parse_plan(case["plan"]), _policy_of(**case["policy"])
    choices, random = (keyed_words(bytes.fromhex(case[name])) for name in ("choices", "random"))
    most, held = max_copies(policy, plan), dict(case["items"])
    contribution = make_contribution(plan.question, held, choices, most)
    (elements,) = joined(encode(plan, contribution, plan.terms.minimum, random))
    p = SUM_MECHANISMS[plan.mechanism].ring(plan).lanes[0].q
    packed = PackedRows.of(p, len(elements)).pack(elements.astype(np.uint64).reshape(1, -1))
    first = next(plan_violations(policy, plan, plan.study, plan.round), None)
    left_out = sum(each.count for each in contribution.left_out)
    vector = {"p": p, "length": len(elements), "packed": packed.tobytes().hex()}
    return vector | {"left_out": left_out, "refusal": first and first.limit}


def _policy_of(
    committee: Sequence[str] = (), registrar: str | None = None, **limits: Any
) -> Policy:
    known = frozenset(map(bytes.fromhex, committee))
    key = None if registrar is None else bytes.fromhex(registrar)
    return Policy(committee=known, registrar=key, **limits)


def _terms(rng: Random) -> Terms:
    size = rng.choice((60, 300, 1_000, 20_000))
    members, dropout = KEYS[: rng.randrange(5, 8)], rng.choice((0.0, 0.2))
    most = rng.choice((None, len(members)))
    committee: AnyCommitteeTerms = CommitteeTerms(members=members, dropout=dropout, size=most)
    if rng.random() < 0.3:
        committee = VolunteerTerms(volunteers=rng.choice((60, 200)), size=30)
    registrar = KEYS[0] if isinstance(committee, VolunteerTerms) or rng.random() < 0.5 else None
    rates = {"corrupt": rng.choice((0.05, 0.1, 0.2)), "sigma": rng.choice((30, 40, 60))}
    sizes = {"cohort_size": size, "minimum": rng.choice((size // 3, size))}
    return Terms(**sizes, **rates, sum="one-shot", committee=committee, registrar=registrar)


def _interval(rng: Random) -> dict[str, Any]:
    low = rng.choice((0, -3.5, 1e6, -1e-3))
    width = rng.choice((1, 80, 1e5, 1e-3, 7.3))
    alpha = rng.choice((2, 4, 10, 16))
    ends = {"kind": "interval", "low": low, "high": low + width}
    return ends | {"alpha": alpha, "length": rng.randrange(1, 5)}


def _text_domain(rng: Random, kinds: Sequence[str]) -> dict[str, Any]:
    kind = rng.choice(kinds)
    if kind == "alphabet":
        pad = rng.choice(("", "a"))
        return {"kind": kind, "characters": _LETTERS, "length": rng.randrange(1, 14), "pad": pad}
    if kind == "utf8":
        return {"kind": kind, "max_bytes": rng.randrange(1, 12)}
    if kind == "listed":
        return {"kind": kind, "items": sorted({_word(rng) for _ in range(30)} | {"a", "b"})}
    if kind == "interval":
        return _interval(rng)
    bits = rng.choice((24, 32, 40, 48, 72))
    return {"kind": kind, "max_bytes": 64, "key_bits": bits, "salt": rng.choice(("", "s1"))}


def _word(rng: Random) -> str:
    return "".join(rng.choice(_LETTERS + "bcd") for _ in range(rng.randrange(1, 6)))


_ALL_KINDS = ("alphabet", "utf8", "listed", "interval")


def _question(rng: Random, name: str) -> dict[str, Any]:
    threshold = rng.choice((1, 5, 20, 37.5))
    shared: dict[str, Any] = {"mechanism": name, "threshold": threshold, "message_bytes": 2**24}
    shared |= {"contribution": rng.choice((1, 3, 6)), "confidence": rng.choice((0.4, 0.5))}
    sampled = {"epsilon": 8, "delta": rng.choice((0.6, 1e-6)), "mode": "sample-threshold"}
    if name == "tracked":
        kinds = (*_ALL_KINDS, "hashed", "hashed")
        bits, own = rng.choice((0, 0, 3)), {"domain": _text_domain(rng, kinds)}
        return shared | own | {"hash_bits": bits, "message_bytes": rng.choice((3_000, 20_000))}
    if name == "triehh":
        domain = _text_domain(rng, ("alphabet", "utf8", "interval"))
        own = {"domain": domain, "stride": rng.randrange(1, 3), "truncate": rng.random() < 0.5}
        return shared | sampled | own | {"every_round": rng.random() < 0.3}
    if name == "hierarchical-histogram":
        domain = rng.choice((_interval(rng), {"kind": "utf8", "max_bytes": 2}))
        return shared | sampled | {"domain": domain, "contribution": 1, "every_round": False}
    return shared | {"domain": _interval(rng), "contribution": 1, "confidence": 0.5}


def _plan(rng: Random, name: str) -> AnyPlan:
    terms = _terms(rng)
    question = parse_question(_question(rng, name))
    rounds, mechanism = rng.randrange(1, 9), SUM_MECHANISMS[name]
    if "mode" in type(question).model_fields:  # the search for a release takes seconds
        theta, probability = rng.choice((1, 6, 30)), rng.choice((0.01, 0.3, 1 / 3, 0.7))
        release = {"probability": probability, "threshold": theta, "variance": 0}
        own = {"release": release} | ({"level": 1, "frontier": [""]} if name == "triehh" else {})
        shared = first_plan_fields(question, terms, "study", rounds, rng)
        plan = mechanism.plan_type.model_validate(shared | own)
    else:
        plan = mechanism.first_plan(question, terms, "study", rounds, rng)
    if name == "tracked" and rng.random() < 0.7:
        return _later_plan(rng, plan)
    if name == "triehh" and question.levels > 1 and rng.random() < 0.7:
        level = rng.randrange(2, question.levels + 1)
        words = [item for item, _ in _items(rng, question.domain) if question.canonical(item)]
        rows = question.digits_of([question.canonical(word) for word in words])
        fronts = {row[: (level - 1) * question.stride].tobytes().hex() for row in rows}
        return plan.next_round(rng, level=level, frontier=sorted(fronts), table_shape=None)
    return plan


def _later_plan(rng: Random, plan: Any) -> AnyPlan:
    """Return a later plan of `tracked`, with counters and perhaps strings of the items."""
    domain = plan.question.domain
    held = (domain.canonical(item) for item, _ in _items(rng, domain))
    names = sorted({domain.name(item) for item in held if item is not None})[:20]
    groups, sizes = [], list[int]()
    while names:
        part, names = names[:5], names[5:]
        groups.append({"counters": (counters := rng.choice((1, 2, 5, 112))), "items": part})
        sizes += [counters] * len(part)
    pieces = [
        (row, rng.randrange(9), rng.choice((1, 7, 9, 30)))
        for row in range(len(sizes))
        if domain.kind == "hashed" and rng.random() < 0.5
    ]
    parts = [word[start:][:3] for word in map(_word, [rng] * 40) for start in range(len(word))]
    phrases = rng.sample(sorted(set(parts)), rng.choice((0, 14, 30))) if pieces else []
    prime = rng.choice(round_primes(plan.question, plan.terms))
    counters = {"counter_groups": groups, "counter_classes": sizes, "string_pieces": pieces}
    table = {"cells": rng.choice((12, 48, 204, 216, 600)), "table_classes": rng.randrange(1, 4)}
    values = {"prime": prime, "max_value": rng.randrange(1, prime), "phrases": phrases}
    number, t = min(plan.rounds, rng.randrange(2, 6)), rng.choice((1, 1.5, 2.7, 9.5))
    return plan.next_round(rng, round=number, t=t, **counters, **table, **values)


def _items(rng: Random, domain: Any) -> list[tuple[str, int]]:
    """Return items with their counts; some are outside the domain."""
    kind, items = domain.kind, dict[str, int]()
    for _ in range(rng.randrange(12)):
        word = _word(rng)
        if kind == "listed" and rng.random() < 0.9:
            word = rng.choice(domain.items)
        if kind == "alphabet" and not domain.pad:
            word = "".join(rng.choice(domain.characters) for _ in range(domain.length))
        if kind == "interval":
            word = repr(rng.uniform(domain.low, domain.high) * rng.choice((1, 1, 1.2)))
        items[word] = rng.choice((1, 1, 2, 3, 40))
    return [*items.items()]


def _policy(rng: Random, terms: Terms) -> dict[str, Any]:
    known = {"committee": list(KEYS)} if rng.random() < 0.9 else {}
    registrar = {"registrar": terms.registrar} if rng.random() < 0.7 else {}
    choices: dict[str, Any] = {
        "min_threshold": rng.choice((1, 4)),
        "max_upload_bytes": rng.choice((1_000, 10_000)),
        "min_volunteers": rng.choice((60, 100)),
    }
    choices |= {"min_cohort": 20, "min_corrupt": 0.05, "max_delta": 1, "max_contribution": 5}
    choices |= {"trust_server_identities": True, "accept_exact_estimates": True}
    choices |= {"min_committee": 6, "repeat_exact": True}
    return known | registrar | {name: v for name, v in choices.items() if rng.random() < 0.6}


def text_of(document: Any) -> str:
    """Return the canonical text of a plan's document, which may be no plan."""
    return rfc8785.dumps(document).decode()


def changes(document: Any) -> Iterator[str]:
    """Yield texts of `document` with another value of a field, without a field, and with more.

    Of a list, the first entry is changed or repeated.
    """
    return map(text_of, _changes(document))


def _changes(document: Any) -> Iterator[Any]:
    if isinstance(document, Mapping):
        yield document | {"unknown": 1}
        for name, value in document.items():
            yield {other: document[other] for other in document if other != name}
            for changed in () if name in _UNREAD else (*_VALUES, *_changes(value)):
                yield document | {name: changed}
    elif isinstance(document, list) and document:
        yield [*document, document[0]]
        for changed in (*_VALUES, *_changes(document[0])):
            yield [changed, *document[1:]]
    elif isinstance(document, int | float):
        yield from (document + 1, 2 * document, 40 * document)


def refusal_of(text: str) -> str | None:
    """Return why Python refuses the text of a plan, None if it does not."""
    try:
        read_plan(text)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    except ValueError as error:  # the text is not canonical
        return str(error)
    return None
