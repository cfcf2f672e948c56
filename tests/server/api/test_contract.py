"""Answers of the service to any requests match its OpenAPI document.

Schemathesis derives valid and invalid requests from the document, and compares the answers with
it: statuses, media types, headers, schemas, and refusals of invalid requests. Two runs make the
same examples, because they depend on the code only. BLINDTALLY_EXAMPLES is the number of examples
per operation.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, reject, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from server.app import create_app
from server.http import request_limits
from server.settings import Settings
from tests.server.cohort import Cohort
from tests.server.harness import NOON, Clock, Served

HAS_MANY_EXAMPLES = "BLINDTALLY_EXAMPLES" in os.environ
WAIT = "0.1"  # seconds
EXAMPLES = int(os.environ.get("BLINDTALLY_EXAMPLES", "2"))
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.missing_required_header,
]
_SETTINGS = Settings(database_url="sqlite:///unused.db", open=True)
_DOCUMENT = create_app(_SETTINGS, lambda: NOON, Random(0)).openapi()
_CREATION = {"path": "/v1/studies", "method": "POST"}


def schema_with(**coverage: Any) -> Any:
    config = schemathesis.Config.from_dict({"phases": {"coverage": coverage}})
    return schemathesis.openapi.from_dict(_DOCUMENT, config=config)


# One method that a path does not have is as good as seven.
schema = schema_with(**{"unexpected-methods": ["patch"]})
# Coverage tries valid and invalid values of each field of each question: some 4,000 requests.
creation = schema_with(enabled=HAS_MANY_EXAMPLES)


class Loop:
    """A service in its own event loop, for tests without one."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        url = f"sqlite:///{folder}/contract.db"
        settings = Settings(database_url=url, max_upload_bytes=50_000, open=True)
        self._app = create_app(settings, Clock(), Random(1))
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._await(self._lifespan.__aenter__())
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.known = self._await(self._prepare())

    async def _prepare(self) -> dict[str, Any]:
        """Return parameters of paths: of a cohort that waits for vectors."""
        served = Served(self._app, self._client, Clock())
        study = await served.create()
        cohort = Cohort(served, study, await served.join(study, 6))
        await cohort.take_steps("share", "check")
        await served.until_phase(study, "masking")
        device = cohort.devices[0]
        self.ticket = device.headers
        return {"study": study, "number": 1, "cohort": 0, "participant": device.seat.participant}

    def send(self, case: Case) -> httpx.Response:
        """Return the answer to the request of `case`."""
        arguments = case.as_transport_kwargs(base_url="http://test")
        arguments = {k: v for k, v in arguments.items() if k in _REQUEST_ARGUMENTS}
        request = requests.Request(**arguments).prepare()
        if len(str(request.url)) > _MAX_URL:
            reject()  # no client sends it
        body = request.body.encode() if isinstance(request.body, str) else request.body
        return self._await(
            self._client.request(
                str(request.method), str(request.url), headers=dict(request.headers), content=body
            )
        )

    def close(self) -> None:
        """Stop the service, and its loop."""
        self._await(self._client.aclose())
        self._await(self._lifespan.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(60)


_MAX_URL = 60_000
_REQUEST_ARGUMENTS = ("method", "url", "headers", "params", "data", "json", "files", "cookies")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    loop = Loop(tmp_path_factory.mktemp("contract"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_limits, "MAX_JSON_BYTES", 20_000)
        yield loop
    loop.close()


few = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@creation.include(**_CREATION).parametrize()
@few
def test_a_study_is_created_or_refused_as_documented(case: Case, running: Loop) -> None:
    case.validate_response(running.send(case), checks=CHECKS)


@schema.exclude(**_CREATION).parametrize()
@few
def test_the_service_answers_as_documented(case: Case, running: Loop) -> None:
    is_valid = case.meta.generation.mode is GenerationMode.POSITIVE
    if is_valid and "wait" in case.query:  # otherwise the request waits the whole time
        case.query["wait"] = WAIT
    case.validate_response(running.send(case), checks=CHECKS)
    if is_valid and case.path_parameters:
        for name in case.path_parameters.keys() & running.known.keys():
            case.path_parameters[name] = running.known[name]
        case.headers.update(running.ticket)
        case.validate_response(running.send(case), checks=CHECKS)
