"""Participation of one device with its items, through ASGI, and the outcomes of failures."""

import asyncio
import math
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random, SystemRandom
from typing import Any
from unittest.mock import AsyncMock

import httpx
import pytest
import stamina
from fastapi import FastAPI

from client.analyst.async_analyst import AsyncAnalyst
from client.device.device import DeviceStep
from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.encoding import LeftOut, LeftOutReason
from client.device.journal import JournalError
from client.device.take_part import (
    MAX_LISTED_STUDIES,
    ParticipationOutcome,
    patience_for_first_round,
    take_part,
)
from client.errors import ServiceUnreachableError
from client.fleet.devices import ClientFactory
from client.http.exchange import DocumentStream
from client.http.transport import Transport
from protocol.api.credentials import API_KEY_PREFIX, ENROLMENT_TOKEN_PREFIX, new_secret
from protocol.api.messages import PROBLEM_TYPE_PREFIX, Problem, ProblemType, StudyView, Timeouts
from protocol.device_policy.policy import PolicyError
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from secagg.session import Registry
from server.app import create_app
from server.settings import Settings
from tests.client.conftest import DEVICES, REQUEST, create
from tests.client.mock_transport import MockTransport
from tests.support.asgi_transport import StreamingAsgiTransport
from tests.support.journals import vector_entry
from tests.support.policies import trusting_policy

URL = "http://service"
POLICY = trusting_policy(min_cohort=5, max_epsilon=8)
REPORTS = parse_question(
    {
        "mechanism": "krr",
        "threshold": 1,
        "domain": {"kind": "listed", "items": ["yes", "no"]},
        "epsilon": 8.0,
    }
)


@pytest.fixture(autouse=True)
def _here(connect: ClientFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("client.device.take_part.http_client", lambda _url: connect())


def analyst(app: FastAPI, key: str | None = None) -> AsyncAnalyst:
    return AsyncAnalyst(URL, key, transport=httpx.ASGITransport(app))


def connect_by(monkeypatch: pytest.MonkeyPatch, transport: httpx.AsyncBaseTransport) -> None:
    monkeypatch.setattr(
        "client.device.take_part.http_client",
        lambda url: httpx.AsyncClient(transport=transport, base_url=f"{url}/v1"),
    )


async def outcome_of(
    device: DeviceState, study: str, items: Sequence[str] = (), **options: Any
) -> ParticipationOutcome:
    """Let a device take part in one study."""
    (outcome,) = await take_part(URL, items, POLICY, device_state=device, study=study, **options)
    return outcome


async def all_take_part(devices: Sequence[DeviceState], **how: Any) -> list[ParticipationOutcome]:
    """Let devices take part in a round of one study, at the same time."""
    taken = await asyncio.gather(
        *(
            take_part(URL, ["common", f"rare {number}"], POLICY, device_state=kept, wait=20, **how)
            for number, kept in enumerate(devices)
        )
    )
    return [outcome for (outcome,) in taken]


async def test_devices_take_part_once_and_items_are_found(app: FastAPI, study: StudyView) -> None:
    devices = [DeviceState.in_memory() for _ in range(DEVICES)]
    taken = await all_take_part(devices)  # no study is named: it is the one that runs
    assert Counter((outcome.study, outcome.round, outcome.state) for outcome in taken) == {
        (study.id, 1, EndState.FINISHED): DEVICES
    }
    assert {(outcome.cohort, outcome.slot) for outcome in taken} == {
        (0, slot) for slot in range(DEVICES)
    }
    assert {outcome.last_step for outcome in taken} == {DeviceStep.UNMASKED}
    assert all(
        outcome.bytes_sent > 1000 and outcome.bytes_received > 1000 and not outcome.error
        for outcome in taken
    )

    again = await all_take_part(devices, study=study.id)
    assert Counter((outcome.round, outcome.state) for outcome in again) == {
        (2, EndState.DECLINED): DEVICES
    }
    assert all("once per study" in outcome.error for outcome in again)

    async with analyst(app) as asking:
        asked = await asking.study(study.id)
        assert [(row.item, row.estimate) for row in await asked.heavy_hitters()] == [
            ("common", DEVICES)
        ]
        await asked.stop()
    over = await outcome_of(devices[0], study.id)
    assert (over.state, over.round, over.last_step) == (EndState.OVER, None, None)
    assert await take_part(URL, [], POLICY, device_state=devices[0]) == ()  # nothing runs any more


async def test_of_calls_that_are_one_device_all_except_one_are_refused_with_advice(
    study: StudyView,
) -> None:
    kept, others = DeviceState.in_memory(), [DeviceState.in_memory() for _ in range(DEVICES - 1)]
    calls = await asyncio.gather(
        *(outcome_of(each, study.id, ["common"], wait=1) for each in (kept, kept, kept, *others))
    )
    twice = [outcome for outcome in calls if "already" in outcome.error]
    assert [outcome.state for outcome in twice] == [EndState.IN_USE] * 2
    assert "All processes of a machine are one device" in twice[0].error
    assert Counter(outcome.state for outcome in calls)[EndState.FINISHED] == DEVICES
    later = await outcome_of(kept, study.id, ["common"])
    assert "already" not in later.error


async def test_who_finds_a_round_full_waits_for_the_next(study: StudyView) -> None:
    devices = [DeviceState.in_memory() for _ in range(2 * DEVICES)]
    taken = await all_take_part(devices, study=study.id)
    assert Counter((outcome.round, outcome.state) for outcome in taken) == {
        (1, EndState.FINISHED): DEVICES,
        (2, EndState.FINISHED): DEVICES,
    }


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Return the histograms that devices would give; they end with a fault instead."""
    histograms: list[dict[str, int]] = []

    def noted(*parts: Any, **_rest: Any) -> Any:
        histograms.append(parts[2].contribution.histogram)
        raise ZeroDivisionError("far enough")

    monkeypatch.setattr("client.device.take_part.participation_type", lambda _plan: noted)
    return histograms


async def test_a_device_always_gives_the_same_within_the_bound(
    study: StudyView, given: list[dict[str, int]]
) -> None:
    kept = DeviceState(bytes(32), DeviceState.in_memory().journal)
    held = {f"word {number}": 1 for number in range(9)} | {"too long for this study": 3, "gone": 0}
    for items in (held, dict(reversed(held.items())), [*held][:9]):
        (outcome,) = await take_part(URL, items, POLICY, device_state=kept, study=study.id)
        assert (outcome.state, outcome.last_step) == (EndState.FAULT, None)
        assert outcome.error == "ZeroDivisionError: far enough"
    assert given[0] == given[1] == given[2]
    assert sum(given[0].values()) == REQUEST.question.contribution
    assert given[0].keys() <= held.keys()


async def test_a_device_counts_an_item_once_if_the_threshold_is_that_of_its_policy(
    study: StudyView, given: list[dict[str, int]]
) -> None:
    policy = replace(POLICY, min_threshold=REQUEST.question.threshold)
    await take_part(URL, {"mine": 9}, policy, device_state=DeviceState.in_memory(), study=study.id)
    assert given == [{"mine": 1}]


async def test_a_registrar_signs_who_takes_part(enrolled: StudyView, registrar: Identity) -> None:
    async def enrol(registry: Registry, identity: bytes) -> bytes:
        return registrar.sign(registry.enrolment_statement(identity))

    taken = await all_take_part(
        [DeviceState.in_memory() for _ in range(DEVICES)], enrolment_signer=enrol
    )
    assert {outcome.state for outcome in taken} == {EndState.FINISHED}
    stranger = await outcome_of(DeviceState.in_memory(), enrolled.id, wait=9)
    assert stranger.state is EndState.DECLINED
    assert "did not enrol this device" in stranger.error


async def test_a_device_reports_to_one_study_and_spends_what_it_has_over_all(app: FastAPI) -> None:
    terms = Terms(cohort_size=4, minimum=3, corrupt=0.1, dropout=0.3)
    async with analyst(app) as asking:
        older, newer = [
            await asking.create(name, REPORTS, terms, rounds=1, timeouts=Timeouts(reporting=60))
            for name in ("one", "other")
        ]
    kept = DeviceState.in_memory()
    (outcome,) = await take_part(URL, ["yes"], POLICY, device_state=kept)
    assert (outcome.study, outcome.state) == (newer.id, EndState.FINISHED)
    assert (outcome.last_step, outcome.cohort) == (DeviceStep.REPORTED, None)
    declined = await take_part(URL, ["yes"], POLICY, device_state=kept)
    assert [each.study for each in declined] == [newer.id, older.id]
    assert "max_epsilon" in declined[1].error  # it has no epsilon left for another study
    assert kept.journal.epsilon_spent() == pytest.approx(8.0)


async def test_a_device_takes_part_in_the_newest_study_that_its_policy_accepts(
    connect: ClientFactory,
) -> None:
    older = await create(connect)
    refused = await create(connect, corrupt=0.04)
    devices = [DeviceState.in_memory() for _ in range(DEVICES)]
    taken = await asyncio.gather(
        *(take_part(URL, ["common"], POLICY, device_state=kept, wait=9) for kept in devices)
    )
    for outcomes in taken:
        assert [(each.study, each.state) for each in outcomes] == [
            (refused.id, EndState.DECLINED),
            (older.id, EndState.FINISHED),
        ]
        assert "min_corrupt" in outcomes[0].error


async def test_a_device_waits_for_no_study_while_another_has_a_round(app: FastAPI) -> None:
    terms = Terms(cohort_size=4, minimum=3, corrupt=0.1, dropout=0.3)
    async with analyst(app) as asking:
        older = await asking.create("older", REPORTS, terms, rounds=1)
        newer = await asking.create("newer", REQUEST.question, REQUEST.terms, rounds=2)
    kept = DeviceState.in_memory()
    vector = vector_entry(newer.id)
    kept.journal.at(URL).record(vector)
    async with asyncio.timeout(60):
        outcomes = await take_part(URL, ["yes"], POLICY, device_state=kept, wait=math.inf)
    assert [(outcome.study, outcome.state) for outcome in outcomes] == [
        (newer.id, EndState.NO_ROUND),
        (older.id, EndState.FINISHED),
    ]


async def test_an_outcome_has_the_items_that_were_left_out(app: FastAPI) -> None:
    terms = Terms(cohort_size=4, minimum=3, corrupt=0.1, dropout=0.3)
    async with analyst(app) as asking:
        study = await asking.create("answers", REPORTS, terms, rounds=1)
    steps = list[Any]()
    outcome = await outcome_of(
        DeviceState.in_memory(), study.id, ["yes", "maybe"], on_progress=steps.append
    )
    assert (outcome.state, outcome.error) == (EndState.FINISHED, "")
    assert outcome.left_out == (LeftOut(LeftOutReason.OUTSIDE_DOMAIN, 1, ("maybe",)),)
    assert steps == [DeviceStep.REPORTED]


async def test_progress_ends_with_the_reason_why_a_device_did_not_join(study: StudyView) -> None:
    steps = list[Any]()
    policy = trusting_policy(min_cohort=99)
    kept = DeviceState.in_memory()
    await take_part(URL, [], policy, device_state=kept, study=study.id, on_progress=steps.append)
    assert steps == [EndState.DECLINED]


async def test_an_error_of_a_progress_callback_is_logged_and_drops_no_device_out(
    study: StudyView, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_step: object) -> None:
        raise BrokenPipeError("the screen of the program")

    devices = [DeviceState.in_memory() for _ in range(DEVICES)]
    taken = await all_take_part(devices, study=study.id, on_progress=fail)
    assert {outcome.state for outcome in taken} == {EndState.FINISHED}
    assert "on_progress failed after joined; the device goes on" in caplog.text


async def test_one_text_is_refused_before_any_request() -> None:
    with pytest.raises(ValueError, match=r"pass \['Paris'\]"):
        await take_part("http://127.0.0.1:1", "Paris", POLICY, device_state=DeviceState.in_memory())


async def test_a_collection_has_a_name(study: StudyView) -> None:
    with pytest.raises(ValueError, match="must name the collection"):
        await take_part(URL, [], POLICY, study=study.id, collection="")


async def test_a_list_makes_a_device_try_some_studies_and_compute_no_terms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Terms in a list could be expensive, or of a later version; a device reads those of plans."""
    shown = {"state": "running", "terms": {"cohort_size": 10**9, "sigma": "many"}, "question": None}
    page = {"studies": [shown | {"id": f"s{n}"} for n in range(2 * MAX_LISTED_STUDIES)]}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/studies":
            return httpx.Response(200, json=page)
        return httpx.Response(404, json={"type": "urn:blindtally:problem:not-found"})

    service = MockTransport(answer)
    connect_by(monkeypatch, service)
    outcomes = await take_part(URL, [], POLICY, device_state=DeviceState.in_memory())
    assert [outcome.study for outcome in outcomes] == [f"s{n}" for n in range(MAX_LISTED_STUDIES)]
    assert {outcome.state for outcome in outcomes} == {EndState.REJECTED}


async def test_no_round_is_an_outcome(connect: ClientFactory, study: StudyView) -> None:
    async with connect() as http:
        draft = REQUEST.model_copy(update={"start": False}).model_dump(mode="json")
        waiting = (await http.post("/studies", json=draft)).json()["id"]
    kept = DeviceState.in_memory()
    outcome = await outcome_of(kept, waiting, wait=0.05)
    assert (outcome.state, outcome.round) == (EndState.NO_ROUND, None)
    assert "no round after 0" in outcome.error
    outcome = await outcome_of(kept, "nobody")
    assert outcome.state is EndState.REJECTED
    policy = trusting_policy(min_cohort=99)
    (outcome,) = await take_part(URL, [], policy, device_state=kept, study=study.id)
    assert (outcome.state, outcome.round, outcome.last_step) == (EndState.DECLINED, 1, None)
    assert "min_cohort" in outcome.error


async def test_a_device_stays_in_a_round_as_long_as_its_policy_allows(study: StudyView) -> None:
    policy = replace(POLICY, max_round_seconds=2)  # the other nine devices never join
    state = DeviceState.in_memory()
    (outcome,) = await take_part(URL, [], policy, device_state=state, study=study.id)
    assert (outcome.state, outcome.last_step) == (EndState.DECLINED, DeviceStep.JOINED)
    assert "max_round_seconds" in outcome.error


async def test_a_service_out_of_reach_or_in_error_is_an_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = iter([httpx.ConnectError("refused")] * 3)

    def answer(_request: httpx.Request) -> httpx.Response:
        if (problem := next(tries, None)) is not None:
            raise problem
        return httpx.Response(200, json={"number": "nonsense"})

    service = MockTransport(answer)
    connect_by(monkeypatch, service)
    with stamina.set_testing(True, attempts=3):
        outcome = await outcome_of(DeviceState.in_memory(), "s1")
        assert outcome.state is EndState.DISCONNECTED
        outcome = await outcome_of(DeviceState.in_memory(), "s1")
        assert outcome.state is EndState.DECLINED
        assert "malformed" in outcome.error


async def test_who_cancels_a_device_leaves_nothing_behind_and_it_may_come_again(
    study: StudyView, tmp_path: Path
) -> None:
    folder = tmp_path / "device"
    alone = asyncio.create_task(
        take_part(
            URL,
            ["common"],
            POLICY,
            device_state=DeviceState.on_disk(folder),
            study=study.id,
            wait=20,
        )
    )
    joined = asyncio.Event()
    following = DocumentStream.next

    async def noted(self: DocumentStream) -> bytes | None:
        joined.set()
        return await following(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DocumentStream, "next", noted)
        await joined.wait()
        alone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await alone
    left = {getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()}
    assert not {name for name in left if "_DeviceRun" in name}
    others = [DeviceState.in_memory() for _ in range(DEVICES - 1)]
    taken = await all_take_part(others, study=study.id)  # its seat stays empty
    assert Counter((outcome.round, outcome.state) for outcome in taken) == {
        (1, EndState.FINISHED): DEVICES - 1
    }
    kept = [DeviceState.on_disk(folder), *(DeviceState.in_memory() for _ in range(DEVICES - 1))]
    taken = await all_take_part(kept, study=study.id)
    assert Counter((outcome.round, outcome.state) for outcome in taken) == {
        (2, EndState.FINISHED): DEVICES
    }


async def test_a_device_that_runs_already_or_is_an_older_copy_sends_nothing(tmp_path: Path) -> None:
    folder, requests = tmp_path / "device", 0
    first = DeviceState.on_disk(folder)
    shutil.copytree(folder, tmp_path / "copy")
    copied = DeviceState.on_disk(tmp_path / "copy")

    async def count(_request: httpx.Request) -> httpx.Response:
        nonlocal requests
        requests += 1
        (outcome,) = await take_part(URL, [], device_state=copied)
        assert (outcome.study, outcome.state) == ("", EndState.IN_USE)
        assert "another process takes part as this device" in outcome.error
        return httpx.Response(404, stream=httpx.ByteStream(b""))

    with pytest.MonkeyPatch.context() as patch:
        connect_by(patch, httpx.MockTransport(count))
        (outcome,) = await take_part(URL, [], device_state=first, study="s1")
        with pytest.raises(JournalError, match="older copy"):
            await take_part(URL, [], device_state=copied)
    assert (requests, outcome.state) == (1, EndState.REJECTED)


async def test_a_device_without_a_journal_gives_nothing(study: StudyView, tmp_path: Path) -> None:
    kept = DeviceState.on_disk(tmp_path)
    (tmp_path / "journal").write_text("something else\n")
    with pytest.raises(JournalError, match="not an entry"):
        await take_part(URL, ["common"], POLICY, device_state=kept, study=study.id)


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[tuple[FastAPI, str, str]]:
    """Yield a service that asks for a key and a token, and these."""
    key, token = (
        new_secret(SystemRandom(), API_KEY_PREFIX),
        new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX),
    )
    settings = Settings(database_url=f"sqlite:///{tmp_path / 'closed.db'}")
    made = create_app(settings, None, SystemRandom())
    async with made.router.lifespan_context(made):
        await made.state.service.store.access.add_initial(key, token)
        yield made, key, token


async def test_a_closed_service_lets_devices_in_by_a_token_and_knows_them_again(
    closed: tuple[FastAPI, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, key, token = closed
    connect_by(monkeypatch, StreamingAsgiTransport(app))
    async with analyst(app, key) as asking:
        terms = REQUEST.terms
        study = await asking.create(
            "words", REQUEST.question, terms, rounds=1, timeouts=REQUEST.timeouts
        )
        reports = await asking.create("asks", REPORTS, terms, rounds=1)
    devices = [DeviceState.in_memory(Random(number)) for number in range(DEVICES)]
    stranger = await outcome_of(devices[0], study.id)
    assert stranger.state is EndState.REJECTED
    assert "blindtally tokens" in stranger.error
    taken = await all_take_part(devices, study=study.id, token=token)
    assert {outcome.state for outcome in taken} == {EndState.FINISHED}
    again = await outcome_of(devices[0], study.id)  # by itself
    assert again.state in (EndState.NO_ROUND, EndState.OVER)
    wrong = new_secret(SystemRandom(), ENROLMENT_TOKEN_PREFIX)
    again = await outcome_of(devices[0], study.id, token=wrong)
    assert again.state in (EndState.NO_ROUND, EndState.OVER)
    outcome = await outcome_of(devices[0], reports.id, ["no"], token=token)
    assert (outcome.state, outcome.last_step) == (EndState.FINISHED, DeviceStep.REPORTED)


@pytest.mark.parametrize("options", [{}, {"patience": 0.1, "wait": 60.0}])
async def test_a_service_out_of_reach_ends_the_call_soon_with_the_address(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, float]
) -> None:
    """Two minutes of patience are for devices in a round."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    connect_by(monkeypatch, httpx.MockTransport(refuse))
    monkeypatch.setattr("client.device.take_part.MIN_FIRST_PATIENCE_SECONDS", 0.1)
    reason = "http://service is out of reach: ConnectError: refused .check the address"
    kept = DeviceState.in_memory()
    async with asyncio.timeout(20):
        with pytest.raises(ServiceUnreachableError, match=reason):
            await take_part(URL, ["hello"], POLICY, device_state=kept, **options)
        for signer in (None, AsyncMock(return_value=b"")):
            (outcome,) = await take_part(
                URL, ["hello"], POLICY, device_state=kept, study="s1", enrolment_signer=signer,
                serve_on_committee=signer is not None, **options,
            )  # fmt: skip
            assert outcome.state is EndState.DISCONNECTED
            assert re.search(reason, outcome.error)


@pytest.mark.parametrize("kind", ProblemType)
async def test_the_error_of_a_device_advises_nothing_that_only_analysts_can_do(
    kind: ProblemType, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(type=PROBLEM_TYPE_PREFIX + kind, title="", status=400, detail="the reason")
    refusal = httpx.Response(400, content=problem.model_dump_json())
    connect_by(monkeypatch, MockTransport(lambda _request: refusal))
    state = DeviceState.in_memory()
    (outcome,) = await take_part(URL, ["a"], POLICY, study="s", device_state=state)
    assert "the reason" in outcome.error
    for words in ("Study.", "Analyst.", "blindtally keys", "--", "fix the request"):
        assert words not in outcome.error


def test_a_refusal_by_the_policy_names_the_study_and_a_cheat_the_server() -> None:
    assert str(PolicyError("registrar", "names no registrar")).startswith("the study names no")
    assert str(PolicyError("slot", "assigned another slot")).startswith("the server assigned")


@pytest.mark.parametrize(("wait", "seconds"), [(0, 10), (1, 10), (60, 60), (math.inf, 120)])
def test_a_device_tries_to_reach_a_service_as_long_as_it_waits(wait: float, seconds: float) -> None:
    assert patience_for_first_round(wait) == seconds


async def test_transports_of_different_patience_count_their_traffic_together() -> None:
    answer = httpx.Response(200, stream=httpx.ByteStream(b"{}"))
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _request: answer), base_url=URL
    ) as http:
        transport = Transport(http)
        await transport.with_patience(1).send("GET", "/studies")
        assert transport.traffic.received > 0
