"""Devices in JavaScript take part over HTTP together with devices in Python."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from random import SystemRandom
from typing import Any, TypeAlias

import pytest

from blindtally.demo.server_process import free_port
from blindtally.registrar_service import trial_registrar
from client.analyst.analyst import Analyst, Study
from client.committee.member import CommitteeMember, MemberPolicy
from client.committee.member_journal import MemberJournal
from client.device.device_state import DeviceState
from client.device.take_part import take_part
from client.http.transport import Transport, http_client
from protocol.api.messages import Timeouts
from protocol.committee_terms import CommitteeTerms
from protocol.device_policy.policy import Policy
from protocol.domains.strings import Alphabet
from protocol.question_and_plan import Terms
from protocol.reference_mechanisms.approximate_histogram import ApproximateHistogramQuestion
from secagg.keys import Identity
from tests.js.node import NODE
from tests.server.application import ServiceOnPort, on_a_port

PROGRAM = Path(__file__).with_name("take_part.mjs")
N, IN_JAVASCRIPT = 12, 6
OPERATORS = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 8))
QUESTION = ApproximateHistogramQuestion(
    threshold=5,
    contribution=2,
    domain=Alphabet(characters="abc_", length=2, pad="_"),
    message_bytes=8304,
)
LIMITS: dict[str, Any] = {"min_cohort": 4, "min_threshold": 1, "accept_exact_estimates": True}
KEYS = [operator.public for operator in OPERATORS]
Answering: TypeAlias = Coroutine[Any, Any, dict[str, Any]]


class Devices:
    """Devices in one process of Node, each with its folder."""

    def __init__(self, process: Process, folder: Path) -> None:
        self.process, self.folder = process, folder
        self._ids, self._answers = count(), dict[int, asyncio.Future[dict[str, Any]]]()
        self.reading = asyncio.create_task(self._read())

    async def take_part(self, folder: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request, which ends with the process."""
        number, stdin = next(self._ids), self.process.stdin
        assert stdin is not None
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        request |= {"id": number, "folder": str(self.folder / folder)}
        stdin.write(json.dumps(request).encode() + b"\n")
        await stdin.drain()
        return await answer

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            answer = json.loads(line)
            self._answers.pop(answer.pop("id")).set_result(answer)
        for waiting in self._answers.values():
            waiting.cancel()


@asynccontextmanager
async def in_node(folder: Path) -> AsyncIterator[Devices]:
    process = await asyncio.create_subprocess_exec(NODE, PROGRAM, stdin=PIPE, stdout=PIPE)
    devices = Devices(process, folder)
    try:
        yield devices
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await devices.reading


@asynccontextmanager
async def registrar() -> AsyncIterator[tuple[Identity, str]]:
    """Yield the identity and the address of a registrar that enrols all devices."""
    identity, port = Identity.generate(SystemRandom()), free_port()
    serving = asyncio.create_task(trial_registrar.serve(identity, port))
    yield identity, f"http://127.0.0.1:{port}"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def operators(service: ServiceOnPort) -> AsyncIterator[None]:
    """Let the members of the committee take their steps."""

    async def act() -> None:
        policy = MemberPolicy(min_devices=4)
        members = [CommitteeMember(each, MemberJournal(), policy) for each in OPERATORS]
        async with http_client(service.url) as http:
            while True:
                for member in members:
                    await member.act(Transport(http), service.key)
                await asyncio.sleep(0.02)

    acting = asyncio.create_task(act())
    yield
    acting.cancel()
    await asyncio.gather(acting, return_exceptions=True)


@pytest.fixture
def analyst(service: ServiceOnPort) -> Iterator[Analyst]:
    with Analyst(service.url, service.key) as analyst:
        yield analyst


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceOnPort]:
    with on_a_port(tmp_path, is_open=False) as served:
        yield served


def create(analyst: Analyst, name: str, registrar_key: str) -> Study:
    committee = CommitteeTerms(members=tuple(key.hex() for key in KEYS))
    terms = Terms(
        cohort_size=N, minimum=4, sum="one-shot", registrar=registrar_key, committee=committee
    )
    timeouts = Timeouts(collecting=60, idle=30)
    return analyst.create(name, QUESTION, terms, rounds=1, timeouts=timeouts)


async def test_a_round_counts_each_device_in_javascript_and_in_python_once(
    service: ServiceOnPort, analyst: Analyst, tmp_path: Path
) -> None:
    held = [["ab", "c"] if index % 2 else ["ab"] for index in range(N)]
    async with (
        registrar() as (signer, address),
        operators(service),
        in_node(tmp_path) as devices,
        in_node(tmp_path) as broken,
    ):
        study, second = [create(analyst, name, signer.public.hex()) for name in ("one", "two")]
        policy = LIMITS | {"registrar": signer.public.hex(), "committee": [*map(bytes.hex, KEYS)]}
        signs: dict[str, Any] = {
            "url": service.url,
            "token": service.token,
            "registrar": address,
            "wait": 60,
        }
        known = {"study": study.id, "policy": policy, "registrarToken": "real"} | signs

        def takes_part(index: int, node: Devices = devices, **changes: Any) -> Answering:
            request = known | {"folder": str(index), "items": held[index]} | changes
            return node.take_part(**request)

        # Nothing is sent without a journal, or to a study that the policy refuses; and no error has
        # a secret, whether it is in a journal that cannot be read, or in what the service shows.
        for name, content in (("00000000.json", '{"secret": "5f5f5f'), ("00000001.json", "{}")):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text(content)
            failed = await takes_part(0, folder=name)
            assert failed["error"].startswith("JournalError: ")
            assert "5f" not in failed["error"]
        refused = await takes_part(0, policy=policy | {"min_cohort": 50})
        assert (refused["state"], refused["limit"]) == ("declined", "min_cohort")
        echoed = await takes_part(0, broken, fault="echoes")
        assert echoed["error"] == "ServiceError: no such Bearer (secret)"

        # An answer is lost: the device sends the same bytes again, and no others are accepted.
        assert (await takes_part(1, broken, fault="loses"))["state"] == "finished"
        with pytest.raises(asyncio.CancelledError):
            await takes_part(0, broken, fault="dies")
        # That device was killed after its message had left: it sends nothing again.
        assert (await takes_part(0, wait=0))["state"] in {"no round", "over"}
        # Two programs that are one device at the same time send one message.
        twice = await asyncio.gather(takes_part(2), takes_part(2))
        assert [each["state"] for each in twice].count("finished") == 1
        finished = await asyncio.gather(*map(takes_part, range(3, IN_JAVASCRIPT)))
        assert {each["state"] for each in finished} == {"finished"}
        spent = await takes_part(3, study=second.id)
        assert (spent["state"], spent["limit"]) == ("declined", "max_exact_studies")

        pinned = Policy(**LIMITS, registrar=signer.public, committee=frozenset(KEYS))
        in_python = [
            take_part(
                items=items,
                policy=pinned,
                study=study.id,
                device_state=DeviceState.in_memory(),
                registrar_token="real",
                **signs,
            )
            for items in held[IN_JAVASCRIPT:]
        ]
        outcomes = await asyncio.gather(*in_python)
        assert {each.state for (each,) in outcomes} == {"finished"}
        await asyncio.to_thread(study.wait)
    (view,) = study.rounds()
    assert (view.state, view.participants) == ("decoded", N)
    counts = {each.item: (each.low, each.high) for each in study.heavy_hitters()}
    assert counts == {"ab": (N, N), "c": (N / 2, N / 2)}
