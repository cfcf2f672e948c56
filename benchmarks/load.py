"""Devices that load a service: each phase's bodies are made beforehand, some at a time, then sent.

The devices are real participants of a secure sum, on the cheapest terms there are (see
`benchmarks.service`); what they compute is not in any figure. They share what all of them are
told alike (plan, roster, view), and send over plain connections that are kept.
"""

import http.client
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from threading import local

from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.messages import (
    JoinRequest,
    RoundView,
    SlotAssignment,
    Survivors,
)
from secagg.keys import Identity
from secagg.messages import unpack_confirmations
from secagg.participant import Confirmed, Joined, Masked, Shared, join
from secagg.roster import Roster, ShareCommitments
from secagg.session import Session, Transcript
from secagg.shares import ReceivedShares

THREADS = 16  # connections at a time
_DEVICES_PER_CHUNK = 200  # devices whose bodies are held: 80 MB of vectors
_LONG_POLL_SECONDS = 30  # seconds that a question waits for its answer


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a device asks of the server on `port`."""

    port: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What it was answered, and in how many seconds."""

    status: int
    body: bytes
    seconds: float


class ConnectionPool:
    """Connections to servers of this machine, one of each thread to each."""

    def __init__(self) -> None:
        self._thread_state = local()

    def request(self, request: HttpRequest) -> HttpResponse:
        """Return the answer to `request`; one that was idle for long is asked again."""
        known = self._thread_state.__dict__.setdefault("wires", {})
        if request.port not in known:
            known[request.port] = http.client.HTTPConnection("127.0.0.1", request.port, timeout=120)
        try:
            return self._ask(known[request.port], request)
        except ConnectionError:  # the server closes what nobody used for 75 seconds
            known[request.port].close()
            return self._ask(known[request.port], request)

    def _ask(self, wire: http.client.HTTPConnection, request: HttpRequest) -> HttpResponse:
        start = time.perf_counter()
        wire.request(request.method, request.path, request.body, request.headers)
        response = wire.getresponse()
        body = response.read()
        return HttpResponse(response.status, body, time.perf_counter() - start)


@dataclass
class LoadDevice:
    """One device, as far as it has come."""

    index: int
    port: int
    rng: Random
    seat: SlotAssignment = field(init=False)
    shared: Shared = field(init=False)
    masked: Masked = field(init=False)
    confirmed: Confirmed = field(init=False)

    def __post_init__(self) -> None:
        self.identity = Identity.generate(self.rng)
        self.joined: Joined = join(self.identity, self.rng)
        ticket = urlsafe_b64encode(self.rng.randbytes(32)).decode().rstrip("=")
        self._headers = {"Authorization": f"Bearer {ticket}"}

    def join_request(self, study: str, view: RoundView, digest: bytes) -> HttpRequest:
        """Return the wish to take part."""
        keys = self.joined.public_keys
        wish = JoinRequest(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            encryption_key=keys.encryption.hex(),
            signature=self.joined.advertise(digest).hex(),
        )
        path = f"/v1/studies/{study}/rounds/{view.number}/participants"
        headers = self._headers | {"Content-Type": "application/json"}
        return HttpRequest(self.port, "POST", path, headers, wish.model_dump_json().encode())

    def get_request(self, what: str) -> HttpRequest:
        """Return the question for something."""
        path = f"/v1/participants/{self.seat.participant}/{what}?wait={_LONG_POLL_SECONDS}"
        return HttpRequest(self.port, "GET", path, self._headers)

    def put_request(self, what: str, body: bytes) -> HttpRequest:
        """Return the upload of something."""
        headers = self._headers | {"Content-Type": "application/octet-stream"}
        path = f"/v1/participants/{self.seat.participant}/{what}"
        return HttpRequest(self.port, "PUT", path, headers, body)


@dataclass
class LoadRound:
    """A round of `devices` on `ports`; `around` is called around what is sent in each phase."""

    devices: int
    ports: list[int]
    around: Callable[[str, Callable[[], list[HttpResponse]]], list[HttpResponse]]
    rng: Random
    _wires: ConnectionPool = field(default_factory=ConnectionPool)

    def play(self, study: str, view: RoundView) -> None:
        """Let all devices take part in a round, phase by phase."""
        self.loaders = [
            LoadDevice(index, self.ports[index % len(self.ports)], self.rng)
            for index in range(self.devices)
        ]
        with ThreadPoolExecutor(THREADS) as self._threads:
            self._join(study, view)
            self._share(view)
            self._mask(view)
            is_active = view.plan.terms.assumptions.is_active
            self._confirm(is_active)
            self._unmask(is_active)

    def _send(self, name: str, requests: list[HttpRequest], expected: int) -> list[bytes]:
        """Send all of a chunk at the same time; return the bodies of the answers."""

        def send() -> list[HttpResponse]:
            return list(self._threads.map(self._wires.request, requests))

        answers = self.around(name, send)
        for answer in answers:
            if answer.status != expected:
                raise SystemExit(f"{name}: {answer.status} {answer.body[:500]!r}")
        return [answer.body for answer in answers]

    def _chunks(self) -> Iterator[list[LoadDevice]]:
        return chunked(self.loaders)

    def _join(self, study: str, view: RoundView) -> None:
        digest = view.plan.digest()
        for chunk in self._chunks():
            bodies = self._send(
                "join", [one.join_request(study, view, digest) for one in chunk], 201
            )
            for one, body in zip(chunk, bodies, strict=True):
                one.seat = SlotAssignment.model_validate_json(body)

    def _wait(self, what: str) -> None:
        first = {one.seat.cohort: one for one in self.loaders}
        for one in first.values():
            while self._wires.request(one.get_request(what)).status == 202:
                pass

    def _get_from_all(self, what: str) -> dict[int, bytes]:
        """Wait for the phase to be over, then let everybody ask; return what each cohort hears."""
        self._wait(what)
        heard = {}
        for chunk in self._chunks():
            bodies = self._send(f"hear {what}", [one.get_request(what) for one in chunk], 200)
            heard |= {one.seat.cohort: body for one, body in zip(chunk, bodies, strict=True)}
        return heard

    def _share(self, view: RoundView) -> None:
        plan = view.plan
        cohorts = {
            number: Session(
                plan.digest(),
                number,
                Roster.unpack(roster, has_registrar=False),
                plan.terms.assumptions,
            )
            for number, roster in self._get_from_all("roster").items()
        }
        for chunk in self._chunks():
            requests = []
            for one in chunk:
                cohort = cohorts[one.seat.cohort]
                one.shared, deal = one.joined.share(one.seat.slot, cohort, self.rng)
                requests.append(one.put_request("key-shares", deal.pack()))
            self._send("say shares", requests, 204)

    def _mask(self, view: RoundView) -> None:
        ring = SUM_MECHANISMS[view.plan.mechanism].ring(view.plan)
        cohorts = {one.seat.cohort: one.shared.session for one in self.loaders}
        views = {
            number: Transcript(cohorts[number], ShareCommitments.unpack(sharers))
            for number, sharers in self._get_from_all("share-commitments").items()
        }
        for chunk in self._chunks():
            requests = []
            for one in chunk:
                vector = ring.zero()
                vector[0][one.index] = 1
                told = views[one.seat.cohort]
                one.masked, upload = one.shared.mask(told, ring, vector, self.rng)
                requests.append(one.put_request("masked-input", upload.pack()))
            self._send("say vector", requests, 204)

    def _confirm(self, is_active: bool) -> None:
        self._wait("survivors")
        for chunk in self._chunks():
            told = self._send(
                "hear survivors", [one.get_request("survivors") for one in chunk], 200
            )
            requests = []
            for one, body in zip(chunk, told, strict=True):
                survivors = Survivors.model_validate_json(body).survivors
                one.confirmed, signature = one.masked.confirm(survivors)
                requests.append(one.put_request("confirmation", signature))
            if is_active:
                self._send("say confirmation", requests, 204)

    def _unmask(self, is_active: bool) -> None:
        told = self._get_from_all("confirmations") if is_active else {}
        confirmations = {number: unpack_confirmations(body) for number, body in told.items()}
        self._wait("encrypted-shares")  # so that all is packed once
        for chunk in self._chunks():
            parcels = self._send(
                "hear parcels", [one.get_request("encrypted-shares") for one in chunk], 200
            )
            requests = []
            for one, inbox in zip(chunk, parcels, strict=True):
                known = confirmations.get(one.seat.cohort, {})
                reveal = one.confirmed.unmask(known, ReceivedShares.unpack(inbox), self.rng)
                requests.append(one.put_request("unmasking-shares", reveal.pack()))
            self._send("say reveal", requests, 204)


def chunked(loaders: Iterable[LoadDevice]) -> Iterator[list[LoadDevice]]:
    """Yield some at a time."""
    remaining = iter(loaders)
    while chunk := list(islice(remaining, _DEVICES_PER_CHUNK)):
        yield chunk


def request_json(port: int, method: str, path: str, document: object = None) -> dict[str, object]:
    """Return the JSON that a server answers an analyst.

    Raises:
        SystemExit: if it refuses.
    """
    body = b"" if document is None else json.dumps(document).encode()
    headers = {"Content-Type": "application/json"}
    answer = ConnectionPool().request(HttpRequest(port, method, path, headers, body))
    if answer.status >= 400:
        raise SystemExit(f"{method} {path}: {answer.status} {answer.body[:500]!r}")
    found: dict[str, object] = json.loads(answer.body)
    return found
