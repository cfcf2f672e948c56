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

from protocol.mechanisms import SUMMING
from protocol.messages import (
    Join,
    RoundView,
    Seat,
    Survivors,
    unpack_confirmations,
    unpack_parcels,
    unpack_roster,
    unpack_sharers,
)
from secagg.cohort import Cohort, View
from secagg.keys import Identity
from secagg.participant import Confirmed, Joined, Masked, Shared, join

THREADS = 16  # connections at a time
_CHUNK = 200  # devices whose bodies are held: 80 MB of vectors
_WAIT = 30  # seconds that a question waits for its answer


@dataclass(frozen=True, slots=True)
class Request:
    """What a device asks of the server on `port`."""

    port: int
    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """What it was answered, and in how many seconds."""

    status: int
    body: bytes
    seconds: float


class Wires:
    """Connections to servers of this machine, one of each thread to each."""

    def __init__(self) -> None:
        self._own = local()

    def ask(self, request: Request) -> Answer:
        """Return the answer to `request`; one that was idle for long is asked again."""
        known = self._own.__dict__.setdefault("wires", {})
        if request.port not in known:
            known[request.port] = http.client.HTTPConnection("127.0.0.1", request.port, timeout=120)
        try:
            return self._ask(known[request.port], request)
        except ConnectionError:  # the server closes what nobody used for 75 seconds
            known[request.port].close()
            return self._ask(known[request.port], request)

    def _ask(self, wire: http.client.HTTPConnection, request: Request) -> Answer:
        start = time.perf_counter()
        wire.request(request.method, request.path, request.body, request.headers)
        response = wire.getresponse()
        body = response.read()
        return Answer(response.status, body, time.perf_counter() - start)


@dataclass
class Loader:
    """One device, as far as it has come."""

    index: int
    port: int
    rng: Random
    seat: Seat = field(init=False)
    shared: Shared = field(init=False)
    masked: Masked = field(init=False)
    confirmed: Confirmed = field(init=False)

    def __post_init__(self) -> None:
        self.identity = Identity.generate(self.rng)
        self.joined: Joined = join(self.identity, self.rng)
        ticket = urlsafe_b64encode(self.rng.randbytes(32)).decode().rstrip("=")
        self._headers = {"Authorization": f"Bearer {ticket}"}

    def apply(self, study: str, view: RoundView, digest: bytes) -> Request:
        """Return the wish to take part."""
        keys = self.joined.public
        wish = Join(
            identity=self.identity.public.hex(),
            mask_key=keys.mask.hex(),
            seal_key=keys.seal.hex(),
            signature=self.joined.advertise(digest).hex(),
        )
        path = f"/v1/studies/{study}/rounds/{view.number}/participants"
        headers = self._headers | {"Content-Type": "application/json"}
        return Request(self.port, "POST", path, headers, wish.model_dump_json().encode())

    def hear(self, what: str) -> Request:
        """Return the question for something."""
        path = f"/v1/participants/{self.seat.participant}/{what}?wait={_WAIT}"
        return Request(self.port, "GET", path, self._headers)

    def say(self, what: str, body: bytes) -> Request:
        """Return the upload of something."""
        headers = self._headers | {"Content-Type": "application/octet-stream"}
        path = f"/v1/participants/{self.seat.participant}/{what}"
        return Request(self.port, "PUT", path, headers, body)


@dataclass
class Load:
    """A round of `devices` on `ports`; `around` is called around what is sent in each phase."""

    devices: int
    ports: list[int]
    around: Callable[[str, Callable[[], list[Answer]]], list[Answer]]
    rng: Random
    _wires: Wires = field(default_factory=Wires)

    def play(self, study: str, view: RoundView) -> None:
        """Let all devices take part in a round, phase by phase."""
        self.loaders = [
            Loader(index, self.ports[index % len(self.ports)], self.rng)
            for index in range(self.devices)
        ]
        with ThreadPoolExecutor(THREADS) as self._threads:
            self._join(study, view)
            self._share(view)
            self._mask(view)
            is_active = view.plan.terms.assumptions.is_active
            self._confirm(is_active)
            self._reveal(is_active)

    def _send(self, name: str, requests: list[Request], expected: int) -> list[bytes]:
        """Send all of a chunk at the same time; return the bodies of the answers."""

        def send() -> list[Answer]:
            return list(self._threads.map(self._wires.ask, requests))

        answers = self.around(name, send)
        for answer in answers:
            if answer.status != expected:
                raise SystemExit(f"{name}: {answer.status} {answer.body[:500]!r}")
        return [answer.body for answer in answers]

    def _chunks(self) -> Iterator[list[Loader]]:
        return chunked(self.loaders)

    def _join(self, study: str, view: RoundView) -> None:
        digest = view.plan.digest()
        for chunk in self._chunks():
            bodies = self._send("join", [one.apply(study, view, digest) for one in chunk], 201)
            for one, body in zip(chunk, bodies, strict=True):
                one.seat = Seat.model_validate_json(body)

    def _wait(self, what: str) -> None:
        first = {one.seat.cohort: one for one in self.loaders}
        for one in first.values():
            while self._wires.ask(one.hear(what)).status == 202:
                pass

    def _hear(self, what: str) -> dict[int, bytes]:
        """Wait for the phase to be over, then let everybody ask; return what each cohort hears."""
        self._wait(what)
        heard = {}
        for chunk in self._chunks():
            bodies = self._send(f"hear {what}", [one.hear(what) for one in chunk], 200)
            heard |= {one.seat.cohort: body for one, body in zip(chunk, bodies, strict=True)}
        return heard

    def _share(self, view: RoundView) -> None:
        plan = view.plan
        cohorts = {
            number: Cohort(
                plan.digest(),
                number,
                unpack_roster(roster, has_registrar=False),
                plan.terms.assumptions,
            )
            for number, roster in self._hear("roster").items()
        }
        for chunk in self._chunks():
            requests = []
            for one in chunk:
                cohort = cohorts[one.seat.cohort]
                one.shared, deal = one.joined.share(one.seat.slot, cohort, self.rng)
                requests.append(one.say("shares", deal.pack()))
            self._send("say shares", requests, 204)

    def _mask(self, view: RoundView) -> None:
        ring = SUMMING[view.plan.mechanism].ring(view.plan)
        cohorts = {one.seat.cohort: one.shared.cohort for one in self.loaders}
        views = {
            number: View(cohorts[number], unpack_sharers(sharers))
            for number, sharers in self._hear("sharers").items()
        }
        for chunk in self._chunks():
            requests = []
            for one in chunk:
                vector = ring.zero()
                vector[0][one.index] = 1
                told = views[one.seat.cohort]
                one.masked, upload = one.shared.mask(told, ring, vector, self.rng)
                requests.append(one.say("vector", upload.pack()))
            self._send("say vector", requests, 204)

    def _confirm(self, is_active: bool) -> None:
        self._wait("survivors")
        for chunk in self._chunks():
            told = self._send("hear survivors", [one.hear("survivors") for one in chunk], 200)
            requests = []
            for one, body in zip(chunk, told, strict=True):
                survivors = Survivors.model_validate_json(body).survivors
                one.confirmed, signature = one.masked.confirm(survivors)
                requests.append(one.say("confirmation", signature))
            if is_active:
                self._send("say confirmation", requests, 204)

    def _reveal(self, is_active: bool) -> None:
        told = self._hear("confirmations") if is_active else {}
        confirmations = {number: unpack_confirmations(body) for number, body in told.items()}
        self._wait("parcels")  # so that all is packed once
        for chunk in self._chunks():
            parcels = self._send("hear parcels", [one.hear("parcels") for one in chunk], 200)
            requests = []
            for one, inbox in zip(chunk, parcels, strict=True):
                known = confirmations.get(one.seat.cohort, {})
                reveal = one.confirmed.reveal(known, unpack_parcels(inbox), self.rng)
                requests.append(one.say("reveal", reveal.pack()))
            self._send("say reveal", requests, 204)


def chunked(loaders: Iterable[Loader]) -> Iterator[list[Loader]]:
    """Yield some at a time."""
    remaining = iter(loaders)
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


def ask(port: int, method: str, path: str, document: object = None) -> dict[str, object]:
    """Return the JSON that a server answers an analyst.

    Raises:
        SystemExit: if it refuses.
    """
    body = b"" if document is None else json.dumps(document).encode()
    headers = {"Content-Type": "application/json"}
    answer = Wires().ask(Request(port, method, path, headers, body))
    if answer.status >= 400:
        raise SystemExit(f"{method} {path}: {answer.status} {answer.body[:500]!r}")
    found: dict[str, object] = json.loads(answer.body)
    return found
