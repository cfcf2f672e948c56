"""A real service in this process, reached through ASGI."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom

import httpx
import pytest
from fastapi import FastAPI

from client.fleet import Connect
from protocol.domain import Utf8
from protocol.mechanism import Terms
from protocol.mechanisms import AnyQuestion
from protocol.messages import StudyRequest, StudyView, Timeouts
from server.app import create_app
from server.settings import Settings

DEVICES = 10
REQUEST = StudyRequest(
    name="words",
    question=AnyQuestion(threshold=5, contribution=4, domain=Utf8(max_bytes=6), words=1500),
    terms=Terms(cohort_size=DEVICES, minimum=8, corrupt=0.1, dropout=0.3),
    rounds=2,
    timeouts=Timeouts(enrolling=30, sharing=30, masking=30, unmasking=30, patience=0.3),
    start=True,
)


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'service.db'}", pace_seconds=0.01)
    made = create_app(settings, lambda: datetime.now(UTC), SystemRandom())
    async with made.router.lifespan_context(made):
        yield made


@pytest.fixture
def connect(app: FastAPI) -> Connect:
    return lambda: httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://service/v1", timeout=30
    )


@pytest.fixture
async def study(connect: Connect) -> StudyView:
    async with connect() as http:
        answer = await http.post("/studies", json=REQUEST.model_dump(mode="json"))
    return StudyView.model_validate_json(answer.content)
