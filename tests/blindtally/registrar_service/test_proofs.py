"""Each way of a proof accepts real devices, names a person, and refuses what it does not know."""

from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

import psutil
import pytest

from blindtally.registrar_service import proofs
from blindtally.registrar_service.enrolment_record import EnrolmentRecord, person_of
from blindtally.registrar_service.proofs import CheckCommand, OpenIdTokens, Prove, by_tokens
from protocol.api.messages import ProblemType
from server.errors import ProblemError
from tests.server.fake_provider import CLIENT_ID, ISSUER, FakeProvider

AUDIENCE = "registrar of phones"


async def refusal(prove: Prove, proof: str) -> ProblemType:
    with pytest.raises(ProblemError) as caught:
        await prove(proof)
    assert proof not in caught.value.detail
    return caught.value.kind


def command(folder: Path, *lines: str) -> Path:
    path = folder / "is-real"
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o700)
    return path


async def test_a_token_of_the_registrar_is_a_proof(record: EnrolmentRecord, token: str) -> None:
    assert await by_tokens(record)(token) == person_of(token)
    for other in (token[:-1], token + "A", "btr_" + "A" * 43):
        assert await refusal(by_tokens(record), other) is ProblemType.NOT_ENROLLED


@pytest.fixture
def provider() -> FakeProvider:
    return FakeProvider(lambda: datetime.now(UTC), claims={"aud": AUDIENCE})


def openid(provider: FakeProvider) -> OpenIdTokens:
    return OpenIdTokens(ISSUER, AUDIENCE, provider.transport())


async def test_an_account_is_one_person_with_each_of_its_tokens(provider: FakeProvider) -> None:
    prove = openid(provider)
    first = await prove(provider.id_token("a"))
    assert await prove(provider.id_token("b")) == first
    provider.claims["sub"] = "2"
    assert await prove(provider.id_token("a")) != first


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": CLIENT_ID},  # a login at the aggregation server, whose operator has the token
        {"aud": [AUDIENCE, CLIENT_ID], "azp": CLIENT_ID},
        {"iss": "https://other.example.org"},
        {"exp": 1_000_000_000},
        {"sub": None},
        {"sub": 7},
    ],
)
async def test_a_token_for_another_party_or_without_an_account_is_refused(
    provider: FakeProvider, claims: dict[str, Any]
) -> None:
    provider.claims |= claims
    assert await refusal(openid(provider), provider.id_token("a")) is ProblemType.NOT_ENROLLED


async def test_a_provider_that_does_not_answer_refuses_nobody_permanently(
    provider: FakeProvider,
) -> None:
    prove, token = openid(provider), provider.id_token("a")
    provider.answers["/keys"] = TimeoutError()
    assert await refusal(prove, token) is ProblemType.UNAVAILABLE
    del provider.answers["/keys"]
    await prove(token)
    asked = len(provider.requests)
    await prove(token)
    assert len(provider.requests) == asked  # keys are asked for once a minute


async def test_a_command_decides_by_its_exit_status_and_may_name_the_person(tmp_path: Path) -> None:
    prove = CheckCommand(
        command(
            tmp_path, "read line", 'case "$line" in *good*) echo " tablet 7 ";; *) exit 3; esac'
        )
    )
    person = await prove("good one")
    assert await prove("good two") == person
    assert await refusal(prove, "bad") is ProblemType.NOT_ENROLLED
    unnamed = CheckCommand(command(tmp_path, "cat >/dev/null"))
    assert await unnamed("good one") not in (person, await unnamed("good two"))


async def test_a_proof_reaches_the_command_as_json_and_no_shell(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    proof = "\"; touch made; echo $(id) '`{}"
    await CheckCommand(command(tmp_path, f"cat >{seen}"))(proof)
    assert proofs.json.loads(seen.read_text()) == {"proof": proof}
    assert not (tmp_path / "made").exists()


async def test_a_command_that_prints_too_much_refuses(tmp_path: Path) -> None:
    prove = CheckCommand(command(tmp_path, "yes"))
    assert await refusal(prove, "proof-1") is ProblemType.NOT_ENROLLED


async def test_a_command_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    lines = "sleep 60 &", f"echo $! >{child}", "wait"
    prove = CheckCommand(command(tmp_path, *lines), seconds=0.5)
    start = monotonic()
    assert await refusal(prove, "proof-1") is ProblemType.UNAVAILABLE
    assert monotonic() - start < 20
    assert not psutil.pid_exists(int(child.read_text())) or (
        psutil.Process(int(child.read_text())).status() == psutil.STATUS_ZOMBIE
    )


async def test_a_command_that_cannot_run_refuses_for_the_moment(tmp_path: Path) -> None:
    assert await refusal(CheckCommand(tmp_path / "gone"), "proof-1") is ProblemType.UNAVAILABLE
