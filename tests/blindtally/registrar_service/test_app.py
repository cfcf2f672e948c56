"""The service signs for devices that prove to be real, for one identity and the study's terms."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import stamina
from starlette.applications import Starlette

from blindtally.demo.server_process import free_port
from blindtally.registrar_service import app
from blindtally.registrar_service.app import MAX_BODY_BYTES, RegistrarService
from blindtally.registrar_service.enrolment_record import EnrolmentRecord
from blindtally.registrar_service.proofs import by_tokens
from blindtally.status_page import page_server
from client.committee.registrar import DrawRecord, Registrar
from protocol.api.messages import SignatureRequest
from protocol.mechanisms.registry import parse_question
from secagg.keys import Identity
from tests.client.cohort import QUESTION, REGISTRAR, SECOND_REGISTRAR, TERMS

DEVICE, OTHER_DEVICE = (Identity.of(bytes([number]) * 32).public for number in (1, 2))
KEY = REGISTRAR.public.hex()


def asked(identity: bytes = DEVICE, study: str = "s", **terms: Any) -> SignatureRequest:
    changed = TERMS.model_copy(update={"registrar": KEY} | terms)
    return SignatureRequest(
        study=study, question=QUESTION, terms=changed, rounds=3, identity=identity.hex()
    )


def reports() -> SignatureRequest:
    question = parse_question(
        {
            "mechanism": "krr",
            "threshold": 1,
            "domain": {"kind": "listed", "items": ["yes", "no"]},
            "epsilon": 8.0,
        }
    )
    return asked().model_copy(update={"question": question})


async def post(
    service: RegistrarService, body: SignatureRequest | bytes, proof: str | None
) -> httpx.Response:
    content = body if isinstance(body, bytes) else body.model_dump_json().encode()
    headers = {} if proof is None else {"authorization": f"Bearer {proof}"}
    transport = httpx.ASGITransport(service.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://r") as http:
        return await http.post("/v1/enrolments", content=content, headers=headers)


async def get(page: Any, path: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://r") as http:
        return await http.get(path)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


@pytest.fixture
def service(record: EnrolmentRecord) -> RegistrarService:
    for request in (asked(), asked(study="t"), reports()):
        registry = request.question.registry(request.study, request.terms, request.rounds)
        assert registry is not None
        assert record.allow(f"{request.study}-{request.question.mechanism}", registry.scope)
    return RegistrarService(REGISTRAR, record, by_tokens(record))


async def test_a_real_device_gets_the_signature_of_its_study_and_again(
    service: RegistrarService, token: str
) -> None:
    request = asked()
    first, second = [await post(service, request, token) for _ in range(2)]
    assert (first.status_code, first.content) == (200, second.content)
    registry = QUESTION.registry("s", request.terms, 3)
    assert registry is not None
    assert registry.admits(DEVICE, bytes.fromhex(first.json()["signature"]))
    metrics = (await get(service.app(), "/metrics")).text
    for result in ("signed", "repeated"):
        assert f'blindtally_registrar_answers_total{{result="{result}"}} 1.0' in metrics


async def test_a_stolen_token_gives_one_identity_only_and_none_once_it_is_revoked(
    service: RegistrarService, record: EnrolmentRecord, token: str
) -> None:
    assert (await post(service, asked(DEVICE), token)).is_success  # the thief was first
    twice = await post(service, asked(OTHER_DEVICE), token)
    assert refusal(twice) == (403, "not-enrolled")
    assert "another identity" in twice.json()["detail"]
    record.revoke(token)
    for identity in (DEVICE, OTHER_DEVICE):
        assert refusal(await post(service, asked(identity, "t"), token)) == (403, "not-enrolled")


async def test_a_signature_is_for_one_study_and_its_terms(
    service: RegistrarService, token: str
) -> None:
    """A replay for another study, or for the same id with other terms, is refused by devices."""
    signature = bytes.fromhex((await post(service, asked(), token)).json()["signature"])
    for other in (asked(study="t"), asked(minimum=9), asked(dropout=0.2)):
        registry = QUESTION.registry(other.study, other.terms, 3)
        assert registry is not None
        assert not registry.admits(DEVICE, signature)


async def test_a_one_time_token_is_not_replayed_for_another_study(
    service: RegistrarService, record: EnrolmentRecord
) -> None:
    (once,) = record.add_tokens(1, Random(2), None, is_once=True)
    assert (await post(service, asked(), once)).is_success
    assert refusal(await post(service, asked(study="t"), once)) == (403, "not-enrolled")


async def test_studies_of_another_registrar_or_of_none_are_refused(
    service: RegistrarService, token: str
) -> None:
    for named in (SECOND_REGISTRAR.public.hex(), None):
        answer = await post(service, asked(registrar=named), token)
        assert refusal(answer) == (403, "not-enrolled")
        assert "another registrar" in answer.json()["detail"]


async def test_a_registrar_signs_for_studies_that_its_operator_knows_only(
    record: EnrolmentRecord, token: str
) -> None:
    """A server with five corrupt devices makes a study of six around one, which nobody joins."""
    known = asked(study="u")
    registry = known.question.registry("u", known.terms, 3)
    assert registry is not None
    assert record.allow("u", registry.scope)
    service = RegistrarService(REGISTRAR, record, by_tokens(record))
    for invented in (asked(study="u", cohort_size=8), asked(study="v")):
        assert refusal(await post(service, invented, token)) == (403, "not-enrolled")
    assert (await post(service, known, token)).is_success


async def test_a_person_has_one_identity_in_all_studies_of_reports(
    service: RegistrarService, token: str
) -> None:
    first = reports()
    other = first.model_copy(update={"study": "t"})
    again = other.model_copy(update={"identity": OTHER_DEVICE.hex()})
    assert (await post(service, first, token)).is_success
    assert (await post(service, other, token)).is_success
    assert refusal(await post(service, again, token)) == (403, "not-enrolled")


@pytest.mark.parametrize("proof", [None, "", "a b", "x" * 8193])
async def test_a_request_without_a_proof_is_refused_before_its_body_is_read(
    service: RegistrarService, proof: str | None
) -> None:
    assert refusal(await post(service, b"{", proof)) == (401, "not-authorised")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (422, "malformed")),
        (b"[" * 200_000, (422, "malformed")),
        (b"\xff", (422, "malformed")),
        (b" " * (MAX_BODY_BYTES + 1), (413, "too-large")),
        (b"{" * 200_000, (422, "malformed")),
        (asked().model_copy(update={"identity": "0" * 64}), (422, "malformed")),  # low order
        (asked().model_copy(update={"rounds": 0}), (422, "malformed")),
        (asked().model_copy(update={"study": "../s"}), (422, "malformed")),
    ],
)
async def test_a_malformed_request_is_refused(
    service: RegistrarService, token: str, body: SignatureRequest | bytes, expected: tuple[int, str]
) -> None:
    assert refusal(await post(service, body, token)) == expected


async def test_a_body_that_does_not_arrive_is_not_waited_for(
    service: RegistrarService, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_BODY_SECONDS", 0.01)

    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app())) as http:
        answer = await http.post("http://r/v1/enrolments", content=slow(), headers=headers)
    assert refusal(answer) == (408, "too-slow")


async def test_a_record_that_cannot_be_written_signs_nothing_and_is_not_healthy(
    service: RegistrarService, record: EnrolmentRecord, token: str
) -> None:
    assert (await get(service.app(), "/healthz")).text == "ok\n"
    record._connection.execute("PRAGMA query_only = TRUE")
    assert refusal(await post(service, asked(), token)) == (503, "unavailable")
    assert (await get(service.app(), "/healthz")).status_code == 503
    record._connection.execute("PRAGMA query_only = FALSE")
    assert (await post(service, asked(), token)).is_success
    with patch.object(os, "access", return_value=False):  # an immutable file, which is open
        assert (await get(service.app(), "/healthz")).status_code == 503


def test_a_record_that_is_removed_or_replaced_is_not_healthy(
    service: RegistrarService, file: Path
) -> None:
    file.rename(file.with_suffix(".away"))
    assert service.fault() == "the record cannot be written"
    shutil.copy(file.with_suffix(".away"), file)
    assert service.fault() == "the record cannot be written"


async def test_a_registrar_that_seats_is_healthy_while_the_service_shows_its_rounds(
    record: EnrolmentRecord,
) -> None:
    seats = Registrar(REGISTRAR, DrawRecord())
    service = RegistrarService(REGISTRAR, record, by_tokens(record), seating=seats)
    assert service.fault() == ""
    seats.last_contact = monotonic() - 100
    assert service.fault() == "the service does not show its rounds"


async def test_a_head_without_end_takes_no_memory_of_a_registrar_or_a_member() -> None:
    port = free_port()
    serving = asyncio.create_task(page_server(Starlette(), "127.0.0.1", port))
    async for attempt in stamina.retry_context(on=OSError, wait_initial=0.05):
        with attempt:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nX: " + b"a" * 10**6)
    with suppress(ConnectionError):
        await asyncio.wait_for(reader.read(), 10)
    writer.close()
    serving.cancel()
