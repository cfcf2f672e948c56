"""Route of a device in a round, which reads its parameters without FastAPI's dependencies.

For each request FastAPI solves a tree of dependencies and validates each parameter, which takes
longer than the work of most of these requests. These routes have the same few parameters: the
participant whose credential the request has, the request, the service, and the seconds to wait. The
OpenAPI document describes them by the signature of the endpoint, as it does all others.
"""

from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Annotated, Any, cast
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import Field, TypeAdapter, ValidationError
from starlette.routing import Match
from starlette.types import Scope

from server.api.common import MAX_WAIT_SECONDS
from server.api.dependencies import authenticated_slot
from server.service import Service

_WAIT_SECONDS = TypeAdapter(Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)])


class DeviceRoute(APIRoute):
    """Route whose endpoint takes `participant`, `service`, and perhaps `request` and `wait`.

    Its path has one parameter, the participant, and ends with the name of a resource.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare the name first, which takes less time than the regular expression of the path."""
        name = self.path[self.path.rindex("/") :]
        return super().matches(scope) if scope["path"].endswith(name) else (Match.NONE, {})

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint
        parameters = signature(endpoint).parameters
        takes_request, takes_wait = "request" in parameters, "wait" in parameters

        async def handle(request: Request) -> Response:
            service = cast("Service", request.app.state.service)
            slot = await authenticated_slot(request, request.path_params["participant"], service)
            arguments: dict[str, Any] = {"participant": slot, "service": service}
            if takes_request:
                arguments["request"] = request
            if takes_wait:
                arguments["wait"] = _wait_seconds(request)
            response = await endpoint(**arguments)
            return Response(status_code=204) if response is None else response

        return handle


def _wait_seconds(request: Request) -> float:
    query = request.scope["query_string"].decode("latin-1")
    text = dict(parse_qsl(query, keep_blank_values=True)).get("wait")
    if text is None:
        return 0.0
    try:
        return _WAIT_SECONDS.validate_python(text)
    except ValidationError as error:
        faults = [fault | {"loc": ("query", "wait")} for fault in error.errors()]
        raise RequestValidationError(faults) from None
