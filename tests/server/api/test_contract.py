"""What the OpenAPI document says is what the service does, whatever it is sent.

Schemathesis makes requests of the document, valid ones and others, and compares the answers
with it: statuses, media types, headers, schemas, and that what is wrong is refused. Examples
are derived from the code alone, so two runs make the same ones. BLINDTALLY_EXAMPLES is how
many each operation gets.
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
from server.settings import Settings
from tests.server.harness import NOON, Clock, Served
from tests.server.party import Party

IS_LONG = "BLINDTALLY_EXAMPLES" in os.environ
WAIT = "1"  # seconds
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
schema = schemathesis.openapi.from_dict(_DOCUMENT)
# Covered is each field of each question, good and bad: some 4,000 requests.
_PHASES = {"phases": {"coverage": {"enabled": IS_LONG}}}
creation = schemathesis.openapi.from_dict(_DOCUMENT, config=schemathesis.Config.from_dict(_PHASES))


class Loop:
    """A service in an event loop of its own, for tests that have none."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        url = f"sqlite:///{folder}/contract.db"
        settings = Settings(
            database_url=url, max_json_bytes=20_000, max_upload_bytes=50_000, open=True
        )
        self._app = create_app(settings, Clock(), Random(1))
        self._lifespan = self._app.router.lifespan_context(self._app)
        self._await(self._lifespan.__aenter__())
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://test")
        self.known = self._await(self._prepare())

    async def _prepare(self) -> dict[str, Any]:
        """Return what paths may name: a cohort that waits for vectors, and a population."""
        served = Served(self._app, self._client, Clock())
        study = await served.create()
        party = Party(served, study, await served.join(study, 6))
        await party.go("share")
        await served.until_phase(study, "masking")
        device = party.devices[0]
        assert device.seat is not None
        self.ticket = device.headers
        return {"study": study, "number": 1, "cohort": 0, "participant": device.seat.participant}

    def send(self, case: Case) -> httpx.Response:
        """Return the answer to what `case` asks."""
        arguments = case.as_transport_kwargs(base_url="http://test")
        arguments = {k: v for k, v in arguments.items() if k in _OF_REQUESTS}
        request = requests.Request(**arguments).prepare()
        if len(str(request.url)) > _LONGEST_URL:
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

    def _await(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)


_LONGEST_URL = 60_000
_OF_REQUESTS = ("method", "url", "headers", "params", "data", "json", "files", "cookies")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loop]:
    loop = Loop(tmp_path_factory.mktemp("contract"))
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
def test_a_study_is_created_or_refused_as_the_document_says(case: Case, running: Loop) -> None:
    case.validate_response(running.send(case), checks=CHECKS)


@schema.exclude(**_CREATION).parametrize()
@few
def test_the_service_answers_as_its_document_says(case: Case, running: Loop) -> None:
    case.validate_response(running.send(case), checks=CHECKS)
    if case.meta.generation.mode is GenerationMode.POSITIVE and case.path_parameters:
        for name in case.path_parameters.keys() & running.known.keys():
            case.path_parameters[name] = running.known[name]
        case.headers.update(running.ticket)
        if "wait" in case.query:  # nothing will come: the whole of it would be waited for
            case.query["wait"] = WAIT
        case.validate_response(running.send(case), checks=CHECKS)
