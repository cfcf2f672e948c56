"""Routes of devices, which read their parameters without FastAPI's dependencies.

For each request FastAPI solves a tree of dependencies and validates each parameter, which takes
longer than the work of most of these requests. The OpenAPI document describes these routes by the
signatures of their endpoints, as it does all others.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property, lru_cache
from inspect import signature
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import parse_qsl

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import Field, TypeAdapter, ValidationError
from starlette.routing import BaseRoute
from starlette.types import Scope

from server.api.dependencies import MAX_WAIT_SECONDS, authenticated_slot
from server.service import Service

T = TypeVar("T")
_WAIT_SECONDS = TypeAdapter[float](Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)])
_MAX_CACHED_QUERIES = 256
_MAX_CACHED_QUERY_BYTES = 32


class ThinRoute(APIRoute):
    """Route whose endpoint gets `arguments`, and whose path ends with a fixed name."""

    @abstractmethod
    async def arguments(self, request: Request, service: Service) -> dict[str, Any]:
        """Return the arguments of endpoints by name; an endpoint takes some of them.

        Raises:
            ProblemError, RequestValidationError: if the request is refused.
        """

    async def respond(self, request: Request) -> Response:
        """Return the response to a request that matches this route."""
        arguments = await self.arguments(request, request.app.state.service)
        return cast("Response", await self.endpoint(*map(arguments.__getitem__, self._names)))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(signature(self.endpoint).parameters)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return self.respond


class DeviceRoutes:
    """Thin routes by method and last name of the path, so that a request needs no search."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = {
            (method, route.path.rpartition("/")[2]): route
            for route in routes
            if isinstance(route, ThinRoute)
            for method in route.methods or ()
        }

    def find_endpoint(self, scope: Scope) -> Callable[[Request], Awaitable[Response]] | None:
        """Return the endpoint of a request, and note its route and the parameters of its path.

        None: FastAPI finds the route, or refuses the request. It also gets requests that are
        traced, whose spans it names.
        """
        path = scope["path"]
        route = self._routes.get((scope["method"], path[path.rfind("/") + 1 :]))
        if route is None or "fastapi.telemetry" in scope:
            return None
        match = route.path_regex.match(path)
        if match is None:
            return None
        scope["route"], scope["path_params"] = route, match.groupdict()
        return route.respond


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


def query_parameters(request: Request) -> Mapping[str, str]:
    """Return the parameters in the query of a request; of equal names, the last one."""
    query = request.scope["query_string"]
    return (_parsed_query if len(query) > _MAX_CACHED_QUERY_BYTES else _cached_query)(query)


def wait_seconds(request: Request) -> float:
    """Return the parameter `wait` of a request, 0 if it has none."""
    text = query_parameters(request).get("wait")
    return 0.0 if text is None else validated(_WAIT_SECONDS, text, "query", "wait")


def _parsed_query(query: bytes) -> Mapping[str, str]:
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))


_cached_query = lru_cache(_MAX_CACHED_QUERIES)(_parsed_query)
