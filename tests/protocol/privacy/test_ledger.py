"""A ledger adds up all releases, names the parties that see each, and keeps its budget."""

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from protocol.privacy.events import (
    PARTIES,
    DpEvent,
    ExactSumEvent,
    LedgerEntry,
    LocalReportsEvent,
    Party,
    SampleThresholdEvent,
    SkellamNoiseEvent,
)
from protocol.privacy.ledger import Budget, BudgetError, Ledger, Statement
from protocol.privacy.loss_distributions import NeighbourRelation, bounded_loss, compose, epsilon_of

TRIE = SampleThresholdEvent(probability=0.145593, threshold=12, releases=10)
NOISE = SkellamNoiseEvent(variance=13.40**2, releases=10)
LOCAL = LocalReportsEvent(epsilon=0.5, releases=2)
BUDGET = Budget(epsilon=1.0, delta=1e-6)


def ledger(*mechanisms: DpEvent, budget: Budget | None = None) -> Ledger:
    entries = (LedgerEntry(name=f"round {i}", event=each) for i, each in enumerate(mechanisms))
    return Ledger(entries=tuple(entries), budget=budget)


def test_an_empty_ledger_has_cost_nothing() -> None:
    assert [Ledger().epsilon(1e-6, party) for party in PARTIES] == [0.0] * 4


def test_unlike_releases_compose() -> None:
    levels = TRIE.model_copy(update={"releases": 5})
    counts = SkellamNoiseEvent(variance=400.0, releases=30)
    both = ledger(levels, counts).epsilon(1e-6)
    alone = [ledger(each).epsilon(1e-6) for each in (levels, counts)]
    assert both == pytest.approx(1.342, abs=0.002)
    assert all(each is not None for each in alone)
    assert max(alone) < both < sum(alone)  # type: ignore[type-var]


def test_ten_levels_at_once_or_in_ten_entries_cost_the_same() -> None:
    single = TRIE.model_copy(update={"releases": 1})
    assert ledger(*[single] * 10).epsilon(1e-6) == pytest.approx(ledger(TRIE).epsilon(1e-6))


def test_replace_one_is_stated_next_to_add_remove() -> None:
    (_, _, _, public) = ledger(TRIE).statement(1e-6).parties
    assert public.epsilon == pytest.approx(0.996, abs=0.001)
    assert public.epsilon_replace_one == pytest.approx(1.120, abs=0.001)


def test_nothing_is_private_against_the_server_without_noise() -> None:
    for mechanism in (TRIE, ExactSumEvent()):
        assert ledger(mechanism).epsilon(0.1, "server") is None
        assert not mechanism.views()["server"].private
        assert ledger(mechanism, NOISE, LOCAL).epsilon(1e-6, "server") is None
    assert ledger(NOISE, LOCAL).epsilon(1e-6, "server") is not None


def test_views_and_numbers_agree() -> None:
    colluding = SampleThresholdEvent(probability=0.1, threshold=5, colluders=5)
    for mechanism in (ExactSumEvent(), TRIE, NOISE, LOCAL, colluding):
        for party, view in mechanism.views().items():
            assert view.private == (mechanism.loss_to(party, "add-remove") is not None)
            assert view.assumption


@pytest.mark.parametrize(
    ("invited", "sampled"), [(1.0, 0.1456), (0.1456, 1.0), (0.25, 0.1456 / 0.25)]
)
def test_coins_help_against_a_server_that_cannot_see_them(invited: float, sampled: float) -> None:
    """The server, devices and analysts see which devices join, so only the vote's coin is left."""
    seen = ledger(
        SkellamNoiseEvent(variance=6.35, probability=0.1456, join_probability=invited, releases=10)
    )
    plain = ledger(
        SkellamNoiseEvent(variance=6.35, probability=sampled, join_probability=1.0, releases=10)
    )
    for party in ("server", "devices", "analyst"):
        assert seen.epsilon(1e-6, party) == plain.epsilon(1e-6, "public")
    assert seen.epsilon(1e-6, "public") == pytest.approx(0.927, abs=0.005)


def test_colluders_are_taken_from_theta() -> None:
    colluding = TRIE.model_copy(update={"threshold": 15, "colluders": 3})
    assert ledger(colluding).epsilon(1e-6) == ledger(TRIE).epsilon(1e-6)


def test_each_item_of_a_device_is_a_release() -> None:
    several = SampleThresholdEvent(probability=0.05, threshold=20, items=10)
    assert ledger(several).epsilon(1e-6) == pytest.approx(0.178, abs=0.001)
    noisy = SkellamNoiseEvent(variance=180.0, items=10)
    assert ledger(noisy).epsilon(1e-6) == ledger(
        SkellamNoiseEvent(variance=180.0, releases=10)
    ).epsilon(1e-6)


def test_local_reports_add_up_for_every_party() -> None:
    for party in PARTIES:
        assert ledger(LOCAL).epsilon(1e-6, party) == pytest.approx(1.0, abs=1e-4)
    many = ledger(LocalReportsEvent(epsilon=0.1, releases=100)).epsilon(1e-6)
    assert many is not None
    assert many < 5  # of 10 by adding


def test_reports_beyond_all_privacy_are_added_up() -> None:
    for epsilon, releases in ((2.0, 40), (8.0, 365), (2.0, 4096)):
        total = ledger(LocalReportsEvent(epsilon=epsilon, releases=releases)).epsilon(1e-6)
        assert total is not None
        assert 50 < total <= epsilon * releases + 1e-3
    lost = ledger(LocalReportsEvent(epsilon=8.0, delta=1e-8, releases=365))
    assert lost.epsilon(3e-6) is None  # 365e-8 is above it
    assert lost.epsilon(4e-6) is not None


def test_a_ledger_is_text_and_back() -> None:
    whole = ledger(TRIE, NOISE, LOCAL, ExactSumEvent(), budget=BUDGET)
    assert Ledger.model_validate_json(whole.model_dump_json()) == whole
    statement = whole.statement(1e-6)
    assert Statement.model_validate_json(statement.model_dump_json()) == statement
    assert statement.remaining_epsilon is None  # of a budget that has no bound to hold
    unbounded = [line.epsilon["server"] is None for line in statement.lines]
    assert unbounded == [True, False, False, True]


def test_what_is_spent_twice_is_spent_once() -> None:
    entry = LedgerEntry(name="levels", event=TRIE)
    spent = Ledger(budget=BUDGET).spend(entry)
    assert spent.spend(entry) is spent
    with pytest.raises(ValueError, match="is the name of another entry"):
        spent.spend(LedgerEntry(name="levels", event=LOCAL))
    with pytest.raises(ValidationError, match="have the same name"):
        Ledger(entries=(entry, entry))


def test_the_statement_has_the_rest_of_the_budget() -> None:
    spent = Ledger(budget=BUDGET).spend(LedgerEntry(name="levels", event=TRIE))
    assert spent.statement(1e-6).remaining_epsilon == pytest.approx(0.0043, abs=0.001)


@pytest.mark.parametrize(
    ("asked", "party", "fields"),
    [
        (TRIE, "public", {"releases", "probability", "threshold"}),
        (NOISE, "server", {"releases", "variance"}),
        (LocalReportsEvent(epsilon=0.3, releases=3), "analyst", {"releases", "epsilon"}),
    ],
)
def test_a_refusal_suggests_parameters_that_meet_the_budget(
    asked: DpEvent, party: Party, fields: set[str]
) -> None:
    budget = Budget(epsilon=0.7, delta=1e-6, party=party)
    start = Ledger(budget=budget).spend(
        LedgerEntry(name="before", event=SkellamNoiseEvent(variance=2000.0))
    )
    with pytest.raises(BudgetError, match="would keep it") as refused:
        start.spend(LedgerEntry(name="more", event=asked))
    changed = set()
    for remedy in refused.value.suggestions:
        after = start.spend(LedgerEntry(name="more", event=remedy))  # so it is within the budget
        assert after.epsilon(1e-6, party) <= 0.7  # type: ignore[operator]
        before, now = asked.model_dump(), remedy.model_dump()
        changed |= {name for name in now if now[name] != before[name]}
        TypeAdapter(DpEvent).validate_python(now)
    assert changed == fields


@pytest.mark.parametrize(
    ("budget", "event", "why"),
    [
        (BUDGET, ExactSumEvent(releases=4), r"without bound.*no event of this kind"),
        (Budget(epsilon=10.0, delta=1e-3, party="server"), TRIE, "no event of this kind"),
        (BUDGET.model_copy(update={"relation": "replace-one"}), NOISE, r"1\.\d+, .*replace-one"),
    ],
)
def test_what_meets_no_budget_is_refused(budget: Budget, event: DpEvent, why: str) -> None:
    with pytest.raises(BudgetError, match=why):
        Ledger(budget=budget).spend(LedgerEntry(name="more", event=event))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "sample-threshold", "probability": 1.0, "threshold": 5},
        {"kind": "sample-threshold", "probability": 0.1, "threshold": 0},
        {"kind": "noise", "variance": 0.0},
        {"kind": "noise", "variance": float("inf")},
        {"kind": "local", "epsilon": 0.0},
        {"kind": "local", "epsilon": 1.0, "releases": 0},
        {"kind": "hope"},
    ],
)
def test_mechanisms_out_of_range_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        LedgerEntry.model_validate({"name": "bad", "event": fields})


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("probability", "threshold", "releases"),
    [(0.9, 1, 20), (0.5, 1, 256), (0.1, 1, 4096), (0.3, 2, 4096), (1 - 2.0**-53, 2, 1)],
)
def test_what_hides_nobody_has_no_bound(
    probability: float, threshold: int, releases: int, relation: NeighbourRelation
) -> None:
    """No probability is left that a vote stays below theta, so there are no losses to compose."""
    shown = SampleThresholdEvent(probability=probability, threshold=threshold, releases=releases)
    spent = ledger(shown, TRIE)
    assert spent.epsilon(1e-6, "public", relation) is None
    assert spent.epsilon(0.5, "public", relation) is None


def test_probabilities_of_a_total_loss_add_up() -> None:
    """Half of all releases hide nothing: 35 leave 3e-11, which a delta of nearly 1 may spend."""
    kept = compose([(bounded_loss(0.1, 0.5), 35)])
    assert epsilon_of(kept, 1 - 2.9e-11) == pytest.approx(3.5, abs=0.01)
    assert epsilon_of(compose([(bounded_loss(0.1, 0.5), 45)]), 1 - 2.9e-11) == math.inf
