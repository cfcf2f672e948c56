"""The OpenAPI document, made true.

FastAPI documents its own validation error, which this service never sends, and knows no
problem+json. Here every refusal is documented as the problem that it is.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from protocol.messages import Problem
from server.api.examples import example_of
from server.api.parts import problems
from server.problems import MEDIA_TYPE

_OWN = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


_CREDENTIALS = {
    "key": "An API key, unless the service is open.",
    "token": "An enrolment token, which lets a device's identity in.",
    "credential": "What a device was let in with; of its own choice where the service is open.",
}


def describe(app: FastAPI) -> dict[str, Any]:
    """Return the document of `app`."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                strangers = {str(status): what for status, what in problems(401, 403, 429).items()}
                operation["responses"] = strangers | operation["responses"]
            _describe_problems(operation["responses"])
            _describe_credential(path, operation)
            _give_example(operation)
    components = document["components"]
    schemas = components["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    components["securitySchemes"] = {
        name: {"type": "http", "scheme": "bearer", "description": what}
        for name, what in _CREDENTIALS.items()
    }
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


def _describe_credential(path: str, operation: dict[str, Any]) -> None:
    """Name what is shown as what it is, a credential, and not as one more header."""
    parameters = operation.get("parameters", [])
    others = [each for each in parameters if each["name"].lower() != "authorization"]
    if len(others) < len(parameters):
        operation["parameters"] = others
    if path == "/v1/devices":
        operation["security"] = [{"token": []}]
    elif len(others) < len(parameters):
        operation["security"] = [{"credential": []}]
    elif path.startswith("/v1/"):
        is_devices = "devices" in operation.get("tags", ())
        operation["security"] = [{"key": []}, *([{"credential": []}] if is_devices else []), {}]
