"""Studies over HTTP are created, listed, started, stopped, and refused with all faults."""

import json
import re
from typing import Any

import pytest

from protocol.api.messages import PROBLEM_TYPE_PREFIX, StudyPage, StudyView
from server import first_plan
from tests.server.cohort import refused
from tests.server.conftest import Serve
from tests.server.credentials import keyed
from tests.server.harness import Served, study_request


async def test_a_study_is_created_shown_started_once_and_stopped_once(each_served: Served) -> None:
    response = await each_served.client.post("/v1/studies", json=study_request(start=False))
    assert response.status_code == 201
    study = StudyView.model_validate_json(response.content)
    path = f"/v1/studies/{study.id}"
    assert response.headers["location"] == path
    assert (study.state, study.round) == ("created", 0)
    assert (await each_served.client.get(path)).json() == response.json()
    for _ in range(2):
        started = (await each_served.client.post(f"{path}/start")).json()
        assert (started["state"], started["round"]) == ("running", 1)
    for _ in range(2):
        stopped = await each_served.client.post(f"{path}/stop")
        assert stopped.json()["state"] == "stopped"
    view = await each_served.show_round(study.id)
    assert (view.state, view.cohorts[0].failure) == ("failed", "the study was stopped")
    again = await each_served.client.post(f"{path}/start")
    refused(again, 409, "wrong-state")


async def test_studies_are_listed_newest_first_page_by_page(each_served: Served) -> None:
    made = []
    for number in range(5):
        made.append(await each_served.create(name=f"study {number}", start=False))
        each_served.clock.advance(number % 2)  # some at the same instant
    seen: list[str] = []
    after = None
    while True:
        params: dict[str, Any] = {"limit": 2} | ({"after": after} if after else {})
        answer = await each_served.client.get("/v1/studies", params=params)
        page = StudyPage.model_validate_json(answer.content)
        seen += [study.id for study in page.studies]
        after = page.next
        if after is None:
            break
    assert sorted(seen) == sorted(made)
    assert seen[0] == made[4]
    for nonsense in ("nope", "%00", "a" * 65, "1;2"):
        answer = await each_served.client.get(f"/v1/studies?after={nonsense}")
        assert (answer.status_code, answer.json()["errors"][0]["location"]) == (422, "query.after")


async def test_studies_are_found_by_text_tag_owner_state_and_name(each_closed: Served) -> None:
    client, anna = each_closed.client, await keyed(each_closed)
    ids = {}
    listed = {"domain": {"kind": "listed", "items": ["Pêche", "nul \0\n#phones"]}}
    question = study_request()["question"] | listed
    for name, changes in {
        "New Words": {"tags": ["phones", "q3"]},
        "fruit 100%": {"question": question, "tags": ["phones-old"]},
        "stopped": {"start": True},
    }.items():
        request = study_request(**({"name": name, "start": False} | changes))
        answer = await client.post("/v1/studies", json=request, headers=anna)
        ids[answer.json()["id"]] = name
    stopped = await client.post(f"/v1/studies/{[*ids][2]}/stop", headers=anna)
    assert (stopped.json()["owner"], stopped.json()["tags"]) == ("test", [])
    for filters, names in (
        ({"search": "new w"}, ["New Words"]),
        ({"search": "PÊCHE"}, ["fruit 100%"]),
        ({"search": "0%"}, ["fruit 100%"]),
        ({"search": "nul \0"}, ["fruit 100%"]),
        ({"search": "utf8"}, ["stopped", "New Words"]),
        ({"tag": "phones"}, ["New Words"]),
        ({"state": "stopped"}, ["stopped"]),
        ({"state": "failed"}, []),
        ({"name": "New Words"}, ["New Words"]),
        ({"name": "New"}, []),
        ({"owner": "test", "state": "created", "search": "w"}, ["New Words"]),
        ({"owner": "tes"}, []),
    ):
        for path in ("/", "/v1/studies"):
            answer = await client.get(path, params=filters, headers=anna)
            listed_ids = re.findall(r'id="study-(\w+)"|"id":"(\w+)"', answer.text)
            assert sorted(ids["".join(each)] for each in listed_ids) == sorted(names), (
                path,
                filters,
            )
    wrong = await client.get("/v1/studies?state=over", headers=anna)
    assert wrong.json()["errors"][0]["location"] == "query.state"


@pytest.mark.parametrize("tags", [["A"], ["a b"], ["-a"], ["a" * 41], ["a"] * 11, [""]])
async def test_a_tag_is_short_and_of_plain_letters(served: Served, tags: list[str]) -> None:
    answer = await served.client.post("/v1/studies", json=study_request(tags=tags))
    assert answer.json()["errors"][0]["location"].startswith("body.tags")


async def test_an_unknown_study_is_not_found(served: Served) -> None:
    for study in ("0123456789abcdef", "a" * 65, "no%00thing", "ü"):
        for path in ("", "/start", "/stop", "/rounds", "/rounds/1", "/rounds/open"):
            method = "POST" if path in ("/start", "/stop") else "GET"
            response = await served.client.request(method, f"/v1/studies/{study}{path}")
            refused(response, 404, "not-found")


async def test_faults_of_fields_and_of_their_combination_are_listed_together(
    served: Served,
) -> None:
    """A sum that would wrap, an unknown field and a deadline in the past."""
    nonsense = study_request(surprise=1, timeouts={"masking": -60})
    nonsense["question"] |= {"threshold": 1e9, "contribution": 10_000}
    nonsense["terms"] |= {"cohort_size": 1000, "cohorts": 1000, "corrupt": 0, "dropout": 0}
    response = await served.client.post("/v1/studies", json=nonsense)
    faults = {error["location"]: error["detail"] for error in response.json()["errors"]}
    assert response.status_code == 422
    assert faults.keys() == {"body.surprise", "body.timeouts.masking", "body.question"}
    assert "a cell counts to less than 2,147,483,648" in faults["body.question"]
    assert (await served.client.get("/v1/studies")).json()["studies"] == []


async def test_infeasible_terms_are_refused_for_each_reason(served: Served) -> None:
    for terms, places in (
        ({"cohort_size": 1}, ["terms.cohort_size"]),
        ({"minimum": 7, "dropout": 2}, ["terms.minimum", "terms.dropout"]),
        ({"minimum": 7, "registrar": "00" * 32}, ["terms.minimum", "terms.registrar"]),
        ({"corrupt": 0.34, "dropout": 0.34}, ["terms"]),  # one fault of both fields
    ):
        faulty = study_request()
        faulty["terms"] |= terms
        response = await served.client.post("/v1/studies", json=faulty)
        assert response.status_code == 422
        locations = [error["location"].removeprefix("body.") for error in response.json()["errors"]]
        assert sorted(locations) == sorted(places), response.text


async def test_a_question_is_refused_for_each_reason(served: Served) -> None:
    faulty = study_request()
    faulty["question"]["domain"] = {
        "kind": "alphabet", "characters": "aab", "length": 3, "pad": "_",
    }  # fmt: skip
    response = await served.client.post("/v1/studies", json=faulty)
    details = [error["detail"] for error in response.json()["errors"]]
    assert [fault.partition(" ")[0] for fault in details] == ["a", "the"]
    report = study_request(question={
        "mechanism": "jl-hh", "threshold": 4, "contribution": 1, "epsilon": 30, "delta": 0.4,
        "domain": {"kind": "utf8", "max_bytes": 3}, "noise": "gaussian",
    })  # fmt: skip
    response = await served.client.post("/v1/studies", json=report)
    places = [error["location"] for error in response.json()["errors"]]
    assert places == ["body.question.epsilon", "body.question.delta"], response.text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"message_bytes": 900}, "are needed"),
        ({"message_bytes": 134_217_728}, "this service accepts"),
    ],
)
async def test_a_question_that_cannot_be_answered_is_malformed(
    serve: Serve, sqlite_url: str, changes: dict[str, int], why: str
) -> None:
    async with serve(sqlite_url, max_upload_bytes=10_000) as served:
        request = study_request()
        request["question"] |= changes
        response = await served.client.post("/v1/studies", json=request)
        assert response.status_code == 422
        assert why in response.json()["detail"]


async def test_every_request_that_computes_a_plan_is_limited(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analyst could occupy all threads of the service: some plans take seconds."""
    study = await served.create(start=False)
    document = study_request()
    monkeypatch.setattr(first_plan, "MAX_JOBS", 0)
    for path, sent in (
        ("/v1/studies", {"json": document}),
        ("/v1/studies", {"json": document | {"name": 1}}),
        (f"/v1/studies/{study}/start", {}),
    ):
        answer = await served.client.post(path, **sent)
        assert "being planned" in refused(answer, 429, "too-many-requests")
    monkeypatch.undo()
    assert (await served.client.post("/v1/studies", json=document)).is_success


async def test_a_body_that_is_not_json_is_malformed(served: Served) -> None:
    headers = {"Content-Type": "application/json"}
    for body in (
        b"{",
        b"",
        b"[1, 2",
        b'{"name": "\xff"}',
        b'{"rounds": ' + b"1" * 5000 + b"}",
        b"[" * 10**5,
    ):
        response = await served.client.post("/v1/studies", content=body, headers=headers)
        assert response.status_code in (400, 422)
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == f"{PROBLEM_TYPE_PREFIX}malformed"


async def test_an_invalid_number_is_malformed(served: Served) -> None:
    for value in ("NaN", "Infinity", "-Infinity", "1e999"):
        text = json.dumps(study_request()).replace('"threshold": 4', f'"threshold": {value}')
        headers = {"Content-Type": "application/json"}
        response = await served.client.post("/v1/studies", content=text, headers=headers)
        assert response.status_code == 422
        assert response.json()["errors"][0]["location"].endswith("threshold")


async def test_a_document_of_another_media_type_is_refused(served: Served) -> None:
    for kind in ("text/plain", "application/octet-stream", None):
        headers = {} if kind is None else {"Content-Type": kind}
        body = json.dumps(study_request()).encode()
        response = await served.client.post("/v1/studies", content=body, headers=headers)
        refused(response, 415, "wrong-media-type")


async def test_a_limit_outside_its_range_is_malformed(served: Served) -> None:
    for limit in ("0", "101", "x", "9" * 30):
        response = await served.client.get("/v1/studies", params={"limit": limit})
        assert (response.status_code, response.json()["errors"][0]["location"]) == (
            422,
            "query.limit",
        )
        assert response.json()["errors"][0]["detail"].endswith("from 1 to 100")


async def test_a_fault_names_both_ends_of_the_allowed_range(served: Served) -> None:
    faulty = study_request(rounds=0, timeouts={"masking": 1e9})
    faulty["terms"]["dropout"] = 2
    faulty["question"] = {
        "mechanism": "ocms", "threshold": 0, "contribution": 1, "epsilon": 99, "max_frequency": 0,
        "domain": {"kind": "alphabet", "characters": "a", "length": 0},
    }  # fmt: skip
    response = await served.client.post("/v1/studies", json=faulty)
    assert {error["location"]: error["detail"] for error in response.json()["errors"]} == {
        "body.question.ocms.threshold": "must be from 1 to 1,000,000,000,000, not 0",
        "body.question.ocms.epsilon": "must be from 1e-06 to 32, not 99",
        "body.question.ocms.max_frequency": "must be above 0 and at most 1, not 0",
        "body.question.ocms.domain.alphabet.characters": "must have 2 to 4,096 characters",
        "body.question.ocms.domain.alphabet.length": "must be from 1 to 256, not 0",
        "body.terms.dropout": "must be at least 0 and below 1, not 2",
        "body.rounds": "must be from 1 to 10,000, not 0",
        "body.timeouts.masking": "must be above 0 and at most 604,800, not 1,000,000,000",
    }  # fmt: skip
    budget = {"budget": {"epsilon": 0, "delta": 1}}  # another path, the same text
    response = await served.client.put("/v1/populations/phones", json=budget)
    assert {error["location"]: error["detail"] for error in response.json()["errors"]} == {
        "body.budget.delta": "must be at least 1e-11 and below 1, not 1",
        "body.budget.epsilon": "must be above 0 and at most 100, not 0",
    }


async def test_half_a_character_is_refused(served: Served) -> None:
    """JSON may escape half a character. If it were stored, no list of studies could be encoded."""
    domain = {"kind": "listed", "items": ["a", "b"]}
    question = {"mechanism": "krr", "threshold": 2, "epsilon": 2.0, "domain": domain}
    text = json.dumps(study_request(question=question))
    for broken in (text.replace('"b"', '"\\ud800"'), text.replace("letters", "\\udfff")):
        assert broken != text
        headers = {"Content-Type": "application/json"}
        response = await served.client.post("/v1/studies", content=broken, headers=headers)
        refused(response, 422, "malformed")
    assert (await served.client.get("/v1/studies")).json()["studies"] == []
