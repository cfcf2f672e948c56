"""The OpenAPI document describes the service."""

from typing import Any

import pytest

from protocol.api.messages import EnrolmentRequest, PopulationRequest, ShareRequest, StudyRequest
from protocol.api.messages_outside_sums import JoinRequest
from tests.server.harness import Served


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


async def test_every_operation_may_refuse_large_headers(document: dict[str, Any]) -> None:
    assert all("431" in operation["responses"] for _, operation in operations(document))


async def test_each_document_has_an_example_that_its_model_accepts(
    document: dict[str, Any],
) -> None:
    documents = (EnrolmentRequest, JoinRequest, PopulationRequest, ShareRequest, StudyRequest)
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
