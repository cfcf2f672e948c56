"""Proofs that a device is real. Each way takes the text that the device sends, and names a person.

    tokens       that the registrar made and gave to real devices
    OpenID       tokens in which a provider states an account, for this registrar alone
    a command    of the operator, which decides about any text, such as a device's certificate

A way raises ProblemError: NOT_ENROLLED if the proof is not valid, UNAVAILABLE if that cannot be
found out now. No error and no log has the proof.
"""

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any, Final, TypeAlias

import httpx
import structlog

from blindtally.registrar_service.enrolment_record import EnrolmentRecord, Person, person_of
from protocol.api.messages import ProblemType
from server.errors import ProblemError
from server.http.openid_issuer import Issuer, read_claims

CHECK_SECONDS: Final = 10.0  # that a command may take
MAX_NAME_BYTES: Final = 256  # that a command may print
_MAX_CHECKS: Final = 4  # at a time
_KEYS_SECONDS: Final = 60.0  # for which a provider's keys are used
_REFUSAL_TEXT: Final = "the proof that the device sends is not accepted"
_OUTAGE_TEXT: Final = "the proof cannot be checked now"
Prove: TypeAlias = Callable[[str], Awaitable[Person]]
_log = structlog.get_logger(__name__)


def by_tokens(record: EnrolmentRecord) -> Prove:
    """Return the way that accepts the tokens in `record`."""

    async def prove(proof: str) -> Person:
        person = await asyncio.to_thread(record.holder, proof, time())
        if person is None:
            raise _refusal()
        return person

    return prove


class OpenIdTokens:
    """The way that accepts the tokens of an OpenID provider for `audience`, one person each.

    The audience must be the registrar's own. With that of the aggregation server, its operator
    could enrol devices by the tokens of people who log in to its pages.
    """

    def __init__(
        self, issuer: str, audience: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._name, self._audience = issuer, audience
        self._issuer = Issuer(issuer, transport)
        self._keys: dict[str, Any] = {}
        self._fetch_keys_at = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self, proof: str) -> Person:
        """Return the person of an OpenID token."""
        keys, now = await self._find_keys(), datetime.now(UTC)
        try:
            claims = read_claims(proof, keys, self._name, self._audience, None, now)
        except ProblemError:  # logged
            raise _refusal() from None
        return person_of(json.dumps([self._name, claims["sub"]]))

    async def _find_keys(self) -> dict[str, Any]:
        async with self._lock:
            if monotonic() >= self._fetch_keys_at:
                try:
                    self._keys = await self._issuer.fetch_keys()
                except ProblemError:  # logged
                    raise ProblemError(ProblemType.UNAVAILABLE, _OUTAGE_TEXT) from None
                self._fetch_keys_at = monotonic() + _KEYS_SECONDS
            return self._keys


class CheckCommand:
    """The way that asks a command of the operator, which gets {"proof": "..."} and no arguments.

    Its exit status 0 means that the device is real. It may print the name of the device or person;
    otherwise the proof is the name.
    """

    def __init__(self, command: Path, seconds: float = CHECK_SECONDS) -> None:
        self._command, self._seconds = command, seconds
        self._slots = asyncio.Semaphore(_MAX_CHECKS)

    async def __call__(self, proof: str) -> Person:
        """Return the person that the command names."""
        async with self._slots:
            status, name = await self._run(json.dumps({"proof": proof}).encode())
        if status:
            raise _refusal()
        return person_of(json.dumps([name.hex(), "" if name else proof]))

    async def _run(self, document: bytes) -> tuple[int, bytes]:
        """Return the exit status, and the name that the command prints."""
        process = None
        try:
            async with asyncio.timeout(self._seconds):
                process = await asyncio.create_subprocess_exec(
                    self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
                )
                name = await _converse(process, document)
                return 1 if len(name) > MAX_NAME_BYTES else await process.wait(), name
        except (OSError, TimeoutError) as error:
            _log.warning("the check command failed", error=type(error).__name__)
            raise ProblemError(ProblemType.UNAVAILABLE, _OUTAGE_TEXT) from None
        finally:
            if process is not None and process.returncode is None:
                await _stop(process)


async def _stop(process: Process) -> None:
    """Stop a command with what it started, and empty its pipe, which would keep it otherwise."""
    assert process.stdout is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await process.stdout.read()
            await process.wait()


async def _converse(process: Process, document: bytes) -> bytes:
    """Send `document`; return the name that the command prints, or more than it may have."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(ConnectionError):  # it need not read
        process.stdin.write(document)
        await process.stdin.drain()
    process.stdin.close()
    try:
        return await process.stdout.readexactly(MAX_NAME_BYTES + 2)
    except asyncio.IncompleteReadError as ended:
        return ended.partial.strip()


def _refusal() -> ProblemError:
    return ProblemError(ProblemType.NOT_ENROLLED, _REFUSAL_TEXT)
