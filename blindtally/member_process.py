"""Process of a committee's member: its rounds at one service, and its status page.

Its metrics are steps by phase, refused rounds, and the time of the last contact.
"""

from collections.abc import Callable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.applications import Starlette

from blindtally.status_page import page_server, run_together, status_routes
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
        return Starlette(routes=status_routes(self._registry, self._fault))

    def _fault(self) -> str:
        return "" if self.is_healthy else "the service does not show its rounds"


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
        serving = member.serve(Transport(http), api_key, report)
        page = None if status_port is None else page_server(status.app(), status_host, status_port)
        await run_together(serving, page)
