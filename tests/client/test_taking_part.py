"""One device with its items takes part, through ASGI: what it does, or why it does not."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import httpx
import pytest
import stamina
from fastapi import FastAPI

from client.async_analyst import AsyncAnalyst
from client.fleet import Connect
from client.journal import JournalError
from client.kept import Kept
from client.part import End
from client.participation import Step
from client.policy import Policy
from client.taking_part import OFFERED, Outcome, take_part
from client.transport import Transport
from protocol.credentials import API_KEY, ENROLMENT_TOKEN, make
from protocol.mechanism import Terms
from protocol.mechanisms import parse_question
from protocol.messages import StudyView, Timeouts
from secagg.cohort import Registry
from secagg.keys import Identity
from server.app import create_app
from server.settings import Settings
from tests.client.conftest import DEVICES, REQUEST, create

URL = "http://service"
POLICY = Policy(min_cohort=5, max_epsilon=8)
REPORTS = parse_question(
    {
        "mechanism": "krr",
        "threshold": 1,
        "domain": {"kind": "listed", "items": ["yes", "no"]},
        "epsilon": 8.0,
    }
)


@pytest.fixture(autouse=True)
def _here(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("client.taking_part.connect", lambda _url: connect())


def analyst(app: FastAPI, key: str | None = None) -> AsyncAnalyst:
    return AsyncAnalyst(URL, key, transport=httpx.ASGITransport(app))


async def all_take_part(devices: Sequence[Kept], **how: Any) -> list[Outcome]:
    """Let devices take part in a round of one study, at the same time."""
    taken = await asyncio.gather(
        *(
            take_part(URL, ["common", f"rare {number}"], POLICY, kept=kept, wait=20, **how)
            for number, kept in enumerate(devices)
        )
    )
    return [one for (one,) in taken]


async def test_devices_take_part_once_and_the_analyst_sees_what_is_common(
    app: FastAPI, study: StudyView
) -> None:
    devices = [Kept.in_memory() for _ in range(DEVICES)]
    taken = await all_take_part(devices)  # no study is named: it is the one that runs
    assert Counter((one.study, one.round, one.end) for one in taken) == {
        (study.id, 1, End.FINISHED): DEVICES
    }
    assert {(one.cohort, one.slot) for one in taken} == {(0, slot) for slot in range(DEVICES)}
    assert {one.last for one in taken} == {Step.REVEALED}
    assert all(one.sent > 1000 and one.received > 1000 and not one.error for one in taken)

    again = await all_take_part(devices, study=study.id)
    assert Counter((one.round, one.end) for one in again) == {(2, End.REFUSED): DEVICES}
    assert all("once per study" in one.error for one in again)

    async with analyst(app) as asking:
        asked = await asking.study(study.id)
        assert [(row.item, row.estimate) for row in await asked.heavy_hitters()] == [
            ("common", DEVICES)
        ]
        await asked.stop()
    (over,) = await take_part(URL, [], POLICY, kept=devices[0], study=study.id)
    assert (over.end, over.round, over.last) == (End.OVER, None, None)
    assert await take_part(URL, [], POLICY, kept=devices[0]) == ()  # nothing runs any more


async def test_who_finds_a_round_full_waits_for_the_next(study: StudyView) -> None:
    devices = [Kept.in_memory() for _ in range(2 * DEVICES)]
    taken = await all_take_part(devices, study=study.id)
    assert Counter((one.round, one.end) for one in taken) == {
        (1, End.FINISHED): DEVICES,
        (2, End.FINISHED): DEVICES,
    }


async def test_a_device_gives_the_same_whenever_it_comes_and_at_most_what_is_asked(
    study: StudyView,
) -> None:
    seen: list[Any] = []

    def noted(*parts: Any, **_rest: Any) -> Any:
        seen.append(parts[2].contribution.histogram)
        raise httpx.ConnectError("far enough")

    kept = Kept(bytes(32), Kept.in_memory().journal)
    held = {f"word {number}": 1 for number in range(9)} | {"too long for this study": 3, "gone": 0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("client.taking_part.part_of", noted)
        for items in (held, dict(reversed(held.items())), [*held][:9]):
            with pytest.raises(httpx.ConnectError):
                await take_part(URL, items, POLICY, kept=kept, study=study.id)
    assert seen[0] == seen[1] == seen[2]
    assert sum(seen[0].values()) == REQUEST.question.contribution
    assert seen[0].keys() <= held.keys()


async def test_a_registrar_signs_who_takes_part(enrolled: StudyView, registrar: Identity) -> None:
    async def enrol(registry: Registry, identity: bytes) -> bytes:
        return registrar.sign(registry.enrolment(identity))

    taken = await all_take_part([Kept.in_memory() for _ in range(DEVICES)], enrol=enrol)
    assert {one.end for one in taken} == {End.FINISHED}
    (stranger,) = await take_part(URL, [], POLICY, kept=Kept.in_memory(), study=enrolled.id, wait=9)
    assert stranger.end is End.REFUSED
    assert "did not enrol me" in stranger.error


async def test_a_device_reports_once_and_spends_what_it_has_over_all_studies(
    app: FastAPI,
) -> None:
    terms = Terms(cohort_size=4, minimum=3, corrupt=0.1, dropout=0.3)
    async with analyst(app) as asking:
        studies = [
            await asking.create(name, REPORTS, terms, rounds=1, timeouts=Timeouts(reporting=60))
            for name in ("one", "other")
        ]
    kept = Kept.in_memory()
    outcomes = await take_part(URL, ["yes"], POLICY, kept=kept, wait=10)
    assert {one.study for one in outcomes} == {one.id for one in studies}
    by_end = {one.end: one for one in outcomes}
    assert by_end.keys() == {End.FINISHED, End.REFUSED}  # for one of them there is epsilon
    assert (by_end[End.FINISHED].last, by_end[End.FINISHED].cohort) == (Step.REPORTED, None)
    assert "max_epsilon" in by_end[End.REFUSED].error
    assert kept.journal.spent() == pytest.approx(8.0)


async def test_no_service_keeps_a_device_busy_with_more_than_some_studies(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (await create(connect)).model_dump(mode="json")
    page = {"studies": [shown | {"id": f"s{n}"} for n in range(2 * OFFERED)], "next": None}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/studies":
            return httpx.Response(200, json=page)
        return httpx.Response(404, json={"type": "urn:blindtally:problem:not-found"})

    service = httpx.MockTransport(answer)
    monkeypatch.setattr(
        "client.taking_part.connect",
        lambda url: httpx.AsyncClient(transport=service, base_url=f"{url}/v1"),
    )
    outcomes = await take_part(URL, [], POLICY, kept=Kept.in_memory())
    assert [one.study for one in outcomes] == [f"s{n}" for n in range(OFFERED)]
    assert {one.end for one in outcomes} == {End.REJECTED}


async def test_a_device_that_finds_no_round_says_so(connect: Connect, study: StudyView) -> None:
    async with connect() as http:
        draft = REQUEST.model_copy(update={"start": False}).model_dump(mode="json")
        waiting = (await http.post("/studies", json=draft)).json()["id"]
    kept = Kept.in_memory()
    (one,) = await take_part(URL, [], POLICY, kept=kept, study=waiting, wait=0.05)
    assert (one.end, one.round) == (End.NO_ROUND, None)
    assert "no round after 0" in one.error
    (one,) = await take_part(URL, [], POLICY, kept=kept, study="nobody")
    assert one.end is End.REJECTED
    (one,) = await take_part(URL, [], Policy(min_cohort=99), kept=kept, study=study.id)
    assert (one.end, one.round, one.last) == (End.REFUSED, 1, None)
    assert "min_cohort" in one.error


async def test_a_service_that_is_out_of_reach_or_talks_nonsense_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = iter([httpx.ConnectError("refused")] * 3)

    def answer(_request: httpx.Request) -> httpx.Response:
        if (problem := next(tries, None)) is not None:
            raise problem
        return httpx.Response(200, json={"number": "nonsense"})

    service = httpx.MockTransport(answer)
    monkeypatch.setattr(
        "client.taking_part.connect",
        lambda url: httpx.AsyncClient(transport=service, base_url=f"{url}/v1"),
    )
    with stamina.set_testing(True, attempts=3):
        (one,) = await take_part(URL, [], POLICY, kept=Kept.in_memory(), study="s1")
        assert one.end is End.CUT_OFF
        (one,) = await take_part(URL, [], POLICY, kept=Kept.in_memory(), study="s1")
        assert one.end is End.REFUSED
        assert "cannot be read" in one.error


async def test_who_cancels_a_device_leaves_nothing_behind_and_it_may_come_again(
    study: StudyView, tmp_path: Path
) -> None:
    folder = tmp_path / "device"
    alone = asyncio.create_task(
        take_part(URL, ["common"], POLICY, kept=Kept.on_disk(folder), study=study.id, wait=20)
    )
    joined = asyncio.Event()
    send = Transport.send

    async def noted(self: Transport, method: str, path: str, **rest: Any) -> httpx.Response:
        if path.endswith("/roster"):
            joined.set()
        return await send(self, method, path, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transport, "send", noted)
        await joined.wait()
        alone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await alone
    left = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert not {name for name in left if "_Visit" in name}
    others = [Kept.in_memory() for _ in range(DEVICES - 1)]
    taken = await all_take_part(others, study=study.id)  # its seat stays empty
    assert Counter((one.round, one.end) for one in taken) == {(1, End.FINISHED): DEVICES - 1}
    kept = [Kept.on_disk(folder), *(Kept.in_memory() for _ in range(DEVICES - 1))]
    taken = await all_take_part(kept, study=study.id)
    assert Counter((one.round, one.end) for one in taken) == {(2, End.FINISHED): DEVICES}


async def test_a_device_that_cannot_write_down_what_it_gives_gives_nothing(
    study: StudyView, tmp_path: Path
) -> None:
    kept = Kept.on_disk(tmp_path)
    (tmp_path / "journal").write_text("something else\n")
    with pytest.raises(JournalError, match="is no record"):
        await take_part(URL, ["common"], POLICY, kept=kept, study=study.id)


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[tuple[FastAPI, str, str]]:
    """Yield a service that asks for a key and a token, and these."""
    key, token = make(SystemRandom(), API_KEY), make(SystemRandom(), ENROLMENT_TOKEN)
    settings = Settings(
        database_url=f"sqlite:///{tmp_path / 'closed.db'}",
        pace_seconds=0.01,
    )
    made = create_app(settings, None, SystemRandom())
    async with made.router.lifespan_context(made):
        await made.state.service.store.access.keep_first(key, token)
        yield made, key, token


async def test_a_closed_service_lets_devices_in_by_a_token_and_knows_them_again(
    closed: tuple[FastAPI, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, key, token = closed
    monkeypatch.setattr(
        "client.taking_part.connect",
        lambda url: httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"{url}/v1"),
    )
    async with analyst(app, key) as asking:
        terms = REQUEST.terms
        study = await asking.create(
            "words", REQUEST.question, terms, rounds=1, timeouts=REQUEST.timeouts
        )
        reports = await asking.create("asks", REPORTS, terms, rounds=1)
    devices = [Kept.in_memory(Random(number)) for number in range(DEVICES)]
    (stranger,) = await take_part(URL, [], POLICY, kept=devices[0], study=study.id)
    assert stranger.end is End.REJECTED
    assert "blindtally tokens" in stranger.error
    taken = await all_take_part(devices, study=study.id, token=token)
    assert {one.end for one in taken} == {End.FINISHED}
    (again,) = await take_part(URL, [], POLICY, kept=devices[0], study=study.id)  # by itself
    assert again.end in (End.NO_ROUND, End.OVER)
    wrong = make(SystemRandom(), ENROLMENT_TOKEN)
    (again,) = await take_part(URL, [], POLICY, kept=devices[0], study=study.id, token=wrong)
    assert again.end in (End.NO_ROUND, End.OVER)
    (one,) = await take_part(URL, ["no"], POLICY, kept=devices[0], study=reports.id, token=token)
    assert (one.end, one.last) == (End.FINISHED, Step.REPORTED)
