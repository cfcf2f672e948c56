"""Pages of help: the terms of the other pages, and the API's reference without scripts.

Strangers may read the reference, as a page and as an OpenAPI document. To make them takes a tenth
of a second of all other requests, so a process makes each once.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from server.pages.forms.questions import QUESTION_FORMS
from server.pages.page_requests import page_router
from server.pages.rendering import is_partial, render

router = page_router()
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of the API; `parameters` and `responses` are rows of texts."""

    method: str
    path: str
    description: str
    parameters: list[tuple[str, str, str]]
    body: str
    responses: list[tuple[str, str, str]]


@router.get("/docs")
async def show_api(request: Request) -> Response:
    """Show the operations by subject, and the documents that they take and return."""
    return _made_once(request, _api_page)


@router.get("/openapi.json")
async def show_document(request: Request) -> Response:
    """Return the OpenAPI document."""
    return _made_once(request, lambda request: JSONResponse(request.app.openapi()))


def _made_once(request: Request, make: Callable[[Request], Response]) -> Response:
    """Return the response of `make` to the first request of this path and layout."""
    made: dict[tuple[str, bool], Response] = request.app.state.public_responses
    key = request.scope["path"], is_partial(request)
    if key not in made:
        made[key] = make(request)
    return made[key]


def _api_page(request: Request) -> Response:
    document = request.app.openapi()
    subjects: dict[str, list[Operation]] = {}
    for subject, operation in operations_of(document["paths"]):
        subjects.setdefault(subject, []).append(operation)
    schemas = {
        name: (schema.get("description", ""), fields_of(schema))
        for name, schema in sorted(document["components"]["schemas"].items())
    }
    return render(
        request,
        "api_reference.html",
        description=document["info"]["description"],
        subjects=subjects,
        schemas=schemas,
    )


def operations_of(paths: Schema) -> Iterator[tuple[str, Operation]]:
    """Yield each operation with its subject."""
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield (
                next(iter(operation.get("tags", [])), "service"),
                Operation(
                    method.upper(),
                    path,
                    operation.get("description", operation.get("summary", "")),
                    [
                        (each["name"], type_name(each["schema"]), each.get("description", ""))
                        for each in operation.get("parameters", [])
                    ],
                    _content_name(operation.get("requestBody", {})),
                    [
                        (status, _content_name(response), response.get("description", ""))
                        for status, response in sorted(operation["responses"].items())
                    ],
                ),
            )


def _content_name(body: Schema) -> str:
    """Return the type of a body: a document's name, otherwise its media type; empty without one."""
    for media_type, content in body.get("content", {}).items():
        name = type_name(content.get("schema", {}))
        return name if "json" in media_type and name else str(media_type)
    return ""


def fields_of(schema: Schema) -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each field of a document."""
    required = schema.get("required", ())
    return [
        (
            name,
            type_name(field) + ("" if name in required else ", optional"),
            field.get("description", ""),
        )
        for name, field in schema.get("properties", {}).items()
    ]


def type_name(schema: Schema) -> str:
    """Return the type of a JSON schema in words; empty for any value."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(map(type_name, schema[key])))
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {type_name(schema.get('items', {})) or 'values'}"
    return str(schema.get("type", ""))


@router.get("/help")
async def show_terms(request: Request) -> Response:
    """Show the terms, and the kinds of question."""
    return render(request, "help.html", questions=tuple(QUESTION_FORMS.values()))
