"""Devices that volunteer for committees, through ASGI: a study without operators."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.committee.registrar import DrawRecord, Registrar, seating_rounds
from client.device.committee_service import CommitteeOutcome, CommitteeState
from client.device.device import DeviceStep
from client.device.device_state import DeviceState
from client.device.driver import EndState, ProgressCallback
from client.device.take_part import ParticipationOutcome, take_part
from client.fleet.devices import ClientFactory
from protocol.api.messages import HeavyHitterPage, StudyView, Timeouts
from protocol.committee_terms import VolunteerTerms
from protocol.device_policy.policy import Policy
from protocol.question_and_plan import Terms
from secagg.keys import Identity
from secagg.oneshot.committee import Committee
from secagg.session import Registry
from tests.client.conftest import REQUEST

URL = "http://service"
REGISTRAR = Identity.of(bytes(range(32)))
DEVICES, OFFERS, VOLUNTEERS = 60, 45, 40
COMMITTEE = VolunteerTerms(volunteers=VOLUNTEERS, size=24, dropout=0.2)
TERMS = Terms(
    cohort_size=DEVICES,
    minimum=40,
    sum="one-shot",
    registrar=REGISTRAR.public.hex(),
    committee=COMMITTEE,
)
POLICY = Policy(min_cohort=40, min_volunteers=VOLUNTEERS, registrar=REGISTRAR.public)


@pytest.fixture(autouse=True)
async def _here(
    connect: ClientFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("client.device.take_part.http_client", lambda _url: connect())
    monkeypatch.setattr("client.device.committee_service._DRAW_POLL_SECONDS", 0.5)
    async with seating_rounds(connect, Registrar(REGISTRAR, DrawRecord())):
        yield


async def enrol(registry: Registry, identity: bytes) -> bytes:
    return REGISTRAR.sign(registry.enrolment_statement(identity))


async def create(connect: ClientFactory, convening: float = 30, **terms: object) -> StudyView:
    """Create a study of one round, whose committees are drawn from volunteers."""
    timeouts = Timeouts(
        convening=convening, drawing=30, collecting=30, checking=20, agreeing=20, idle=3
    )
    changes = {
        "terms": TERMS.model_copy(update=terms),
        "timeouts": timeouts,
        "rounds": 1,
        "question": REQUEST.question.model_copy(update={"message_bytes": 9784}),
    }
    async with connect() as http:
        request = REQUEST.model_copy(update=changes).model_dump(mode="json")
        answer = await http.post("/studies", json=request)
    assert answer.status_code == 201, answer.text
    return StudyView.model_validate_json(answer.content)


async def committee_of(connect: ClientFactory, study: str) -> list[bytes]:
    """Return the identities of the members of the study's committee."""
    async with connect() as http:
        answer = await http.get(f"/studies/{study}/rounds/1/committee")
    packed = bytes.fromhex(answer.json()["committee"])
    return [entry.identity for entry in Committee.unpack(packed).entries]


async def test_sixty_devices_of_which_some_serve_and_some_drop_out(connect: ClientFactory) -> None:
    """Five members of 24 drop out after they have sent; the counts of all items are exact."""
    study = await create(connect)
    kept = [DeviceState.in_memory() for _ in range(DEVICES)]
    items = [["common", f"w{number % 6}"] for number in range(DEVICES)]
    sent = [asyncio.Event() for _ in kept]

    async def run(number: int) -> ParticipationOutcome:
        (outcome,) = await take_part(
            URL,
            items[number],
            POLICY,
            study=study.id,
            device_state=kept[number],
            enrolment_signer=enrol,
            wait=40,
            serve_on_committee=number < OFFERS,
            on_progress=lambda _step: sent[number].set(),
        )
        return outcome

    tasks = [asyncio.create_task(run(number)) for number in range(DEVICES)]
    await sent[0].wait()
    members = await committee_of(connect, study.id)
    identities = [state.identity(URL, study.id).public for state in kept]
    drawn = [number for number, identity in enumerate(identities) if identity in members]
    assert len(drawn) == COMMITTEE.size
    assert set(drawn) <= set(range(OFFERS))
    for number in drawn[:5]:
        await sent[number].wait()
        tasks[number].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    outcomes = [each for each in results if isinstance(each, ParticipationOutcome)]
    assert len(outcomes) == DEVICES - 5
    ends = Counter((each.state, each.last_step) for each in outcomes)
    assert ends == {(EndState.FINISHED, DeviceStep.SENT): DEVICES - 5}
    served = Counter(each.committee and each.committee.state for each in outcomes)
    assert served == {
        CommitteeState.SERVED: COMMITTEE.size - 5,
        CommitteeState.NOT_DRAWN: VOLUNTEERS - COMMITTEE.size,
        CommitteeState.NO_ROUND: OFFERS - VOLUNTEERS,
        None: DEVICES - OFFERS,
    }
    counted = Counter(item for held in items for item in held)
    assert await counts(connect, study.id) == counted


async def counts(connect: ClientFactory, study: str) -> dict[str, float]:
    """Return the counts of all items that a finished study lists."""
    async with connect() as http:
        for _ in range(200):
            state = (await http.get(f"/studies/{study}")).json()["state"]
            if state == "finished":
                break
            await asyncio.sleep(0.05)
        answer = await http.get(f"/studies/{study}/heavy-hitters")
    page = HeavyHitterPage.model_validate_json(answer.content)
    return {row.item: row.estimate for row in page.heavy_hitters}


TWELVE_MEMBERS = VolunteerTerms(volunteers=12, size=12)  # all of them are members
TWELVE_TERMS: dict[str, Any] = {"committee": TWELVE_MEMBERS, "cohort_size": 12, "minimum": 10}
TWELVE_POLICY = Policy(
    min_cohort=10, min_volunteers=12, registrar=REGISTRAR.public, min_threshold=1
)


async def serve(
    study: StudyView,
    device: DeviceState,
    policy: Policy = TWELVE_POLICY,
    wait: float = 20,
    on_progress: ProgressCallback = lambda _step: None,
) -> CommitteeOutcome:
    """Let a device take part and volunteer; return the end of its service."""
    (outcome,) = await take_part(
        URL,
        ["common"],
        policy,
        study=study.id,
        device_state=device,
        enrolment_signer=enrol,
        wait=wait,
        serve_on_committee=True,
        on_progress=on_progress,
    )
    assert outcome.committee is not None
    return outcome.committee


async def test_a_device_that_was_killed_goes_on_to_serve(
    connect: ClientFactory, tmp_path: Path
) -> None:
    """Keep its key and its messages in the journal of its folder."""
    study = await create(connect, **TWELVE_TERMS)
    kept = DeviceState.on_disk(tmp_path / "device")
    convened = asyncio.Event()
    first = asyncio.create_task(serve(study, kept, on_progress=lambda _step: convened.set()))
    others = [asyncio.create_task(serve(study, DeviceState.in_memory())) for _ in range(11)]
    await convened.wait()
    first.cancel()  # it is a member now
    await asyncio.gather(first, return_exceptions=True)
    again = await serve(study, DeviceState.on_disk(tmp_path / "device"))
    assert again == CommitteeOutcome(CommitteeState.SERVED, 1)
    assert {each.state for each in await asyncio.gather(*others)} == {CommitteeState.SERVED}


async def test_a_round_without_enough_volunteers_ends_their_service(connect: ClientFactory) -> None:
    study = await create(connect, convening=5, **TWELVE_TERMS)
    ended = await serve(study, DeviceState.in_memory(), wait=30)
    assert ended == CommitteeOutcome(CommitteeState.ROUND_OVER, 1)


async def test_a_device_serves_no_round_that_protects_devices_less(connect: ClientFactory) -> None:
    study = await create(connect, convening=20, **TWELVE_TERMS)
    declined = await serve(study, DeviceState.in_memory(), replace(TWELVE_POLICY, min_cohort=11), 1)
    assert declined.state is CommitteeState.DECLINED
    assert "as few as 10 devices, below 11" in declined.error
    other = replace(TWELVE_POLICY, registrar=Identity.of(bytes(32)).public)
    declined = await serve(study, DeviceState.in_memory(), other, 1)
    assert "another registrar" in declined.error
    late = replace(TWELVE_POLICY, max_round_seconds=0.2)
    assert (await serve(study, DeviceState.in_memory(), late, 1)).state is CommitteeState.TOO_LONG


async def test_a_device_that_the_registrar_did_not_enrol_does_not_serve(
    connect: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_registry: Registry, _identity: bytes) -> bytes:
        return bytes(64)

    monkeypatch.setitem(globals(), "enrol", refuse)
    study = await create(connect, convening=2, **TWELVE_TERMS)
    ended = await serve(study, DeviceState.in_memory(), wait=0.5)
    assert (ended.state, ended.round) == (CommitteeState.NO_ROUND, None)
    assert "has not signed this identity" in ended.error


@pytest.mark.parametrize("options", [{"study": None}, {"enrolment_signer": None}])
async def test_a_volunteer_names_its_study_and_its_registrar(options: dict[str, None]) -> None:
    given = {"study": "abc", "enrolment_signer": enrol} | options
    with pytest.raises(ValueError, match="pass `study` and `registrar`"):
        await take_part(URL, [], POLICY, serve_on_committee=True, **given)  # type: ignore[arg-type]
