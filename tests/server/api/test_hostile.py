"""Names and labels of a megabyte are refused with the limit and not stored."""

import json
from typing import Any

import structlog

from tests.server.cohort import refused
from tests.server.harness import Served, study_request

LONG_TEXT = "z" * 2**20
LARGE_BODY = (LONG_TEXT, 413, "too-large")
MALFORMED_BODY = ("z" * 200_000, 422, "malformed")  # within the limit of documents
LETTERS = {"kind": "alphabet", "length": 3}


def with_name(text: str) -> dict[str, Any]:
    return study_request(name=text)


def with_population(text: str) -> dict[str, Any]:
    return study_request(population=text)


def with_alphabet(text: str) -> dict[str, Any]:
    question = study_request()["question"] | {"domain": LETTERS | {"characters": text}}
    return study_request(question=question)


def with_unknown_field(text: str) -> dict[str, Any]:
    return study_request(**{text: 1})


def with_segment(text: str) -> dict[str, Any]:
    domain = {"kind": "hashed-product", "segments": ["a", text], "max_bytes": 9}
    return study_request(question=study_request()["question"] | {"domain": domain})


async def test_names_with_codes_for_terminals_are_refused_in_words(served: Served) -> None:
    for make in (with_name, with_segment):
        for code in ("\x1b[2J", "\x9b5n", "\x7f", "\u202e", "\u2028", "\u200b", "\ufeff", "\n"):
            answer = await served.client.post("/v1/studies", json=make(f"a{code}b"))
            refused(answer, 422, "malformed")
            words = "no control or invisible characters", "text without colons and control"
            assert any(each in answer.text for each in words), answer.text
    assert (await served.client.get("/v1/studies")).json()["studies"] == []


async def test_hostile_text_of_a_megabyte_is_refused_with_the_limit_and_not_logged(
    served: Served,
) -> None:
    for make, limit in (
        (with_name, "1 to 200 characters"),
        (with_population, "1 to 64 letters"),
        (with_alphabet, "2 to 4,096 characters"),
        (with_unknown_field, "not a known field"),
    ):
        kind = {"Content-Type": "application/json"}
        with structlog.testing.capture_logs() as logs:
            for text, status, problem in (LARGE_BODY, MALFORMED_BODY):
                body = json.dumps(make(text)).encode()
                answer = await served.client.post("/v1/studies", content=body, headers=kind)
                refused(answer, status, problem)
                named = "262144 bytes" if status == 413 else limit
                assert named in answer.text
                assert "zzzz" * 64 not in answer.text
                assert len(answer.content) < 4096
        assert "zzzz" * 64 not in repr(logs)
        assert (await served.client.get("/v1/studies")).json()["studies"] == []


async def test_hostile_labels_of_a_megabyte_are_neither_returned_nor_logged(served: Served) -> None:
    """Over a connection such a header is refused earlier; here it reaches the service."""
    for header in ("Idempotency-Key", "X-Request-ID", "Authorization"):
        with structlog.testing.capture_logs() as logs:
            answer = await served.client.post(
                "/v1/studies", json=study_request(), headers={header: LONG_TEXT}
            )
        assert answer.status_code in (201, 401, 422)
        assert "zzzz" * 64 not in answer.text + repr(answer.headers) + repr(logs)
