"""The OpenAPI document, made true.

FastAPI documents its own validation error, which this service never sends, and knows no
problem+json. Here every refusal is documented as the problem that it is.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from protocol.messages import Problem
from server.api.examples import example_of
from server.problems import MEDIA_TYPE

_OWN = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the document of `app`."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for path in document["paths"].values():
        for operation in path.values():
            _describe_problems(operation["responses"])
            _describe_ticket(operation)
            _give_example(operation)
    components = document["components"]
    schemas = components["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    components["securitySchemes"] = {"ticket": {"type": "http", "scheme": "bearer"}}
    return document


def _describe_problems(responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        if status >= "400":
            response["content"] = _OWN
            if response.get("description") == "Validation Error":
                response["description"] = "Malformed: `errors` lists every fault."
        if status in ("409", "503"):
            response["headers"] = {
                "Retry-After": {
                    "schema": {"type": "integer"},
                    "description": "Seconds; on `no-round` and `unavailable`.",
                }
            }


def _give_example(operation: dict[str, Any]) -> None:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        body["example"] = example_of(body["schema"]["$ref"].rpartition("/")[2])


def _describe_ticket(operation: dict[str, Any]) -> None:
    """Name the ticket as what it is, a credential, and not as one more header."""
    parameters = operation.get("parameters", [])
    others = [each for each in parameters if each["name"].lower() != "authorization"]
    if len(others) < len(parameters):
        operation["parameters"] = others
        operation["security"] = [{"ticket": []}]
