"""HTTP service of a registrar: a device proves to be real, and gets its identity signed.

    POST /v1/enrolments  the proof as bearer token, and a SignatureRequest: a SignatureAnswer
    GET /healthz         200 if the record can be written and the rounds are read, 503 otherwise
    GET /metrics         signatures and refusals, and rounds that were seated (Prometheus)

The proof is checked before the body is read. The registrar computes the scope that it signs from
the question and the terms, and never signs one that a device states.
"""

import asyncio
import re
import sqlite3
from time import monotonic, time
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from blindtally.registrar_service.enrolment_record import EnrolmentRecord, OlderCopyError, Person
from blindtally.registrar_service.proofs import Prove
from blindtally.status_page import status_routes
from client.committee.registrar import Registrar
from client.errors import has_many_values
from protocol.api.messages import ProblemType, SignatureAnswer, SignatureRequest
from secagg.keys import Identity, check_identity
from server.errors import ProblemError, malformed
from server.http.problem_details import problem_of, problem_response

MAX_BODY_BYTES: Final = 4 * 2**20  # a device reads no larger plan
_BODY_SECONDS: Final = 30.0
_HEALTHY_SECONDS: Final = 60.0
_PROOF: Final = re.compile(r"[Bb]earer ([!-~]{1,8192})")


class RegistrarService:
    """Service of the registrar `identity`; `seating` seats rounds at the same time."""

    def __init__(
        self,
        identity: Identity,
        record: EnrolmentRecord,
        prove: Prove,
        seating: Registrar | None = None,
    ) -> None:
        self._identity, self._record, self._prove = identity, record, prove
        self._seating = seating
        self._registry = CollectorRegistry()
        name, help_text = "blindtally_registrar_answers", "Answers to devices and rounds, by result"
        self._answers = Counter(name, help_text, ["result"], registry=self._registry)

    def app(self) -> Starlette:
        """Return the service for devices."""
        enrolments = Route("/v1/enrolments", self._answer, methods=["POST"])
        return Starlette(routes=[enrolments, *status_routes(self._registry, self.fault)])

    def count(self, result: str) -> None:
        """Count an answer with this `result`."""
        self._answers.labels(result).inc()

    def fault(self) -> str:
        """Return the reason for which the registrar does not work; empty if it does."""
        try:
            self._record.check()
        except sqlite3.Error:
            return "the record cannot be written"
        except OlderCopyError:
            return "the record is an older copy"
        seating = self._seating
        if seating is not None and monotonic() - seating.last_contact > _HEALTHY_SECONDS:
            return "the service does not show its rounds"
        return ""

    async def _answer(self, request: Request) -> Response:
        try:
            person = await self._person(request.headers.get("authorization", ""))
            async with asyncio.timeout(_BODY_SECONDS):
                body = await _read_body(request)
            answer, is_new = await asyncio.to_thread(self._enrol, person, body)
        except TimeoutError:
            problem = ProblemError(ProblemType.TOO_SLOW, "the body did not arrive")
        except (sqlite3.Error, OSError, OlderCopyError):
            detail = "the registrar cannot write its record: nothing was signed"
            problem = ProblemError(ProblemType.UNAVAILABLE, detail)
        except ValueError:  # of pydantic, or of an identity
            problem = malformed("the body is not a request for a signature")
        except Exception as error:  # logged there if unexpected
            problem = problem_of(error)
        else:
            self.count("signed" if is_new else "repeated")
            return Response(answer.model_dump_json(), media_type="application/json")
        self.count(problem.kind.value)
        return problem_response(problem)

    async def _person(self, header: str) -> Person:
        match = _PROOF.fullmatch(header)
        if match is None:
            detail = "send the proof that the device is real, of at most 8192 printable characters"
            raise ProblemError(ProblemType.NOT_AUTHORISED, detail)
        return await self._prove(match[1])

    def _enrol(self, person: Person, body: bytes) -> tuple[SignatureAnswer, bool]:
        """Return the signature, and whether it is the first one for this person in the study."""
        if has_many_values(body):  # nor does a device read a plan that has
            raise malformed("the body has too many values")
        request = SignatureRequest.model_validate_json(body)
        registry = request.question.registry(request.study, request.terms, request.rounds)
        if registry is None or registry.registrar != self._identity.public:
            raise ProblemError(ProblemType.NOT_ENROLLED, "the study names another registrar")
        identity = bytes.fromhex(request.identity)
        check_identity(identity)
        is_new = self._record.enrol(person, registry.scope, identity, time())
        signature = self._identity.sign(registry.enrolment_statement(identity))
        return SignatureAnswer(signature=signature.hex()), is_new


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise ProblemError(ProblemType.TOO_LARGE, f"a body may have {MAX_BODY_BYTES:,} bytes")
    return bytes(body)
