"""Webhooks: one signed message to an analyst's address when a study has ended.

    POST /hook                    webhook-id: 0f1e   webhook-timestamp: 1777634400
    {"study": "0f1e", ...}        webhook-signature: v1,BASE64(HMAC-SHA256(secret, id.time.body))

A failed try is repeated with growing pauses, by any process, also after a restart. Answers are not
read, and redirects are not followed.

An analyst must not reach machines behind the service by it ("server-side request forgery"). So a
name is resolved once, all of its addresses must be public, and the connection goes to the first of
them; the certificate must still be that of the name. A service with --open may send to its own
machine. Proxies of the environment are not used, because they would resolve the name again.

Source: the specification of Standard Webhooks 1.0, for headers and signature.
"""

import asyncio
import hmac
import json
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from socket import SOCK_STREAM, getaddrinfo
from ssl import SSLContext
from urllib.parse import urlsplit

import httpx
import structlog

from server.db.database_errors import UNAVAILABLE_ERRORS, loggable_reason
from server.db.repositories.studies.webhooks import MAX_TRIES, SECRET_PREFIX, DueWebhook
from server.db.store import Store

_POLL_SECONDS = 5.0
_TRY_SECONDS = 10.0
_MAX_RUNNING = 100  # tries at a time
# Names that are slow to resolve must not take the threads of the service's other work.
_RESOLVERS = ThreadPoolExecutor(8, "blindtally webhook names")
_GLOBAL_IPV6 = IPv6Network("2000::/3")
# Networks in it whose addresses have an IPv4 address in them, perhaps a private one.
_TUNNELS = (IPv6Network("2001::/32"), IPv6Network("2002::/16"))
_log = structlog.get_logger(__name__)


class RefusedAddressError(ValueError):
    """A webhook's host has an address to which this service sends nothing."""


@dataclass(frozen=True)
class WebhookSender:
    """Sends the messages that are due; `public_url` is in them, and None if it is not known."""

    store: Store
    public_url: str | None
    allows_loopback: bool

    async def run(self) -> None:
        """Send what is due until cancelled; a receiver that does not answer delays no other."""
        running = set[asyncio.Task[None]]()
        try:
            while True:
                started = await self.start_due()
                running |= started
                while len(running) > _MAX_RUNNING:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if not started:
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            for each in running:
                each.cancel()

    async def start_due(self) -> set[asyncio.Task[None]]:
        """Start to send some messages that are due; return the tasks, which do not fail."""
        try:
            due = await self.store.webhooks.claim()
            now = await self.store.database.read_now()
        except UNAVAILABLE_ERRORS as error:
            _log.debug("database unavailable", error=loggable_reason(error))
            return set()
        return {asyncio.create_task(self._try(each, now)) for each in due}

    async def _try(self, due: DueWebhook, now: datetime) -> None:
        """Send one message, and log the outcome without the address, which may have a secret."""
        try:
            async with asyncio.timeout(_TRY_SECONDS):
                status = await self._send(due, now)
            outcome = "sent" if 200 <= status < 300 else f"status {status}"
        except (OSError, ValueError, httpx.HTTPError, httpx.InvalidURL) as error:
            outcome = type(error).__name__
        facts = {"study": due.study.id, "outcome": outcome, "tries": due.tries}
        if outcome == "sent":
            _log.info("webhook", **facts)
        else:
            _log.warning("webhook", **facts, is_last=due.tries >= MAX_TRIES)
        if outcome == "sent":
            with suppress(*UNAVAILABLE_ERRORS):  # it is sent again
                await self.store.webhooks.finish(due.study.id)

    async def _send(self, due: DueWebhook, now: datetime) -> int:
        """Return the status of the answer.

        Raises:
            RefusedAddressError: if an address of the host is not public.
        """
        url = httpx.URL(due.url)
        address = await public_address(url.host, self.allows_loopback)
        host = url.netloc.decode("ascii")
        body = self._message(due)
        headers = {"Host": host, **signed_headers(due.study.id, due.secret, body, now)}
        async with (
            httpx.AsyncClient(verify=self._tls, timeout=_TRY_SECONDS, trust_env=False) as client,
            client.stream(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers=headers,
                extensions={"sni_hostname": url.host},
            ) as response,
        ):
            return response.status_code

    @cached_property
    def _tls(self) -> SSLContext:
        return httpx.create_ssl_context(trust_env=False)

    def _message(self, due: DueWebhook) -> bytes:
        study = due.study
        link = f"{self.public_url}/studies/{study.id}" if self.public_url else None
        facts = {"study": study.id, "state": study.outcome, "end_cause": study.end_cause}
        return json.dumps(facts | {"url": link}).encode()


def signed_headers(study: str, secret: str, body: bytes, now: datetime) -> dict[str, str]:
    """Return the headers by which a receiver with the `secret` recognises a message."""
    time = str(int(now.timestamp()))
    key = b64decode(secret.removeprefix(SECRET_PREFIX))
    signature = hmac.digest(key, f"{study}.{time}.".encode() + body, "sha256")
    return {
        "Content-Type": "application/json",
        "webhook-id": study,
        "webhook-timestamp": time,
        "webhook-signature": f"v1,{b64encode(signature).decode()}",
    }


async def public_address(host: str, allows_loopback: bool) -> str:
    """Return the first address of a host; raises RefusedAddressError if one is not public."""
    resolve = partial(getaddrinfo, host, None, type=SOCK_STREAM)
    entries = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, resolve)
    addresses = [ip_address(str(entry[4][0])) for entry in entries]
    for address in addresses:
        if not (_is_public(address) or (allows_loopback and address.is_loopback)):
            raise RefusedAddressError
    return str(addresses[0])


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not address.is_multicast
    is_tunnel = any(address in network for network in _TUNNELS)
    return address.is_global and address in _GLOBAL_IPV6 and not is_tunnel


def may_be_public(url: str, allows_loopback: bool) -> bool:
    """Return whether the host of `url` may be public, as far as its text shows."""
    host = urlsplit(url).hostname or ""
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:  # a name, which is resolved when the message is sent
        return True
    return _is_public(address) or (allows_loopback and address.is_loopback)
