"""Routes of devices, which read their parameters without FastAPI's dependencies.

For each request FastAPI solves a tree of dependencies and validates each parameter, which takes
longer than the work of most of these requests. The OpenAPI document describes these routes by the
signatures of their endpoints, as it does all others.
"""

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import cached_property
from inspect import signature
from typing import Annotated, Any, TypeVar, cast
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

T = TypeVar("T")
_WAIT_SECONDS = TypeAdapter[float](Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)])


class ThinRoute(APIRoute):
    """Route whose endpoint gets `arguments`, and whose path ends with a fixed name."""

    @abstractmethod
    async def arguments(self, request: Request, service: Service) -> dict[str, Any]:
        """Return the arguments of endpoints by name; an endpoint takes some of them.

        Raises:
            ProblemError, RequestValidationError: if the request is refused.
        """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Compare the name first, which takes less time than the regular expression of the path."""
        return super().matches(scope) if scope["path"].endswith(self._name) else (Match.NONE, {})

    @cached_property
    def _name(self) -> str:
        return self.path[self.path.rindex("/") :]

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint, names = self.endpoint, tuple(signature(self.endpoint).parameters)

        async def handle(request: Request) -> Response:
            arguments = await self.arguments(request, cast("Service", request.app.state.service))
            return cast("Response", await endpoint(*map(arguments.__getitem__, names)))

        return handle


class DeviceRoute(ThinRoute):
    """Route of the participant whose credential the request has."""

    async def arguments(self, request: Request, service: Service) -> dict[str, Any]:
        slot = await authenticated_slot(request, request.path_params["participant"], service)
        wait = wait_seconds(request)
        return {"participant": slot, "request": request, "service": service, "wait": wait}


def validated(adapter: TypeAdapter[T], text: str, *location: str) -> T:
    """Return the value of a parameter; raises RequestValidationError if it is not valid."""
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        faults = [fault | {"loc": (*location, *fault["loc"])} for fault in error.errors()]
        raise RequestValidationError(faults) from None


def wait_seconds(request: Request) -> float:
    """Return the parameter `wait` of a request, 0 if it has none."""
    query = request.scope["query_string"].decode("latin-1")
    text = dict(parse_qsl(query, keep_blank_values=True)).get("wait") if query else None
    return 0.0 if text is None else validated(_WAIT_SECONDS, text, "query", "wait")
