"""Devices that load a service: the bodies of a phase are made beforehand in chunks, then sent.

The devices are real participants of a secure sum, on the cheapest terms that exist (see
`benchmarks.service`); their computations are not in any figure. They share the messages that are
the same for all (plan, roster, transcript). Each has its own connection, on which the documents of
a phase follow in the response to its message of the phase before. The garbage collector is off: it
would stop all devices for 0.1 s at some time, and a request would take as much longer.
"""

import gc
import http.client
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from random import Random

import httpx

from protocol.api.credentials import possession_statement, secret_digest
from protocol.api.messages import EnrolmentRequest, RoundView, SlotAssignment
from protocol.api.messages_outside_sums import LENGTH_BYTES, JoinRequest, Survivors
from protocol.mechanisms.registry import SUM_MECHANISMS
from secagg.keys import Identity
from secagg.messages import unpack_signatures, unpack_signed_inputs
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.roster import Roster, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import ReceivedShares

THREADS = 64  # requests at a time
_DEVICES_PER_CHUNK = 200  # devices whose bodies are held: 80 MB of vectors
_TIMEOUT_SECONDS = 120
_LONG_POLL_SECONDS = 30  # seconds that a response waits for its documents


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A device's request."""

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


class DeviceConnection:
    """Connection of one device to the server on `port`; `requests` counts its requests."""

    def __init__(self, port: int) -> None:
        self.requests = 0
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
        self._open: http.client.HTTPResponse | None = None

    def send(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to `request`, without the documents that follow in it."""
        if self._open is not None:
            self._open.read()  # nothing, unless a document was not received
        start = time.perf_counter()
        try:
            response = self._response(request)
        except ConnectionError:  # the server closes connections after 75 idle seconds
            self._connection.close()
            response = self._response(request)
        self._open = response if response.chunked else None
        body = b"" if response.chunked else response.read()
        return HttpResponse(response.status, body, time.perf_counter() - start)

    def _response(self, request: HttpRequest) -> http.client.HTTPResponse:
        self.requests += 1
        self._connection.request(request.method, request.path, request.body, request.headers)
        return self._connection.getresponse()

    def next_document(self) -> bytes | None:
        """Return the next document that follows in the last answer, None at its end."""
        length = self._open.read(LENGTH_BYTES) if self._open is not None else b""
        if not self._open or not length:
            return None
        return self._open.read(int.from_bytes(length, "big"))


@dataclass
class LoadDevice:
    """One device with its state of the protocol."""

    index: int
    connection: DeviceConnection
    rng: Random
    seat: SlotAssignment = field(init=False)
    shared: Shared = field(init=False)
    checked: Checked = field(init=False)
    masked: Masked = field(init=False)
    confirmed: Confirmed = field(init=False)

    def __post_init__(self) -> None:
        self.identity = Identity.generate(self.rng)
        self.joined: Joined = join(self.identity, self.rng)
        self._ticket = urlsafe_b64encode(self.rng.randbytes(32)).decode().rstrip("=")
        self._headers = {"Authorization": f"Bearer {self._ticket}"}

    @property
    def cohort(self) -> int:
        return self.seat.cohort or 0

    @property
    def slot(self) -> int:
        return self.seat.slot or 0

    def enrol_request(self, token: str) -> HttpRequest:
        """Return the request for access to a service that is not open."""
        digest = secret_digest(self._ticket)
        body = EnrolmentRequest(
            identity=self.identity.public.hex(),
            credential=digest.hex(),
            signature=self.identity.sign(possession_statement(digest)).hex(),
        )
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        return HttpRequest("POST", "/v1/devices", headers, body.model_dump_json().encode())

    def join_request(self, study: str, view: RoundView, digest: bytes) -> HttpRequest:
        """Return the request to join a round."""
        keys = self.joined.public_keys
        body = JoinRequest(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            encryption_key=keys.encryption.hex(),
            signature=self.joined.advertise(digest).hex(),
        )
        path = f"/v1/studies/{study}/rounds/{view.number}/participants?wait={_LONG_POLL_SECONDS}"
        headers = self._headers | {"Content-Type": "application/json"}
        return HttpRequest("POST", path, headers, body.model_dump_json().encode())

    def put_request(self, resource: str, body: bytes) -> HttpRequest:
        """Return the upload of one of its resources."""
        headers = self._headers | {"Content-Type": "application/octet-stream"}
        return HttpRequest("PUT", self._path(resource), headers, body)

    def receive(self, resource: str) -> HttpResponse:
        """Return a document, for which the device asks if it does not follow in the last answer."""
        start, document = time.perf_counter(), self.connection.next_document()
        while document is None:
            answer = self.connection.send(HttpRequest("GET", self._path(resource), self._headers))
            if answer.status != http.HTTPStatus.ACCEPTED:
                return answer
        return HttpResponse(200, document, time.perf_counter() - start)

    def _path(self, resource: str) -> str:
        return f"/v1/participants/{self.seat.participant}/{resource}?wait={_LONG_POLL_SECONDS}"


@dataclass
class LoadRound:
    """A round of `devices` on `ports`; `around` is called around the requests of each phase.

    Devices send `requests_at_a_time`, and enrol with `token` if there is one.
    """

    devices: int
    ports: list[int]
    around: Callable[[str, Callable[[], list[HttpResponse]]], list[HttpResponse]]
    rng: Random
    requests_at_a_time: int = THREADS
    token: str | None = None

    @property
    def requests(self) -> int:
        """Return the number of requests so far."""
        return sum(device.connection.requests for device in self._loaders)

    def play(self, study: str, view: RoundView) -> None:
        """Let all devices take part in a round, phase by phase."""
        self._loaders = [
            LoadDevice(index, DeviceConnection(self.ports[index % len(self.ports)]), self.rng)
            for index in range(self.devices)
        ]
        gc.collect()
        gc.disable()
        try:
            with ThreadPoolExecutor(self.requests_at_a_time) as self._threads:
                self._play_phases(study, view)
        finally:
            gc.enable()

    def _play_phases(self, study: str, view: RoundView) -> None:
        if self.token:
            self._enrol(self.token)
        self._join(study, view)
        self._share(view)
        self._check()
        self._mask(view)
        self._confirm()
        self._unmask()

    def _send(
        self, name: str, exchanges: Sequence[Callable[[], HttpResponse]], *expected: int
    ) -> list[bytes]:
        """Run the exchanges of a chunk at the same time; return the bodies of the answers."""

        def send() -> list[HttpResponse]:
            return list(self._threads.map(lambda exchange: exchange(), exchanges))

        answers = self.around(name, send)
        for answer in answers:
            if answer.status not in expected:
                raise SystemExit(f"{name}: {answer.status} {answer.body[:500]!r}")
        return [answer.body for answer in answers]

    def _receive(self, resource: str, chunk: list[LoadDevice]) -> list[bytes]:
        exchanges = [partial(device.receive, resource) for device in chunk]
        return self._send(f"receive {resource}", exchanges, 200)

    def _put(self, resource: str, uploads: list[tuple[LoadDevice, bytes]]) -> None:
        exchanges = [
            partial(device.connection.send, device.put_request(resource, body))
            for device, body in uploads
        ]
        self._send(f"send {resource}", exchanges, 200, 204)

    def _chunks(self) -> Iterator[list[LoadDevice]]:
        for start in range(0, len(self._loaders), _DEVICES_PER_CHUNK):
            yield self._loaders[start : start + _DEVICES_PER_CHUNK]

    def _enrol(self, token: str) -> None:
        for chunk in self._chunks():
            exchanges = [
                partial(device.connection.send, device.enrol_request(token)) for device in chunk
            ]
            self._send("enrol", exchanges, 200, 201, 204)

    def _join(self, study: str, view: RoundView) -> None:
        digest = view.plan.digest()
        for chunk in self._chunks():
            exchanges = [
                partial(device.connection.send, device.join_request(study, view, digest))
                for device in chunk
            ]
            self._send("join", exchanges, 201)
            for device in chunk:
                slot = device.connection.next_document() or b""
                device.seat = SlotAssignment.model_validate_json(slot)

    def _receive_by_cohort(self, resource: str) -> dict[int, bytes]:
        """Let all devices receive a document that is the same for a cohort; return it by cohort."""
        bodies = dict[int, bytes]()
        for chunk in self._chunks():
            for device, body in zip(chunk, self._receive(resource, chunk), strict=True):
                bodies[device.cohort] = body
        return bodies

    def _share(self, view: RoundView) -> None:
        digest, assumptions = view.plan.digest(), view.plan.terms.assumptions
        sessions = {
            cohort: Session(digest, cohort, Roster.unpack(body, has_registrar=False), assumptions)
            for cohort, body in self._receive_by_cohort("roster").items()
        }
        for chunk in self._chunks():
            uploads = []
            for device in chunk:
                session = sessions[device.cohort]
                device.shared, shares = device.joined.share(device.slot, session, self.rng)
                uploads.append((device, shares.pack()))
            self._put("key-shares", uploads)

    def _check(self) -> None:
        for chunk in self._chunks():
            uploads = []
            for device, body in zip(chunk, self._receive("encrypted-shares", chunk), strict=True):
                device.checked, complaints = device.shared.check(ReceivedShares.unpack(body))
                uploads.append((device, complaints.pack()))
            self._put("complaints", uploads)
        for chunk in self._chunks():
            self._receive("complaints", chunk)  # there are none

    def _mask(self, view: RoundView) -> None:
        ring = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan)
        sessions = {device.cohort: device.shared.session for device in self._loaders}
        transcripts = {
            cohort: Transcript(sessions[cohort], ShareCommitments.unpack(body))
            for cohort, body in self._receive_by_cohort("share-commitments").items()
        }
        for chunk in self._chunks():
            uploads = []
            for device in chunk:
                vector = ring.zero()
                vector[0][device.index] = 1
                transcript = transcripts[device.cohort]
                device.masked, upload = device.checked.mask(transcript, ring, vector)
                uploads.append((device, upload.pack()))
            self._put("masked-input", uploads)

    def _confirm(self) -> None:
        for chunk in self._chunks():
            uploads = []
            for device, body in zip(chunk, self._receive("survivors", chunk), strict=True):
                survivors = Survivors.model_validate_json(body).survivors
                device.confirmed, signature = device.masked.confirm(survivors)
                uploads.append((device, signature))
            self._put("confirmation", uploads)

    def _unmask(self) -> None:
        bodies = self._receive_by_cohort("confirmations")
        confirmations = {cohort: unpack_signatures(body) for cohort, body in bodies.items()}
        for chunk in self._chunks():
            uploads = []
            inputs = self._receive("signed-inputs", chunk)
            for device, body in zip(chunk, inputs, strict=True):
                signatures = confirmations[device.cohort]
                signed = unpack_signed_inputs(body)
                unmasking_shares = device.confirmed.unmask(signatures, signed, self.rng)
                uploads.append((device, unmasking_shares.pack()))
            self._put("unmasking-shares", uploads)


def request_json(
    port: int, method: str, path: str, document: object = None, *, key: str | None = None
) -> dict[str, object]:
    """Return the JSON of a server's answer to an analyst with `key`.

    Raises:
        SystemExit: if the server refuses.
    """
    url = f"http://127.0.0.1:{port}{path}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = _http().request(method, url, json=document, headers=headers)
    if response.is_error:
        raise SystemExit(f"{method} {path}: {response.status_code} {response.text[:500]}")
    return dict(response.json())


@cache
def _http() -> httpx.Client:
    return httpx.Client(timeout=_TIMEOUT_SECONDS)  # once: it loads all certificates
