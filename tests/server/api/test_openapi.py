"""The OpenAPI document describes the service."""

from typing import Any

import pytest

from protocol.api.messages import EnrolmentRequest, JoinRequest, PopulationRequest, StudyRequest
from tests.server.harness import Served

LISTS = ("roster", "share-commitments", "confirmations", "encrypted-shares")


@pytest.fixture
async def document(served: Served) -> dict[str, Any]:
    response = await served.client.get("/openapi.json")
    assert response.status_code == 200
    return dict(response.json())


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


async def test_every_refusal_is_documented_as_a_problem(document: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Problem"}
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if status >= "400":
                assert response["content"] == {"application/problem+json": {"schema": schema}}, name
    assert "HTTPValidationError" not in document["components"]["schemas"]


async def test_every_reference_has_its_schema(document: dict[str, Any]) -> None:
    def references(node: Any) -> set[str]:
        if isinstance(node, dict):
            own = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
            return own.union(*(references(child) for child in node.values()))
        if isinstance(node, list):
            return set().union(*(references(child) for child in node))
        return set()

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


@pytest.mark.parametrize("what", ["key-shares", "masked-input", "confirmation", "unmasking-shares"])
async def test_binary_bodies_are_documented(document: dict[str, Any], what: str) -> None:
    operation = document["paths"][f"/v1/participants/{{participant}}/{what}"]["put"]
    assert list(operation["requestBody"]["content"]) == ["application/octet-stream"]
    assert operation["security"] == [{"credential": []}]
    assert {"204", "401", "404", "409", "410", "413", "415", "422"} <= operation["responses"].keys()


async def test_binary_answers_are_documented(document: dict[str, Any]) -> None:
    paths = document["paths"]
    for path in (
        *(f"/v1/participants/{{participant}}/{what}" for what in LISTS),
        "/v1/studies/{study}/rounds/{number}/cohorts/{cohort}/sum",
    ):
        assert "application/octet-stream" in paths[path]["get"]["responses"]["200"]["content"]


async def test_parameters_in_paths_are_documented(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        path = name.partition(" ")[2]
        wanted = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        given = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert given == wanted, name


async def test_each_document_has_an_example_that_its_model_accepts(
    document: dict[str, Any],
) -> None:
    documents = (EnrolmentRequest, JoinRequest, PopulationRequest, StudyRequest)
    models = {model.__name__: model for model in documents}
    seen = set()
    for name, operation in operations(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is not None:
            model = models[body["schema"]["$ref"].rpartition("/")[2]]
            assert model.model_validate(body["example"]), name
            seen.add(model)
    assert seen == set(models.values())


async def test_the_examples_of_an_analyst_are_accepted(
    served: Served, document: dict[str, Any]
) -> None:
    for method, path in (("POST", "/v1/studies"), ("PUT", "/v1/populations/{name}")):
        body = document["paths"][path][method.lower()]["requestBody"]["content"]
        example = body["application/json"]["example"]
        answer = await served.client.request(method, path.format(name="phones"), json=example)
        assert answer.status_code == 201, answer.text
