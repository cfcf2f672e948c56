"""A real service in this process, reached through ASGI."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import SystemRandom

import httpx
import pytest
from fastapi import FastAPI

from client.fleet.devices import ClientFactory
from protocol.api.messages import StudyRequest, StudyView, Timeouts
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from server.settings import Settings
from tests.server import application
from tests.support.asgi_transport import StreamingAsgiTransport

DEVICES = 10
REQUEST = StudyRequest(
    name="words",
    question=AdaptiveIbltQuestion(
        threshold=5, contribution=4, domain=Utf8(max_bytes=6), message_bytes=4784
    ),
    terms=Terms(cohort_size=DEVICES, minimum=8, corrupt=0.1, dropout=0.3),
    rounds=2,
    timeouts=Timeouts(
        enrolling=10, sharing=5, checking=5, masking=5, confirming=5, unmasking=3, idle=0.3
    ),
    start=True,
)


@asynccontextmanager
async def serving(file: Path) -> AsyncIterator[FastAPI]:
    """Run a service on the SQLite database in `file`."""
    settings = Settings(database_url=f"sqlite:///{file}", open=True)
    made = application.create(settings, None, SystemRandom())
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    async with serving(tmp_path / "service.db") as made:
        yield made


@pytest.fixture
def connect(app: FastAPI) -> ClientFactory:
    return connect_to(app)


def connect_to(app: FastAPI) -> ClientFactory:
    """Return a function that makes clients of `app`."""
    return lambda: httpx.AsyncClient(
        transport=StreamingAsgiTransport(app), base_url="http://service/v1", timeout=30
    )


@pytest.fixture
async def study(connect: ClientFactory) -> StudyView:
    return await create(connect)


@pytest.fixture
def registrar() -> Identity:
    return Identity.of(bytes(range(32)))


@pytest.fixture
async def enrolled(connect: ClientFactory, registrar: Identity) -> StudyView:
    """Return a study whose devices the registrar must have enrolled."""
    return await create(connect, registrar=registrar.public.hex())


async def create(
    connect: ClientFactory, *, enrolling: float = 10.0, rounds: int = 2, **terms: object
) -> StudyView:
    changed = Terms.model_validate(REQUEST.terms.model_dump() | terms)
    timeouts = REQUEST.timeouts.model_copy(update={"enrolling": enrolling})
    changes = {"terms": changed, "timeouts": timeouts, "rounds": rounds}
    asked = REQUEST.model_copy(update=changes)
    async with connect() as http:
        answer = await http.post("/studies", json=asked.model_dump(mode="json"))
    return StudyView.model_validate_json(answer.content)
