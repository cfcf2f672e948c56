"""Process of a committee's member: its rounds at one service, and its status page.

    GET /healthz  200 if the service showed its rounds within the last minute, 503 otherwise
    GET /metrics  steps by phase, refused rounds, and the time of the last contact (Prometheus)

The status page needs no credential and shows nothing about devices. Without a port there is none.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from client.committee.member import CommitteeMember
from client.http.transport import Transport, http_client
from protocol.api.messages import CommitteeRound

HEALTHY_SECONDS: Final = 60.0
MemberLog = Callable[[CommitteeRound, str], None]


class MemberStatus:
    """Health and metrics of one member."""

    def __init__(self, member: CommitteeMember) -> None:
        self._member = member
        self._registry = CollectorRegistry()
        self._steps = Counter(
            "blindtally_member_steps",
            "Steps that the member took, by the phase of the round.",
            ["phase"],
            registry=self._registry,
        )
        self._refusals = Counter(
            "blindtally_member_refusals",
            "Rounds that the member does not serve, and requests that failed.",
            registry=self._registry,
        )
        contact = Gauge(
            "blindtally_member_last_contact_timestamp_seconds",
            "Time at which the service last showed the member its rounds.",
            registry=self._registry,
        )
        contact.set_function(lambda: member.last_contact or 0.0)

    def count(self, pending: CommitteeRound, refusal: str) -> None:
        """Count a step of the member in a round, or why it took none."""
        if refusal:
            self._refusals.inc()
        else:
            self._steps.labels(pending.phase.value).inc()

    @property
    def is_healthy(self) -> bool:
        """Return whether the service has shown its rounds recently."""
        return self._member.seconds_since_contact() < HEALTHY_SECONDS

    def app(self) -> Starlette:
        """Return the status page."""
        return Starlette(
            routes=[Route("/healthz", self._show_health), Route("/metrics", self._show_metrics)]
        )

    async def _show_health(self, _request: Request) -> Response:
        if self.is_healthy:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the service does not show its rounds\n", 503)

    async def _show_metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)


async def run_member(
    member: CommitteeMember,
    url: str,
    api_key: str | None,
    log: MemberLog,
    status_host: str,
    status_port: int | None,
) -> None:
    """Serve all rounds of a service that name `member`, until cancelled or stopped by a signal.

    Raises:
        ServiceError: if the API key does not have the scope `committee`.
    """
    status = MemberStatus(member)

    def report(pending: CommitteeRound, refusal: str) -> None:
        status.count(pending, refusal)
        log(pending, refusal)

    async with http_client(url) as http:
        serving = asyncio.create_task(member.serve(Transport(http), api_key, report))
        if status_port is None:
            await serving
            return
        config = uvicorn.Config(
            status.app(), status_host, status_port, log_level="warning", access_log=False
        )
        page = asyncio.create_task(uvicorn.Server(config).serve())
        try:
            done, _ = await asyncio.wait((serving, page), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (serving, page):
                task.cancel()
            await asyncio.gather(serving, page, return_exceptions=True)
