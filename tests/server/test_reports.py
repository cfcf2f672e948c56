"""Locally private reports through the service: once per device, aggregated, and read at the end."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import httpx
import numpy as np
import psycopg
import pytest
from sqlalchemy import select

from protocol.api.messages import RoundView
from protocol.api.messages_outside_sums import SignedReport
from protocol.mechanisms.registry import REPORT_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.randomness import seeded_words
from protocol.report_mechanism import REPORTS_SCOPE
from protocol.study_state import EMPTY_STATE
from secagg.keys import Identity
from secagg.session import Registry
from server.db.repositories.messages.device_spending import ReportCost
from server.db.schema import DeviceSpendingRow
from server.errors import ProblemError
from server.rounds.decoding import decode_reports
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served

ITEMS = [f"word {number}" for number in range(600)]
QUESTION = {
    "mechanism": "ocms",
    "threshold": 20,
    "domain": {"kind": "listed", "items": ITEMS},
    "epsilon": 6.0,
    "goal": "worst-mse",
}
TERMS = {"cohort_size": 60, "minimum": 10, "corrupt": 0.1, "dropout": 0.3}


async def create(served: Served) -> tuple[str, RoundView]:
    """Return a study of reports, and its open round."""
    study = await served.create(question=QUESTION, terms=TERMS)
    return study, await served.open_round(study)


def identity(number: int) -> Identity:
    return Identity.of(number.to_bytes(32, "big"))


def report(view: RoundView, number: int, item: str = "word 1", **changes: Any) -> SignedReport:
    plan = view.plan
    chance = seeded_words(np.random.default_rng(number))
    body = REPORT_MECHANISMS[plan.mechanism].encode(plan, [{item: 1}], chance).tobytes()
    signed = SignedReport.sign(identity(number), plan.digest(), changes.pop("body", body), b"")
    assert not changes
    return signed


async def put(
    served: Served,
    study: str,
    signed: SignedReport,
    *,
    number: int = 1,
    packed: bytes | None = None,
) -> httpx.Response:
    path = f"/v1/studies/{study}/rounds/{number}/reports/{signed.identity.hex()}"
    return await served.client.put(
        path,
        content=signed.pack() if packed is None else packed,
        headers={"content-type": "application/octet-stream"},
    )


LINEAR = {"goal": None, "epsilon": 15.0, "noise": "pure"}
OPTIONS: dict[str, dict[str, Any]] = {  # options of questions that do not use an oracle
    "jl-hh": {"goal": None, "epsilon": 8.0, "rows": 64},
    "glps-hh": LINEAR | {"buckets": 2, "repetitions": 1},
    "bucket-hh": LINEAR | {"beta": 0.9},
    "prefix-extension": {
        "goal": None,
        "domain": {"kind": "utf8", "max_bytes": 7},
        "epsilon": 6.0,
        "oracle": "ocms-gf",
        "hashed_bits": 20,
        "start": 16,
        "candidates_per_length": 8,
    },
}


def question_of(mechanism: str) -> dict[str, Any]:
    """Return a question of a report mechanism about `ITEMS`, or about all short strings."""
    question = QUESTION | {"mechanism": mechanism} | OPTIONS.get(mechanism, {})
    return {name: value for name, value in question.items() if value is not None}


async def test_a_report_of_each_mechanism_is_accepted(served: Served) -> None:
    for device, mechanism in enumerate(sorted(REPORT_MECHANISMS)):
        study = await served.create(question=question_of(mechanism), terms=TERMS, rounds=1)
        signed = report(await served.open_round(study), device)
        response = await put(served, study, signed)
        assert response.status_code == 204, response.text


@pytest.mark.parametrize("mechanism", ["jl-hh", "ocms", "prefix-extension"])
async def test_a_mechanism_of_each_kind_finds_what_most_devices_hold(
    served: Served, mechanism: str
) -> None:
    """Five in six of the devices hold one item, which is found among 599 or 2^56."""
    devices = 240 if mechanism == "prefix-extension" else 60  # so that some 40 report each length
    terms, holders = TERMS | {"cohort_size": devices}, devices * 5 // 6
    study = await served.create(question=question_of(mechanism), terms=terms, rounds=1)
    view = await served.open_round(study)
    for number in range(devices):
        item = "word 7" if number < holders else ITEMS[50 + number % 10]
        response = await put(served, study, report(view, number, item))
        assert response.status_code == 204, response.text
    view = await served.until_closed(study)
    assert (view.state, view.participants) == ("decoded", devices)
    heavy_hitters = await served.heavy_hitters(study)
    first = heavy_hitters[0]
    assert first.item == "word 7"
    assert first.estimate == pytest.approx(holders, abs=5 * first.standard_error)
    for hitter in heavy_hitters:  # normal, and cut to possible counts only
        ends = hitter.estimate + 1.96 * hitter.standard_error * np.array([-1, 1])
        ends = np.clip(ends, 0, devices)
        assert (hitter.low, hitter.high) == pytest.approx(tuple(ends), rel=1e-3, abs=1e-3)
    assert (await served.client.get(f"/v1/studies/{study}")).json()["state"] == "finished"


async def test_a_repeated_report_counts_once_and_another_one_is_refused(served: Served) -> None:
    study, view = await create(served)
    signed = report(view, 1)
    answers = await asyncio.gather(*(put(served, study, signed) for _ in range(8)))
    assert {answer.status_code for answer in (*answers, await put(served, study, signed))} == {204}
    other = report(view, 1, body=bytes(len(signed.body)))
    refused(await put(served, study, other), 409, "conflict")
    assert (await served.show_round(study)).cohorts[0].enrolled == 1


async def test_a_device_reports_once_per_study_in_any_round(served: Served) -> None:
    study = await served.create(question=QUESTION, terms=TERMS | {"cohort_size": 10}, rounds=2)
    view = await served.open_round(study)
    for number in range(10):
        await put(served, study, report(view, number))
    await served.until_closed(study)
    view = await served.open_round(study, after=1)
    refused(await put(served, study, report(view, 3), number=2), 409, "already-counted")
    refused(await put(served, study, report(await served.show_round(study), 11)), 409, "no-round")


async def epsilon_spent(served: Served, device: int) -> float | None:
    """Return the epsilon that the device has spent in all studies, None if it has no row."""
    query = select(DeviceSpendingRow.epsilon)
    query = query.where(DeviceSpendingRow.identity == identity(device).public.hex())
    database = served.store.database
    epsilon: float | None = await database.read(lambda session: session.scalar(query))
    return epsilon


async def test_a_device_cannot_spend_more_in_many_studies_at_once(each_served: Served) -> None:
    studies = [await each_served.create(question=QUESTION, terms=TERMS) for _ in range(6)]
    views = [await each_served.open_round(study) for study in studies]
    for device in range(4):
        pairs = zip(studies, views, strict=True)
        answers = await asyncio.gather(*(put(each_served, s, report(v, device)) for s, v in pairs))
        refusals = [answer for answer in answers if answer.status_code != 204]
        assert len(refusals) == 4
        for answer in refusals:
            assert "has spent epsilon 12 of 16" in refused(answer, 409, "budget-spent")
        assert await epsilon_spent(each_served, device) == 12


async def test_reports_that_arrive_together_share_a_transaction(
    each_served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is accepted or refused as if it were alone."""
    full = await each_served.create(question=QUESTION, terms=TERMS | {"cohort_size": 10})
    study, view = await create(each_served)
    full_view = await each_served.open_round(full)
    twice = report(view, 1)
    assert (await put(each_served, study, twice)).status_code == 204
    database, writes = each_served.store.database, []
    write = database.write

    async def count(change: Any) -> Any:
        writes.append(change)
        return await write(change)

    monkeypatch.setattr(database, "write", count)
    other = report(view, 2, body=bytes(len(twice.body)))
    sent = [(study, report(view, device)) for device in range(2, 30)]
    sent += [(full, report(full_view, device)) for device in range(20, 31)]
    sent += [(study, twice), (study, other), (study, report(view, 30)), (study, report(view, 30))]
    answers = await asyncio.gather(*(put(each_served, *each) for each in sent))
    assert len(writes) < 10
    assert [answer.status_code for answer in answers] == [204] * 38 + [409, 204, 409, 204, 204]
    refused(answers[38], 409, "no-round")
    refused(answers[40], 409, "conflict")
    assert (await each_served.show_round(study)).cohorts[0].enrolled == 30
    assert (await each_served.show_round(full)).cohorts[0].enrolled == 10
    spent = [await epsilon_spent(each_served, device) for device in (1, 20, 29, 30)]
    assert spent == [6, 12, 12, 6]


async def test_a_refused_report_stores_nothing(serve: Serve, database_url: str) -> None:
    async with serve(database_url) as served:
        study, view = await create(served)
    async with serve(database_url, max_device_epsilon=5) as served:
        answers = await asyncio.gather(*(put(served, study, report(view, n)) for n in range(3)))
        for answer in answers:
            refused(answer, 409, "budget-spent")
        assert await epsilon_spent(served, 0) is None
        assert (await served.show_round(study)).cohorts[0].enrolled == 0


async def test_reports_that_wait_for_their_commit_at_the_deadline_are_in_time(
    serve: Serve, sqlite_url: str
) -> None:
    """Without them the round has too few; they wait behind a report of another study."""
    async with serve(sqlite_url, poll_seconds=60, min_poll_seconds=0) as served:
        study = await served.create(question=QUESTION, terms=TERMS, timeouts={"reporting": 60})
        other, other_view = await create(served)
        view = await served.open_round(study)
        own = (put(served, study, report(view, n)) for n in range(10))
        first = put(served, other, report(other_view, 50))
        assert await served.put_while_blocked(first, own, 61) == {204}
        assert (await served.until_closed(study)).participants == 10


async def test_reports_of_two_servers_to_two_studies_do_not_deadlock(
    serve: Serve, postgres_url: str
) -> None:
    """Each server receives the reports of the same devices to one study, in opposite orders."""
    async with serve(postgres_url) as first, serve(postgres_url) as second:
        studies = [(each, await create(each)) for each in (first, second)]
        for start in range(0, 50, 10):
            devices = range(start, start + 10)
            with psycopg.connect(postgres_url) as connection:
                connection.execute("SELECT 1 FROM cohorts FOR UPDATE")
                sent = [
                    asyncio.create_task(put(served, study, report(view, device)))
                    for served, (study, view) in studies
                    for device in (devices if served is first else reversed(devices))
                ]
                await asyncio.sleep(0.3)  # all reports wait for their cohort
            answers = await asyncio.gather(*sent)
            assert {answer.status_code for answer in answers} == {204}
        for served, (study, _) in studies:
            errors = served.store.database.metrics.database_errors.collect()[0].samples
            assert {sample.labels["error"] for sample in errors} <= {"IntegrityError"}
            assert (await served.show_round(study)).cohorts[0].enrolled == 50
        assert {await epsilon_spent(first, device) for device in range(50)} == {12}


@pytest.mark.parametrize("spent", [(16.0, 0.0), (0.0, 1e-3), (float("nan"), 0.0)])
def test_a_charge_beyond_either_budget_is_refused(spent: tuple[float, float]) -> None:
    charge = ReportCost(epsilon=1.0, delta=1e-5, max_epsilon=16.0, max_delta=1e-3)
    charge.check(15.0, 9.9e-4)
    with pytest.raises(ProblemError, match="more is too much"):
        charge.check(*spent)


async def test_an_identity_of_low_order_proves_nothing(served: Served) -> None:
    study, view = await create(served)
    good, weak = report(view, 1), (1).to_bytes(32, "little")
    forged = SignedReport(weak, good.plan_digest, good.body, weak + bytes(32))
    assert "low order" in refused(await put(served, study, forged), 422, "malformed")


async def test_malformed_reports_are_refused_and_change_nothing(served: Served) -> None:
    study = await served.create(question=QUESTION, terms=TERMS, rounds=1)
    other = await served.create(question=QUESTION | {"epsilon": 5.0}, terms=TERMS, rounds=1)
    view, signed = await served.open_round(study), report(await served.open_round(study), 1)
    for packed in (b"", signed.pack()[:-1], signed.pack() + b"\0"):
        refused(await put(served, study, signed, packed=packed), 422, "malformed")
    last = signed.pack()[-1] ^ 1
    spoiled = await put(served, study, signed, packed=signed.pack()[:-1] + bytes([last]))
    assert "signature is not this identity's signature" in spoiled.json()["detail"]
    refused(await put(served, other, signed), 409, "plan-mismatch")
    refused(
        await put(served, study, report(view, 1, body=b"\xff" * len(signed.body))), 422, "malformed"
    )
    assert (await served.show_round(study)).cohorts[0].enrolled == 0


async def test_a_round_that_sums_takes_no_reports_and_the_other_way_round(served: Served) -> None:
    study, sums = await served.create(question=QUESTION, terms=TERMS), await served.create()
    signed = report(await served.open_round(study), 1)
    refused(await put(served, sums, signed), 409, "wrong-state")
    with pytest.raises(AssertionError, match="no-round"):
        await served.join(study, 1)


async def test_too_few_reports_fail_the_round_and_reveal_nothing(served: Served) -> None:
    timeouts = {"reporting": 100}
    study = await served.create(question=QUESTION, terms=TERMS, timeouts=timeouts, rounds=2)
    view = await served.open_round(study)
    for number in range(9):
        await put(served, study, report(view, number))
    served.clock.advance(101)
    view = await served.until_closed(study)
    assert (view.state, view.cohorts[0].phase) == ("failed", "failed")
    assert "9 of 60 reported in time, where 10 are needed" in str(view.cohorts[0].failure)
    view = await served.open_round(study, after=1)
    for number in range(20, 30):
        await put(served, study, report(view, number), number=2)
    served.clock.advance(101)
    assert (await served.until_closed(study, 2)).participants == 10


async def test_reports_survive_a_restart(serve: Serve, database_url: str) -> None:
    async with serve(database_url) as served:
        study, view = await create(served)
        for number in range(30):
            await put(served, study, report(view, number))
    async with serve(database_url) as served:
        for number in range(25, 60):
            assert (await put(served, study, report(view, number))).status_code == 204
        assert (await served.until_closed(study)).participants == 60


async def test_only_devices_of_the_registrar_report(served: Served) -> None:
    registrar = identity(1000)
    terms = TERMS | {"registrar": registrar.public.hex()}
    study = await served.create(question=QUESTION, terms=terms, rounds=1)
    plan = (await served.open_round(study)).plan
    body = (
        REPORT_MECHANISMS["ocms"]
        .encode(plan, [{}], seeded_words(np.random.default_rng(1)))
        .tobytes()
    )
    registry = Registry(registrar.public, REPORTS_SCOPE)
    enrolment = registrar.sign(registry.enrolment_statement(identity(1).public))
    assert await put(served, study, SignedReport.sign(identity(1), plan.digest(), body, enrolment))
    stranger = SignedReport.sign(identity(2), plan.digest(), body, enrolment)
    refused(await put(served, study, stranger), 403, "not-enrolled")


async def test_reports_are_joined_to_batches_of_any_size(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, view = await create(served)
    reports = [report(view, number) for number in range(7)]
    for signed in reports:
        assert (await put(served, study, signed)).status_code == 204
    in_order = sorted(reports, key=lambda signed: signed.identity.hex())
    nbytes = len(reports[0].body)
    for rows, most, batches in (
        (8192, 100, [7]),
        (8192, 3, [3, 3, 1]),
        (2, 100, [7]),
        (2, 5, [4, 3]),
        (2, 1, [1] * 7),
    ):
        monkeypatch.setattr("server.db.repositories.messages.reports._REPORTS_PER_QUERY", rows)
        kept = served.store.reports.bodies(study, 1, nbytes, most)
        batches_read = [batch async for batch in kept]
        assert [len(batch) // nbytes for batch in batches_read] == batches
        assert b"".join(batches_read) == b"".join(signed.body for signed in in_order)


class Arriving:
    """Reports of `most` bytes a batch, made when they are asked for."""

    def __init__(self, plan: Any, reports: int, batches: int) -> None:
        self.made = [
            REPORT_MECHANISMS[plan.mechanism].encode(
                plan, [{"item 7": 1}] * reports, seeded_words(np.random.default_rng(number))
            )
            for number in range(2)
        ]
        self.batches = batches

    async def bodies(self, study: str, number: int, nbytes: int, most: int) -> AsyncIterator[bytes]:
        assert most == 8192
        assert (study, number) == ("streams", 1)
        assert nbytes == self.made[0].shape[1]
        for batch in range(self.batches):
            yield self.made[batch % 2].tobytes()


async def test_a_round_of_large_reports_is_read_batch_by_batch() -> None:
    """40 batches of 1.25 MB, 50 MB in all: no more than a few of them are in memory."""
    items = tuple(f"item {number}" for number in range(100_000))
    question = parse_question(
        {"mechanism": "subset-selection", "threshold": 20, "epsilon": 4.0}
        | {"domain": {"kind": "listed", "items": items}}
    )
    mechanism, terms = REPORT_MECHANISMS["subset-selection"], Terms.model_validate(TERMS)
    plan = mechanism.first_plan(question, terms, "streams", 1, Random(1))
    assert mechanism.nbytes(plan) == 12_501
    arriving: Any = Arriving(plan, 100, 40)
    await decode_reports(arriving, "streams", plan, EMPTY_STATE)  # caches are made
    tracemalloc.start()
    outcome = await decode_reports(arriving, "streams", plan, EMPTY_STATE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (outcome.state, outcome.participants) == ("decoded", 4000)
    assert outcome.heavy_hitters[0].item == "item 7"
    assert peak < 35 * 2**20
