"""OpenAPI document of the service: every refusal is a problem, with credentials and examples."""

import tomllib
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from protocol.api.messages import (
    EnrolmentRequest,
    PopulationRequest,
    Problem,
    ShareRequest,
    StudyRequest,
)
from protocol.api.messages_outside_sums import JoinRequest
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import parse_question
from protocol.privacy.ledger import Budget
from protocol.public_model import PublicModel
from protocol.question_and_plan import Terms
from server.api.dependencies import problem_responses
from server.http.problem_details import MEDIA_TYPE

_PROBLEM_CONTENT = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_CREDENTIALS = {
    "key": "An API key, unless the service is open.",
    "token": "An enrolment token, with which a device enrols its identity.",
    "credential": "The credential that a device enrolled; its own choice if the service is open.",
}
# Meanings of fields and parameters, by name, or by document and name.
_MEANINGS_FILE: Final = Path(__file__).with_name("field_meanings.toml")
_MEANINGS: Final = tomllib.loads(_MEANINGS_FILE.read_text("utf-8"))
_EXAMPLES: Final[dict[str, PublicModel]] = {
    "StudyRequest": StudyRequest(
        name="new words",
        question=parse_question(
            {
                "mechanism": "adaptive-iblt",
                "threshold": 20.0,
                "contribution": 3,
                "domain": Utf8(max_bytes=12),
                "message_bytes": 20000,
            }
        ),
        terms=Terms(cohort_size=200, minimum=100, corrupt=0.1, dropout=0.2),
        rounds=5,
        start=True,
    ),
    "ShareRequest": ShareRequest(days=7),
    "PopulationRequest": PopulationRequest(budget=Budget(epsilon=4, delta=1e-6)),
    "JoinRequest": JoinRequest(
        identity="1f" * 32, mask_key="2e" * 32, encryption_key="3d" * 32, signature="4c" * 64
    ),
    "EnrolmentRequest": EnrolmentRequest(
        identity="1f" * 32, credential="5b" * 32, signature="4c" * 64
    ),
}


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of `app`."""
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith("/v1/"):
                of_auth = problem_responses(401, 403, 429).items()
                operation["responses"] = {
                    str(status): response for status, response in of_auth
                } | operation["responses"]
            operation["responses"]["431"] = problem_responses(431)[431]
            _describe_problems(operation["responses"])
            _describe_credential(path, operation)
            _add_example(operation)
            for parameter in operation.get("parameters", ()):
                _describe(parameter, parameter["name"])
    components = document["components"]
    schemas = components["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs", {})
    schemas["Problem"] = problem
    for schema in schemas.values():
        for name, field in schema.get("properties", {}).items():
            _describe(field, f"{schema.get('title', '')}.{name}", name)
    components["securitySchemes"] = {
        name: {"type": "http", "scheme": "bearer", "description": description}
        for name, description in _CREDENTIALS.items()
    }
    return document


def _describe(described: dict[str, Any], *names: str) -> None:
    """Describe a field or parameter without a description by what one of its `names` means."""
    meaning = next((_MEANINGS[name] for name in names if name in _MEANINGS), "")
    if meaning:
        described.setdefault("description", meaning)


def _describe_problems(responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        if status >= "400":
            response["content"] = _PROBLEM_CONTENT
            if response.get("description") == "Validation Error":
                response["description"] = "Malformed: `errors` lists every fault."
        if status in ("409", "503"):
            response["headers"] = {
                "Retry-After": {
                    "schema": {"type": "integer"},
                    "description": "Seconds; on `no-round` and `unavailable`.",
                }
            }


def _add_example(operation: dict[str, Any]) -> None:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        schema = body["schema"]["$ref"].rpartition("/")[2]
        body["example"] = _EXAMPLES[schema].model_dump(mode="json", exclude_none=True)


def _describe_credential(path: str, operation: dict[str, Any]) -> None:
    """Document the Authorization header as a security scheme, not as a parameter."""
    parameters = operation.get("parameters", [])
    others = [each for each in parameters if each["name"].lower() != "authorization"]
    if len(others) < len(parameters):
        operation["parameters"] = others
    if path == "/v1/devices":
        operation["security"] = [{"token": []}]
    elif len(others) < len(parameters):
        operation["security"] = [{"credential": []}]
    elif path.startswith("/v1/"):
        is_for_devices = "devices" in operation.get("tags", ())
        credential: list[dict[str, Any]] = [{"credential": []}] if is_for_devices else []
        operation["security"] = [{"key": []}, *credential, {}]
