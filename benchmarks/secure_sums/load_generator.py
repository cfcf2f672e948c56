"""Devices that load a service: the bodies of a phase are made beforehand in chunks, then sent.

The devices are real participants of a secure sum, on the cheapest terms that exist (see
`benchmarks.service`); their computations are not in any figure. They share the messages that are
the same for all (plan, roster, transcript), and send over plain connections that are kept.
"""

import http.client
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import local

import httpx

from protocol.api.device_messages import JoinRequest, Survivors
from protocol.api.messages import RoundView, SlotAssignment
from protocol.mechanisms.registry import SUM_MECHANISMS
from secagg.keys import Identity
from secagg.messages import unpack_signatures, unpack_signed_inputs
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.roster import Roster, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import ReceivedShares

THREADS = 16  # connections at a time
_DEVICES_PER_CHUNK = 200  # devices whose bodies are held: 80 MB of vectors
_TIMEOUT_SECONDS = 120
_LONG_POLL_SECONDS = 30  # seconds that a GET request waits for its answer


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A device's request to the server on `port`."""

    port: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The server's answer, and its seconds."""

    status: int
    body: bytes
    seconds: float


class ConnectionPool:
    """Connections to servers of this machine, one for each thread and server."""

    def __init__(self) -> None:
        self._thread_state = local()

    def request(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to `request`, which is sent again if the connection was closed."""
        connections = self._thread_state.__dict__.setdefault("connections", {})
        connection = connections.setdefault(
            request.port,
            http.client.HTTPConnection("127.0.0.1", request.port, timeout=_TIMEOUT_SECONDS),
        )
        try:
            return self._send(connection, request)
        except ConnectionError:  # the server closes connections after 75 idle seconds
            connection.close()
            return self._send(connection, request)

    def _send(self, connection: http.client.HTTPConnection, request: HttpRequest) -> HttpResponse:
        start = time.perf_counter()
        connection.request(request.method, request.path, request.body, request.headers)
        response = connection.getresponse()
        body = response.read()
        return HttpResponse(response.status, body, time.perf_counter() - start)


@dataclass
class LoadDevice:
    """One device with its state of the protocol."""

    index: int
    port: int
    rng: Random
    seat: SlotAssignment = field(init=False)
    shared: Shared = field(init=False)
    checked: Checked = field(init=False)
    masked: Masked = field(init=False)
    confirmed: Confirmed = field(init=False)

    def __post_init__(self) -> None:
        self.identity = Identity.generate(self.rng)
        self.joined: Joined = join(self.identity, self.rng)
        ticket = urlsafe_b64encode(self.rng.randbytes(32)).decode().rstrip("=")
        self._headers = {"Authorization": f"Bearer {ticket}"}

    def join_request(self, study: str, view: RoundView, digest: bytes) -> HttpRequest:
        """Return the request to join a round."""
        keys = self.joined.public_keys
        body = JoinRequest(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            encryption_key=keys.encryption.hex(),
            signature=self.joined.advertise(digest).hex(),
        )
        path = f"/v1/studies/{study}/rounds/{view.number}/participants"
        headers = self._headers | {"Content-Type": "application/json"}
        return HttpRequest(self.port, "POST", path, headers, body.model_dump_json().encode())

    def get_request(self, resource: str) -> HttpRequest:
        """Return a GET request for one of its resources."""
        path = f"/v1/participants/{self.seat.participant}/{resource}?wait={_LONG_POLL_SECONDS}"
        return HttpRequest(self.port, "GET", path, self._headers)

    def put_request(self, resource: str, body: bytes) -> HttpRequest:
        """Return the upload of one of its resources."""
        headers = self._headers | {"Content-Type": "application/octet-stream"}
        path = f"/v1/participants/{self.seat.participant}/{resource}"
        return HttpRequest(self.port, "PUT", path, headers, body)


@dataclass
class LoadRound:
    """A round of `devices` on `ports`; `around` is called around the requests of each phase."""

    devices: int
    ports: list[int]
    around: Callable[[str, Callable[[], list[HttpResponse]]], list[HttpResponse]]
    rng: Random
    _connections: ConnectionPool = field(default_factory=ConnectionPool)

    def play(self, study: str, view: RoundView) -> None:
        """Let all devices take part in a round, phase by phase."""
        self._loaders = [
            LoadDevice(index, self.ports[index % len(self.ports)], self.rng)
            for index in range(self.devices)
        ]
        with ThreadPoolExecutor(THREADS) as self._threads:
            self._join(study, view)
            self._share(view)
            self._check()
            self._mask(view)
            is_active = view.plan.terms.assumptions.is_active
            self._confirm(is_active)
            self._unmask(is_active)

    def _send(self, name: str, requests: list[HttpRequest], expected: int) -> list[bytes]:
        """Send all requests of a chunk at the same time; return the bodies of the answers."""

        def send() -> list[HttpResponse]:
            return list(self._threads.map(self._connections.request, requests))

        answers = self.around(name, send)
        for answer in answers:
            if answer.status != expected:
                raise SystemExit(f"{name}: {answer.status} {answer.body[:500]!r}")
        return [answer.body for answer in answers]

    def _get(self, resource: str, chunk: list[LoadDevice]) -> list[bytes]:
        requests = [device.get_request(resource) for device in chunk]
        return self._send(f"receive {resource}", requests, 200)

    def _put(self, resource: str, uploads: list[tuple[LoadDevice, bytes]]) -> None:
        requests = [device.put_request(resource, body) for device, body in uploads]
        self._send(f"send {resource}", requests, 204)

    def _chunks(self) -> Iterator[list[LoadDevice]]:
        for start in range(0, len(self._loaders), _DEVICES_PER_CHUNK):
            yield self._loaders[start : start + _DEVICES_PER_CHUNK]

    def _join(self, study: str, view: RoundView) -> None:
        digest = view.plan.digest()
        for chunk in self._chunks():
            requests = [device.join_request(study, view, digest) for device in chunk]
            for device, body in zip(chunk, self._send("join", requests, 201), strict=True):
                device.seat = SlotAssignment.model_validate_json(body)

    def _wait(self, resource: str) -> None:
        first_of_cohort = {device.seat.cohort: device for device in self._loaders}
        for device in first_of_cohort.values():
            while self._connections.request(device.get_request(resource)).status == 202:
                pass

    def _get_from_all(self, resource: str) -> dict[int, bytes]:
        """Wait for the end of a phase, then let all devices ask; return the answer by cohort."""
        self._wait(resource)
        bodies = dict[int, bytes]()
        for chunk in self._chunks():
            for device, body in zip(chunk, self._get(resource, chunk), strict=True):
                bodies[device.seat.cohort] = body
        return bodies

    def _share(self, view: RoundView) -> None:
        digest, assumptions = view.plan.digest(), view.plan.terms.assumptions
        sessions = {
            cohort: Session(digest, cohort, Roster.unpack(body, has_registrar=False), assumptions)
            for cohort, body in self._get_from_all("roster").items()
        }
        for chunk in self._chunks():
            uploads = []
            for device in chunk:
                session = sessions[device.seat.cohort]
                device.shared, shares = device.joined.share(device.seat.slot, session, self.rng)
                uploads.append((device, shares.pack()))
            self._put("key-shares", uploads)

    def _check(self) -> None:
        self._wait("encrypted-shares")  # so that the server routes them once
        for chunk in self._chunks():
            uploads = []
            for device, body in zip(chunk, self._get("encrypted-shares", chunk), strict=True):
                device.checked, complaints = device.shared.check(ReceivedShares.unpack(body))
                uploads.append((device, complaints.pack()))
            self._put("complaints", uploads)
        self._wait("complaints")
        for chunk in self._chunks():
            self._get("complaints", chunk)  # there are none

    def _mask(self, view: RoundView) -> None:
        ring = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan)
        sessions = {device.seat.cohort: device.shared.session for device in self._loaders}
        transcripts = {
            cohort: Transcript(sessions[cohort], ShareCommitments.unpack(body))
            for cohort, body in self._get_from_all("share-commitments").items()
        }
        for chunk in self._chunks():
            uploads = []
            for device in chunk:
                vector = ring.zero()
                vector[0][device.index] = 1
                transcript = transcripts[device.seat.cohort]
                device.masked, upload = device.checked.mask(transcript, ring, vector)
                uploads.append((device, upload.pack()))
            self._put("masked-input", uploads)

    def _confirm(self, is_active: bool) -> None:
        self._wait("survivors")
        for chunk in self._chunks():
            uploads = []
            for device, body in zip(chunk, self._get("survivors", chunk), strict=True):
                survivors = Survivors.model_validate_json(body).survivors
                device.confirmed, signature = device.masked.confirm(survivors)
                uploads.append((device, signature))
            if is_active:
                self._put("confirmation", uploads)

    def _unmask(self, is_active: bool) -> None:
        bodies = self._get_from_all("confirmations") if is_active else {}
        confirmations = {cohort: unpack_signatures(body) for cohort, body in bodies.items()}
        for chunk in self._chunks():
            uploads = []
            inputs = self._get("signed-inputs", chunk) if is_active else [b""] * len(chunk)
            for device, body in zip(chunk, inputs, strict=True):
                signatures = confirmations.get(device.seat.cohort, {})
                signed = unpack_signed_inputs(body)
                unmasking_shares = device.confirmed.unmask(signatures, signed, self.rng)
                uploads.append((device, unmasking_shares.pack()))
            self._put("unmasking-shares", uploads)


def request_json(port: int, method: str, path: str, document: object = None) -> dict[str, object]:
    """Return the JSON of a server's answer to an analyst.

    Raises:
        SystemExit: if the server refuses.
    """
    url = f"http://127.0.0.1:{port}{path}"
    response = httpx.request(method, url, json=document, timeout=_TIMEOUT_SECONDS)
    if response.is_error:
        raise SystemExit(f"{method} {path}: {response.status_code} {response.text[:500]}")
    return dict(response.json())
