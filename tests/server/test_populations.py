"""Budgets of populations: spent by the row that begins a study, once, and by nobody else."""

import asyncio
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from protocol.api.phases import Phase
from protocol.privacy.ledger import Statement
from server.db.repositories.studies.populations import EXACT_SUM_PERIOD
from server.db.schema import CohortRow
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.harness import Served, study_request

BUDGET = {"epsilon": 1.5, "delta": 1e-5, "party": "server"}
QUESTION = {
    "mechanism": "triehh",
    "threshold": 10,
    "contribution": 1,
    "domain": {"kind": "utf8", "max_bytes": 3},
    "message_bytes": 18_874,
    "epsilon": 1.2,
    "delta": 1e-5,
    "mode": "noise",
}


async def make(served: Served, name: str = "phones", **budget: Any) -> httpx.Response:
    path = f"/v1/populations/{name}"
    return await served.client.put(path, json={"budget": BUDGET | budget})


async def ask(served: Served, **changes: Any) -> httpx.Response:
    asked = {"question": QUESTION, "rounds": 3, "population": "phones"} | changes
    return await served.client.post("/v1/studies", json=study_request(**asked))


async def statement_of(
    served: Served, path: str = "populations/phones", **params: Any
) -> Statement:
    answer = await served.client.get(f"/v1/{path}/privacy", params=params)
    assert answer.status_code == 200, answer.text
    return Statement.model_validate_json(answer.content)


def spent(statement: Statement, party: str = "server") -> float | None:
    return next(loss.epsilon for loss in statement.parties if loss.party == party)


async def test_a_budget_never_changes(served: Served) -> None:
    assert (await make(served)).status_code == 201
    assert (await make(served)).status_code == 200  # a repetition has no effect
    refused(await make(served, epsilon=3.0), 409, "conflict")
    listed = (await served.client.get("/v1/populations")).json()["populations"]
    assert [(population["name"], population["budget"]["epsilon"]) for population in listed] == [
        ("phones", 1.5)
    ]


async def test_an_invalid_population_is_refused(served: Served) -> None:
    for name, budget in (
        ("Phones", {}),
        ("a" * 65, {}),
        ("phones", {"epsilon": 0}),
        ("phones", {"epsilon": "nan"}),
        ("phones", {"delta": 1e-12}),
        ("phones", {"party": "nobody"}),
    ):
        refused(await make(served, name, **budget), 422, "malformed")
        assert (await served.client.get("/v1/populations")).json()["populations"] == []


async def test_studies_spend_until_nothing_is_left(serve: Serve, sqlite_url: str) -> None:
    async with serve(sqlite_url) as served:
        await make(served)
        assert spent(await statement_of(served)) == 0
        first = await ask(served)
        assert first.status_code == 201, first.text
        statement = await statement_of(served)
        assert spent(statement) == pytest.approx(1.2, abs=0.01)
        assert statement.remaining_epsilon == pytest.approx(0.3, abs=0.01)
        detail = refused(await ask(served), 409, "budget-spent")
        assert "above 1.5" in detail
        assert "variance" in detail  # the parameter that would fit
        assert len((await served.client.get("/v1/studies")).json()["studies"]) == 1
        rest = await ask(served, question=QUESTION | {"epsilon": 0.5})
        assert rest.status_code == 201, rest.text
        assert 1.2 < (spent(await statement_of(served)) or 9) <= 1.5
        before = await statement_of(served)
    async with serve(sqlite_url) as again:  # a server that starts over knows the same
        assert await statement_of(again) == before
        assert len(before.lines) == 2


async def test_a_study_spends_when_it_begins_and_only_once(served: Served) -> None:
    await make(served)
    population, other = [(await ask(served, start=False)).json()["id"] for _ in range(2)]
    assert spent(await statement_of(served)) == 0
    for _ in range(2):
        assert (await served.client.post(f"/v1/studies/{population}/start")).status_code == 200
    assert spent(await statement_of(served)) == pytest.approx(1.2, abs=0.01)
    refused(await served.client.post(f"/v1/studies/{other}/start"), 409, "budget-spent")
    assert (await served.client.get(f"/v1/studies/{other}")).json()["state"] == "created"


async def test_of_studies_that_begin_at_once_only_what_fits_does(each_served: Served) -> None:
    await make(each_served)
    answers = await asyncio.gather(*(ask(each_served) for _ in range(3)))
    assert sorted(answer.status_code for answer in answers) == [201, 409, 409]
    assert spent(await statement_of(each_served)) == pytest.approx(1.2, abs=0.01)


async def test_a_study_that_is_stopped_pays_for_the_rounds_it_opened(served: Served) -> None:
    await make(served)
    study = (await ask(served)).json()["id"]
    whole = spent(await statement_of(served))
    await served.client.post(f"/v1/studies/{study}/stop")
    after = spent(await statement_of(served))
    assert whole is not None
    assert after is not None
    assert after < 0.75 * whole
    assert (await statement_of(served)).lines[0].entry.event.releases == 1


@pytest.mark.parametrize(
    ("changes", "party"),
    [
        ({"question": study_request()["question"]}, "public"),  # exact sums
        ({"question": QUESTION | {"mode": "sample-threshold"}}, "server"),
    ],
)
async def test_unbounded_loss_is_refused(
    served: Served, changes: dict[str, Any], party: str
) -> None:
    await make(served, party=party)
    assert "without bound" in refused(await ask(served, **changes), 409, "budget-spent")


EXACT_REQUEST = {"question": study_request()["question"]}  # each sum is opened as it is


async def test_a_population_has_exact_sums_of_one_study_at_a_time(served: Served) -> None:
    for name in ("phones", "cars"):
        made = await served.client.put(f"/v1/populations/{name}", json={})
        assert made.json()["budget"] is None
    first = (await ask(served, **EXACT_REQUEST)).json()["id"]
    refusal = refused(await ask(served, **EXACT_REQUEST), 409, "budget-spent")
    assert f"study {first} has exact sums of population phones" in refusal
    assert "may reveal one device" in refusal
    waiting = (await ask(served, **EXACT_REQUEST, start=False)).json()["id"]
    start = f"/v1/studies/{waiting}/start"
    refused(await served.client.post(start), 409, "budget-spent")
    assert (await served.client.get(f"/v1/studies/{waiting}")).json()["state"] == "created"
    for other in (EXACT_REQUEST | {"population": "cars"}, EXACT_REQUEST | {"population": None}, {}):
        assert (await ask(served, **other)).status_code == 201  # `{}` asks for noise
    await served.client.post(f"/v1/studies/{first}/stop")  # it has opened no sum
    assert (await served.client.post(start)).status_code == 200
    assert (await statement_of(served)).delta == 1e-6


async def stop_after_a_sum(served: Served) -> None:
    study = (await ask(served, **EXACT_REQUEST)).json()["id"]
    summed = update(CohortRow).where(CohortRow.study == study).values(phase=Phase.SUMMED)
    await served.store.database.write(lambda session: session.execute(summed))
    await served.client.post(f"/v1/studies/{study}/stop")


async def test_exact_sums_count_for_a_period_after_the_study(
    serve: Serve, database_url: str
) -> None:
    async with serve(database_url) as served:
        await served.client.put("/v1/populations/phones", json={})
        await stop_after_a_sum(served)
        refused(await ask(served, **EXACT_REQUEST), 409, "budget-spent")
        await served.client.put("/v1/populations/cars", json={})
        for _ in range(2):  # the first opened no sum
            answer = await ask(served, **EXACT_REQUEST | {"population": "cars"})
            assert answer.status_code == 201
            await served.client.post(f"/v1/studies/{answer.json()['id']}/stop")
    async with serve(database_url) as again:  # a server that starts over knows the same
        refused(await ask(again, **EXACT_REQUEST), 409, "budget-spent")
        await again.pass_days(EXACT_SUM_PERIOD.days)
        refused(await ask(again, **EXACT_REQUEST), 409, "budget-spent")
        await again.pass_days(2)
        assert (await ask(again, **EXACT_REQUEST)).status_code == 201


async def test_a_clock_that_jumps_ends_no_period_of_exact_sums(served: Served) -> None:
    await served.client.put("/v1/populations/phones", json={})
    await stop_after_a_sum(served)
    served.clock.advance(500 * EXACT_SUM_PERIOD.total_seconds())
    refused(await ask(served, **EXACT_REQUEST), 409, "budget-spent")


async def test_of_exact_studies_that_begin_at_once_one_does(each_served: Served) -> None:
    await each_served.client.put("/v1/populations/phones", json={})
    answers = await asyncio.gather(*(ask(each_served, **EXACT_REQUEST) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, *[409] * 3]


async def test_tables_are_for_studies_of_no_population(served: Served) -> None:
    await make(served, party="public")
    asked = QUESTION | {"mode": "sample-threshold", "vote_tables": True}
    assert "without vote tables" in refused(await ask(served, question=asked), 422, "malformed")


async def test_an_unknown_population_is_refused(served: Served) -> None:
    refused(await ask(served), 404, "not-found")
    refused(await served.client.get("/v1/populations/phones/privacy"), 404, "not-found")
    assert (await served.client.get("/v1/studies")).json()["studies"] == []


async def test_a_study_without_a_population_shows_its_loss(served: Served) -> None:
    study = (await ask(served, population=None)).json()["id"]
    statement = await statement_of(served, f"studies/{study}")
    assert statement.delta == 1e-5
    assert spent(statement) == pytest.approx(1.2, abs=0.01)
    assert statement.budget is None
    exact = await served.create()
    sights = (await statement_of(served, f"studies/{exact}", delta=1e-9)).parties
    assert {population.epsilon for population in sights} == {None}


async def test_a_stopped_histogram_pays_for_every_level_of_its_rounds(served: Served) -> None:
    await make(served)
    values = {"kind": "interval", "low": 0, "high": 1, "alpha": 4, "length": 5}
    question = QUESTION | {
        "mechanism": "hierarchical-histogram",
        "domain": values,
        "every_round": True,
    }
    study = (await ask(served, question=question)).json()["id"]
    await served.client.post(f"/v1/studies/{study}/stop")
    assert (await statement_of(served)).lines[0].entry.event.releases == 5


async def test_what_is_withheld_is_forgotten_when_its_study_is_stopped(served: Served) -> None:
    """One cohort has its sum, with counts below theta; the round waits for the other."""
    question = QUESTION | {"mode": "sample-threshold"}
    terms = study_request()["terms"] | {"cohorts": 2}
    study = (await ask(served, question=question, terms=terms, population=None)).json()["id"]
    database = served.store.database
    first = (CohortRow.study == study, CohortRow.number == 0)
    summed = update(CohortRow).where(*first).values(phase=Phase.SUMMED, sum=b"of single devices")
    await database.write(lambda session: session.execute(summed))
    sums = select(CohortRow.sum).where(CohortRow.study == study).order_by(CohortRow.number)
    assert (await database.read(lambda session: session.scalars(sums).all()))[0] is not None
    await served.client.post(f"/v1/studies/{study}/stop")
    assert await database.read(lambda session: session.scalars(sums).all()) == [None, None]


async def test_populations_are_listed_by_name_page_by_page(each_served: Served) -> None:
    for name in ("phones", "cars", "tv-sets", "1st", "books"):
        assert (await make(each_served, name)).status_code == 201
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = (await each_served.client.get("/v1/populations", params=params)).json()
        seen += [population["name"] for population in page["populations"]]
        if page["next"] is None:
            break
        params["after"] = page["next"]
    assert seen == ["1st", "books", "cars", "phones", "tv-sets"]
    for nonsense in ({"after": "No Name"}, {"after": ""}, {"limit": 101}):
        answer = await each_served.client.get("/v1/populations", params=nonsense)
        refused(answer, 422, "malformed")
