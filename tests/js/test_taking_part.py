"""Devices in Node take part over HTTP although some are killed, or lose their answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from blindtally.demo.server_process import free_port
from blindtally.registrar_service import trial_registrar
from client.analyst.analyst import Analyst, Study
from client.committee.member import CommitteeMember, MemberPolicy
from client.committee.member_journal import MemberJournal
from client.http.transport import Transport, http_client
from protocol.api.messages import Timeouts
from protocol.committee_terms import CommitteeTerms
from protocol.domains.strings import Alphabet
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from tests.js.node import run_node
from tests.server.application import ServiceOnPort, on_a_port

N = 6
OPERATORS = tuple(Identity.of(bytes([n]) * 32) for n in range(1, 8))
QUESTION = TrackedQuestion(
    threshold=3,
    contribution=2,
    domain=Alphabet(characters="abc_", length=2, pad="_"),
    message_bytes=8304,
)
LIMITS: dict[str, Any] = {"min_cohort": 4, "min_threshold": 1, "accept_exact_estimates": True}
KEYS = [operator.public for operator in OPERATORS]


@asynccontextmanager
async def registrar() -> AsyncIterator[tuple[Identity, str]]:
    """Yield the identity and the address of a registrar that enrols all devices."""
    identity, port = Identity.generate(SystemRandom()), free_port()
    serving = asyncio.create_task(trial_registrar.serve(identity, port))
    yield identity, f"http://127.0.0.1:{port}"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def operators(
    url: str, key: str | None = None, identities: Iterable[Identity] = OPERATORS
) -> AsyncIterator[None]:
    """Let the members of a committee take their steps."""

    async def act(policy: MemberPolicy) -> None:
        members = [CommitteeMember(each, MemberJournal(), policy) for each in identities]
        async with http_client(url) as http:
            while True:
                for member in members:
                    await member.act(Transport(http), key)
                await asyncio.sleep(0.02)

    acting = asyncio.create_task(act(MemberPolicy(min_devices=3, serve_unverified=True)))
    yield
    acting.cancel()
    await asyncio.gather(acting, return_exceptions=True)


def journal_line(folder: Path) -> dict[str, Any]:
    """Return the last line of a device's journal, which is that of its vector."""
    line: dict[str, Any] = json.loads(max(folder.iterdir()).read_text())
    return line


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


async def test_a_round_counts_each_device_in_javascript_once_although_some_are_killed(
    service: ServiceOnPort, analyst: Analyst, tmp_path: Path
) -> None:
    held = [["ab", "c"] if index % 2 else ["ab"] for index in range(N)]
    async with registrar() as (signer, address), operators(service.url, service.key):
        study, second = [create(analyst, name, signer.public.hex()) for name in ("one", "two")]
        policy = LIMITS | {"registrar": signer.public.hex(), "committee": [*map(bytes.hex, KEYS)]}
        known: dict[str, Any] = {"url": service.url, "study": study.id, "policy": policy}
        known |= {"wait": 60, "token": service.token, "collection": ["words"]}  # read as a text
        known |= {"registrar": address, "registrarToken": "real"}

        async def takes_part(index: int, **changes: Any) -> Any:
            request = known | {"folder": str(tmp_path / f"{index}"), "items": held[index]} | changes
            (outcome,) = await asyncio.to_thread(run_node, "take_part.mjs", [request])
            return outcome

        # Nothing is sent without a journal, or to a study that the policy refuses; and no error has
        # a secret, whether it is in a journal that cannot be read, or in what the service shows.
        for name, content in (("00000000.json", '{"secret": "5f5f5f'), ("00000001.json", "{}")):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).write_text(content)
            failed = await takes_part(0, folder=str(tmp_path / name))
            assert failed["error"].startswith("JournalError: ")
            assert "5f" not in failed["error"]
        wrong: list[dict[str, Any]] = [{"items": items} for items in ("ab", {"ab": 1}, 2, None)]
        for each in (*wrong, {"policy": {}}, {"policy": None}, {"journal": None}, {"consent": 1}):
            ended = await takes_part(0, wrong=each)
            is_thrown = each != {"items": {"ab": 1}}
            assert ("state" not in ended, ended["error"][:11]) == (is_thrown, "TypeError: ")
        refused = await takes_part(0, policy=policy | {"min_cohort": 50})
        assert (refused["state"], refused["limit"]) == ("declined", "min_cohort")
        echoed = await takes_part(0, fault="echoes")
        assert echoed["error"] == "ServiceError: no such Bearer (secret)"

        # An answer is lost: the device sends the same bytes again, and no others are accepted.
        assert (await takes_part(5, fault="gets a long answer"))["state"] == "fault"
        assert (await takes_part(2, fault="loses"))["state"] == "finished"
        # A device that was killed sends the message that it has recorded, whatever it holds now.
        for index, fault in enumerate(("dies before sending", "dies after sending")):
            with pytest.raises(AssertionError):
                await takes_part(index, fault=fault)
            recorded = journal_line(tmp_path / str(index))
            assert sha256(bytes.fromhex(recorded["message"])).hexdigest() == recorded["digest"]
            assert (await takes_part(index, items=["c"]))["state"] == "finished"
            assert journal_line(tmp_path / str(index)) == recorded | {"message": ""}
            assert (await takes_part(index, wait=0))["state"] in {"no round", "over"}
        # Two programs that are one device at the same time send one message.
        await asyncio.gather(takes_part(3), takes_part(3))
        finished = await asyncio.gather(*map(takes_part, range(4, N)))
        assert {each["state"] for each in finished} == {"finished"}
        spent = await takes_part(4, study=second.id)
        assert (spent["state"], spent["limit"]) == ("declined", "max_exact_studies")
        await asyncio.to_thread(study.wait)
    (view,) = study.rounds()
    assert (view.state, view.participants) == ("decoded", N)
    counts = {each.item: (each.low, each.high) for each in study.heavy_hitters()}
    assert counts == {"ab": (N, N), "c": (N / 2, N / 2)}
