"""Rates over time over HTTP: by round, changes between rounds, and two studies compared."""

from collections.abc import Mapping
from typing import Any

import pytest

from protocol.api.messages import ProblemType
from protocol.api.rates import ItemChange, ItemChanges, RoundRates
from protocol.domains.hashed import Hashed
from protocol.estimation.estimates import Estimate, add_estimates
from protocol.mechanism import Answer
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import MECHANISMS, AnyQuestion, parse_question
from protocol.mechanisms.sampled_counts import record_round_counts
from protocol.study_state import add_devices
from server.api.answers.question_differences import question_differences
from server.db.repositories.leases import close_round_job
from server.db.repositories.rounds.rounds import ClosedRound
from tests.server.harness import Served, histogram_request, study_request

DEVICES = 100


async def play(
    served: Served, *rounds: dict[str, float] | None, t: float = 1, **request: Any
) -> str:
    """Return a study in whose rounds, of 100 devices each, items were sampled this often.

    A round of None was not read.
    """
    study = await served.create(rounds=len(rounds), **request)
    store = served.store
    for number, counts in enumerate(rounds, start=1):
        plan = (await served.show_round(study, number)).plan
        state = await store.answers.study_state(study)
        items = (counts or {}).items()
        estimates = [Estimate(item, t * count, t * count * (t - 1)) for item, count in items]
        state = add_estimates(state, estimates)
        spread = None if counts is None else t - 1
        state = add_devices(state, DEVICES, is_read=counts is not None)
        state = record_round_counts(plan, state, DEVICES, estimates, spread)
        answer = Answer(counts is not None, len(estimates), tuple(estimates), state)
        heavy = MECHANISMS[plan.mechanism].final_estimates(plan.question, state)
        outcome = ClosedRound("decoded" if counts else "undecoded", DEVICES, answer, tuple(heavy))
        following = plan.model_copy(update={"round": number + 1})
        lease = await store.leases.claim(close_round_job(study, number), "test", 60)
        await store.rounds.close(study, number, outcome, following, lease)
    return study


async def read(served: Served, path: str, status: int = 200, **params: Any) -> Any:
    response = await served.client.get(f"/v1/studies/{path}", params=params)
    assert response.status_code == status, response.text
    return response.json()


async def changes(served: Served, study: str, **params: Any) -> ItemChanges:
    return ItemChanges.model_validate(await read(served, f"{study}/changes", **params))


async def compare(served: Served, study: str, other: str, **params: Any) -> ItemChanges:
    path = f"{study}/compare/{other}"
    return ItemChanges.model_validate(await read(served, path, **params))


def kinds(document: ItemChanges) -> dict[str, str | None]:
    return {row.item: row.change for row in document.changes}


def only(document: ItemChanges, item: str) -> ItemChange:
    (row,) = (row for row in document.changes if row.item == item)
    return row


async def test_a_series_has_each_round_with_the_chance_of_which_devices_came(
    each_served: Served,
) -> None:
    study = await play(each_served, {"a": 20, "b": 9}, None, {"b": 9})
    body = await read(each_served, f"{study}/series", item=["b", "a", "b"])
    rows = RoundRates.model_validate(body).rates
    assert [(row.item, row.first_round, row.last_round) for row in rows] == [
        (item, number, number) for item in "ba" for number in (1, 2, 3)
    ]
    assert [row.rate for row in rows] == [90, None, 90, 200, None, 0]
    assert [row.how for row in rows] == 2 * ["counted", "not read", "counted"]
    assert {row.devices for row in rows} == {100}
    first, unread, *_, last = rows
    assert (first.low, first.high) == (pytest.approx(41, abs=1), pytest.approx(171, abs=1))
    assert (unread.low, unread.high) == (None, None)
    assert (last.low, last.high) == (0, pytest.approx(36.9, abs=0.1))


async def test_sampled_counts_have_wider_intervals(served: Served) -> None:
    rows = []
    for t, count in ((1, 20.0), (4, 5.0)):
        study = await play(served, {"a": count}, {"a": count}, t=t)
        page = RoundRates.model_validate(await read(served, f"{study}/series", item="a"))
        rows.append(page.rates[0])
    counted, sampled = rows
    assert (counted.how, sampled.how) == ("counted", "sampled")
    assert counted.rate == sampled.rate == 200
    assert None not in (counted.high, sampled.high)
    assert (counted.high or 0) < (sampled.high or 0)


async def test_only_published_items_have_a_series(served: Served) -> None:
    """The threshold is 4: the other item is in the study state all the same."""
    study = await play(served, {"a": 20, "b": 1})
    for item in ("b", "never", "\0"):
        problem = await read(served, f"{study}/series", 404, item=["a", item])
        assert "heavy hitter" in problem["detail"]


async def test_a_request_has_between_1_and_100_items(served: Served) -> None:
    study = await play(served, {"a": 20})
    for items in ([], ["a"] * 101, ["a" * 4097]):
        await read(served, f"{study}/series", 422, item=items)
    await read(served, f"{study}/series", item=["a"] * 100)


async def test_changes_compare_the_halves_and_are_ordered_by_p_value(each_served: Served) -> None:
    early = {"up": 10.0, "down": 60.0, "gone": 30.0, "same": 20.0}
    late = {"up": 40.0, "down": 15.0, "new": 40.0, "same": 21.0}
    study = await play(each_served, early, early, late, late)
    document = await changes(each_served, study)
    assert kinds(document) == {"up": "rising", "down": "falling", "gone": "gone", "new": "new"}
    assert (document.before, document.after) == ((1, 2), (3, 4))
    assert (document.tested, document.changed) == (5, 4)
    assert document.interval_level == pytest.approx(1 - 0.05 * 4 / 5)
    assert [row.p_value for row in document.changes] == sorted(
        row.p_value for row in document.changes
    )
    up, new = only(document, "up"), only(document, "new")
    assert (up.rate_before, up.rate_after, up.factor) == (100, 400, 4)
    assert 1 < up.factor_low < 4 < (up.factor_high or 0)
    assert (new.rate_before, new.low_before, new.factor, new.factor_high) == (0, 0, None, None)
    assert new.factor_low > 1
    assert len((await changes(each_served, study, limit=1)).changes) == 1


async def test_rounds_can_be_named(served: Served) -> None:
    low, high = {"a": 10.0, "b": 20.0}, {"a": 60.0, "b": 20.0}
    study = await play(served, low, low, high, high)
    document = await changes(served, study, before="3-3", after="2-2")
    assert kinds(document) == {"a": "falling"}
    assert (document.before, document.after) == ((3, 3), (2, 2))
    bad: tuple[dict[str, str], ...] = (
        {"before": "1-2"},
        {"before": "1-2", "after": "2-3"},
        {"before": "2-1", "after": "3-4"},
        {"before": "0-1", "after": "3-4"},
        {"before": "x", "after": "3-4"},
        {"before": "1-2", "after": "7-9"},
    )
    for params in bad:
        await read(served, f"{study}/changes", 422, **params)


async def test_a_lower_false_discovery_rate_reports_fewer_changes(served: Served) -> None:
    study = await play(served, {"a": 10, "b": 30}, {"a": 24, "b": 30})
    assert kinds(await changes(served, study, false_discovery_rate=0.2)) == {"a": "rising"}
    assert kinds(await changes(served, study, false_discovery_rate=0.001)) == {}
    for rate in (0, 1, -1, 2):
        await read(served, f"{study}/changes", 422, false_discovery_rate=rate)


async def test_two_studies_are_compared_and_unlisted_items_have_a_bound(
    each_served: Served,
) -> None:
    first = await play(each_served, {"ab": 30, "cd": 40, "gh": 5}, {"ab": 30, "cd": 40})
    second = await play(each_served, {"ab": 90, "ef": 50, "gh": 1})
    document = await compare(each_served, first, second)
    assert kinds(document) == {"ab": "rising", "cd": "gone", "ef": "new", "gh": None}
    assert (document.before, document.after, document.changed) == ((1, 2), (1, 1), 3)
    shared, own = only(document, "ab"), only(document, "cd")
    assert (shared.rate_before, shared.rate_after, shared.factor) == (300, 900, 3)
    assert (own.rate_before, own.rate_after, own.factor) == (400, None, None)
    assert (own.low_after, own.factor_low) == (0, 0)
    assert own.factor_high is not None
    assert 4 / 100 * 1000 < own.high_after < own.low_before
    assert own.factor_high < 1
    reverse = await compare(each_served, second, first)
    assert kinds(reverse) == {"ab": "falling", "cd": "new", "ef": "gone", "gh": None}


async def test_more_items_of_a_device_hide_no_change(served: Served) -> None:
    """Counts of 60 and 108 differ by 3.7 deviations."""
    for contribution in (1, 6):
        question = study_request()["question"] | {"threshold": 30, "contribution": contribution}
        first, second = [await play(served, {"ab": n}, question=question) for n in (60, 108)]
        assert only(await compare(served, first, second), "ab").change == "rising"


async def play_totals(
    served: Served, rounds: int, totals: Mapping[str, float], question: Any = None
) -> str:
    """Return a study, of `triehh` by default, with these totals of 120 devices in each round."""
    question = question or {
        "mechanism": "triehh", "threshold": 5, "contribution": 1, "message_bytes": 20_874,
        "epsilon": 1, "delta": 1e-6,
        "domain": {"kind": "alphabet", "characters": "abcd", "length": 2},
    }  # fmt: skip
    study = await served.create(rounds=rounds, question=question)
    heavy = tuple(Estimate(item, total, 9.0) for item, total in totals.items())
    for number in range(1, rounds + 1):
        plan = (await served.show_round(study, number)).plan
        answer = Answer(True, len(heavy), heavy, await served.store.answers.study_state(study))
        following = plan.model_copy(update={"round": number + 1})
        lease = await served.store.leases.claim(close_round_job(study, number), "test", 60)
        outcome = ClosedRound("decoded", 120, answer, heavy)
        await served.store.rounds.close(study, number, outcome, following, lease)
    return study


async def test_devices_that_take_part_in_every_round_are_counted_once(served: Served) -> None:
    short, long = [await play_totals(served, rounds, {"ab": 90}) for rounds in (1, 2)]
    row = only(await compare(served, short, long), "ab")
    assert row.rate_before == row.rate_after == 750


async def test_the_bound_of_an_unlisted_item_is_that_of_privacy(served: Served) -> None:
    """The threshold is 5, and only what nearly all of the devices hold gets enough votes."""
    listed, empty = [await play_totals(served, 2, totals) for totals in ({"ab": 60}, {})]
    document = await compare(served, listed, empty)
    assert kinds(document) in ({}, {"ab": None})  # no bound, or one above the total


async def test_an_item_is_compared_with_its_key_in_the_other_study(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AdaptiveIbltQuestion, "fetches_strings", True)
    domain = Hashed(max_bytes=10, salt="x")
    question = study_request()["question"] | {"mechanism": "tracked", "domain": domain.model_dump()}
    key, other = domain.name("ab"), domain.name("gh")
    first = await play_totals(served, 1, {key: 30, "#cats": 30, other: 9}, question)
    second = await play_totals(served, 1, {"ab": 30, "#cats": 90}, question)
    for before, after in ((first, second), (second, first)):
        change = "rising" if before == first else "falling"
        assert kinds(await compare(served, before, after)) == {"ab": None, "#cats": change}


async def test_a_study_of_which_nothing_was_read_is_not_compared(served: Served) -> None:
    played, unread = await play(served, {"ab": 30}), await play(served, None, None)
    for path in (f"{played}/compare/{unread}", f"{unread}/compare/{played}"):
        assert "could be read" in (await read(served, path, 409))["detail"]


async def test_a_comparison_of_different_questions_states_in_what_they_differ(
    served: Served,
) -> None:
    first, same = await play(served, {"ab": 30}), await play(served, {"ab": 30})
    assert (await compare(served, first, same)).differences == ()
    question = study_request()["question"]
    other = await play(
        served,
        {"ab": 30},
        question=question | {"contribution": 5, "domain": {"kind": "utf8", "max_bytes": 7}},
    )
    assert (await compare(served, first, other)).differences == (
        "the items: texts of up to 3 bytes, then texts of up to 7 bytes",
        "the largest number of items that a device gives: 2, then 5",
    )


def test_differences_are_those_that_change_what_a_rate_means() -> None:
    def question(domain: dict[str, object], **fields: object) -> AnyQuestion:
        usual = {"mechanism": "tracked", "threshold": 9, "contribution": 1, "message_bytes": 10_874}
        return parse_question(usual | {"domain": domain} | fields)

    utf8, hashed = {"kind": "utf8", "max_bytes": 9}, {"kind": "hashed", "max_bytes": 9}
    plain = question(utf8)
    for alike in (
        question(utf8, threshold=20, message_bytes=18_874),
        question(hashed),
        question(hashed | {"salt": "s", "key_bits": 48}),
    ):
        assert not list(question_differences(plain, alike))
    letters = {"kind": "alphabet", "length": 3}
    first, second = (question(letters | {"characters": each}) for each in ("ab", "cd"))
    assert list(question_differences(first, second)) == [
        "the items: strings of 3 characters from ab, then strings of 3 characters from cd"
    ]
    (mechanism,) = question_differences(plain, question(utf8, mechanism="adaptive-iblt"))
    assert mechanism == "the mechanism: tracked, then adaptive-iblt"
    trie = {"mechanism": "triehh", "threshold": 1, "domain": letters | {"characters": "ab"}}
    trie |= {"epsilon": 1, "delta": 1e-6, "message_bytes": 1074, "contribution": 1}
    asked = list(question_differences(first, parse_question(trie)))
    assert asked[-1] == "the rounds in which a device takes part: one round, then every round"


async def test_a_study_without_rates_is_refused_with_the_reason(served: Served) -> None:
    played = await play(served, {"a": 20})
    other = await play(served, {"a": 20})
    waiting = await served.create(start=False)
    histogram = await served.create(**histogram_request(), start=False)
    for path, status, reason in (
        (f"{played}/changes", 409, "two rounds"),
        (f"{waiting}/changes", 409, "no round has a sum"),
        (f"{waiting}/compare/{played}", 409, "has a sum yet"),
        (f"{histogram}/changes", 409, "totals only"),
        (f"{played}/compare/{played}", 422, "with itself"),
        (f"{played}/compare/nobody", 404, "no such study"),
        (f"{played}/compare/no-id", 422, ""),
        ("nobody/changes", 404, "no such study"),
    ):
        assert reason in (await read(served, path, status))["detail"], path
    assert (await compare(served, played, other)).changed == 0


async def test_rates_of_hidden_sizes_are_refused(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, other = await play(served, {"a": 20}, {"a": 20}), await play(served, {"a": 20})
    question = "protocol.mechanisms.iblt.adaptive.AdaptiveIbltQuestion.hides_device_counts"
    monkeypatch.setattr(question, property(lambda _: True))
    for path in (f"{study}/changes", f"{study}/series?item=a", f"{study}/compare/{other}"):
        response = await served.client.get(f"/v1/studies/{path}")
        assert response.status_code == 409
        assert response.json()["type"].endswith(ProblemType.WRONG_STATE)
        assert "how many devices joined" in response.json()["detail"]
