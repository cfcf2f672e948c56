"""Devices in JavaScript refuse the committees that those in Python refuse."""

from dataclasses import replace
from random import Random
from typing import Any

from protocol.api.one_shot import OneShotRound
from protocol.committee_terms import CommitteeTerms, VolunteerTerms
from protocol.question_and_plan import Terms
from secagg.errors import UnsafeRequestError
from secagg.keys import Identity, KeyPair
from secagg.oneshot.committee import Committee, MemberEntry, key_statement, sign_committee
from secagg.oneshot.parameters import CommitteeParameters, drawn_committee_parameters
from tests.js.node import run_node
from tests.protocol.mechanism_examples import ONE_SHOT_EXAMPLES

IDENTITIES = [Identity.of(bytes([number]) * 32) for number in range(1, 13)]
REGISTRAR = Identity.of(bytes([99]) * 32)
OPERATORS = CommitteeTerms(members=tuple(each.public.hex() for each in IDENTITIES[:11]))
SEVEN = CommitteeTerms(members=OPERATORS.members, corrupt=0.1, dropout=0.4, size=8)
VOLUNTEERS = VolunteerTerms(volunteers=60, size=12, corrupt=0.02, dropout=0.02)


def plan_of(committee: CommitteeTerms | VolunteerTerms) -> Any:
    plan = ONE_SHOT_EXAMPLES["tracked, nothing, in a one-shot sum"].plan()
    registrar = REGISTRAR.public.hex() if isinstance(committee, VolunteerTerms) else None
    fields = {"cohort_size": 80, "minimum": 5, "sum": "one-shot", "registrar": registrar}
    return plan.model_copy(update={"terms": Terms(committee=committee, **fields)})


def committee_of(plan: Any, members: list[int], number: int = 0, **numbers: int) -> Committee:
    """Return the committee of `members`, by their place in `IDENTITIES`, which have signed."""
    digest, rng = plan.digest(), Random(1)
    entries = []
    for identity in (IDENTITIES[place] for place in members):
        key = KeyPair.generate(rng).public
        signature = identity.sign(key_statement(digest, number, key))
        entries.append(MemberEntry(identity.public, key, signature))
    parameters = plan.terms.committee.parameters_of(len(members))
    committee = Committee(digest, number, replace(parameters, **numbers), tuple(entries))
    return sign_committee(committee, REGISTRAR) if plan.terms.draws_committee else committee


def cases() -> list[tuple[Any, Committee]]:
    plan, sized, drawn = map(plan_of, (OPERATORS, SEVEN, VOLUNTEERS))
    whole, everyone = committee_of(plan, [*range(11)]), committee_of(drawn, [*range(12)])
    forged = replace(whole.entries[3], signature=bytes(64))
    others = (*whole.entries[:3], forged, *whole.entries[4:])
    # A member may choose the bytes of another's identity as its key, if their last bit is unused.
    key = next(each.public for each in IDENTITIES if each.public[31] < 128)
    signed = IDENTITIES[3].sign(key_statement(plan.digest(), 0, key))
    borrowed = (*whole.entries[:3], replace(forged, key=key, signature=signed), *whole.entries[4:])
    parameters = CommitteeParameters(11, 2, 2, 6)
    return [
        (plan, whole),
        (plan, committee_of(plan, [*range(2, 11)])),
        (plan, committee_of(plan, [*range(1, 12)])),
        (plan, committee_of(plan, [*range(11)], number=1)),
        (plan, committee_of(sized, [*range(8)])),
        (plan, replace(whole, parameters=parameters)),
        (plan, replace(whole, parameters=replace(whole.parameters, corrupt=1))),
        (plan, replace(whole, entries=others)),
        (plan, replace(whole, entries=borrowed)),
        (sized, committee_of(sized, [*range(3, 11)])),
        (sized, Committee(sized.digest(), 0, OPERATORS.parameters, whole.entries)),
        (drawn, everyone),
        (drawn, replace(everyone, signature=b"")),
        (drawn, sign_committee(everyone, IDENTITIES[0])),
    ]


def fault_of(plan: Any, committee: Committee) -> str | None:
    try:
        OneShotRound.of(plan, plan.digest(), committee).session.check_authority()
    except UnsafeRequestError as error:
        return str(error)
    return None


def numbers_of(terms: dict[str, Any]) -> list[int] | None:
    sizes = terms["size"], terms["corrupt"], terms["dropout"], terms["volunteers"]
    try:
        numbers = drawn_committee_parameters(*sizes, terms["sigma"], terms["eta"])
    except ValueError:
        return None
    return [numbers.members, numbers.corrupt, numbers.dropouts, numbers.threshold]


def random_terms(rng: Random) -> dict[str, Any]:
    size = rng.randint(3, 1000)
    rates = {"corrupt": rng.uniform(0, 0.3), "dropout": rng.uniform(0, 0.3)}
    exponents = {"sigma": rng.randint(1, 128), "eta": rng.randint(1, 128)}
    return {"size": size, "volunteers": rng.randint(size, 5000)} | rates | exponents


def test_committees_are_refused_as_in_python_and_drawn_with_the_same_numbers() -> None:
    rng = Random(1)
    listed, terms = cases(), [random_terms(rng) for _ in range(100)]
    expected, numbers = [fault_of(*case) for case in listed], [*map(numbers_of, terms)]
    given = [
        {"plan": plan.canonical_text(), "committee": committee.pack().hex()}
        for plan, committee in listed
    ]
    answer = run_node("committees.mjs", {"cases": given, "terms": terms})
    assert [fault is None for fault in answer["faults"]] == [fault is None for fault in expected]
    assert answer["numbers"] == numbers
    assert (expected.count(None), len(set(expected))) == (5, 6)
    assert 20 < numbers.count(None) < 80
