"""Two studies whose sums differ in one device reveal nothing: devices give to one of them.

The attack needs no colluder and no lie: the same question twice, with one place less in the second
study. The device that finds no place is the difference of the two sums.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from client.device.device import StudyDevice
from client.device.device_state import DeviceState
from client.device.driver import EndState, RoundEnd, run_participation
from client.device.encoding import Contribution
from client.device.journal import Journal, MemoryJournal
from client.device.participation import SumParticipation
from client.device.take_part import ParticipationOutcome, take_part
from client.fleet.devices import ClientFactory
from client.http.transport import Transport
from protocol.api.phases import MessageKind
from protocol.device_policy.policy import Policy
from protocol.randomness import system_words
from secagg.keys import Identity
from tests.client.cohort import Service, view_of
from tests.client.conftest import DEVICES, create
from tests.support.policies import trusting_policy

POLICY = trusting_policy(min_cohort=5)
URL, SECOND_URL = "http://service", "http://another-name-of-the-service"


async def all_take_part(
    devices: Sequence[DeviceState], url: str = URL, **options: str
) -> list[ParticipationOutcome]:
    """Let devices take part at the same time; return the last outcome of each."""
    taken = await asyncio.gather(
        *(
            take_part(url, [f"{number}"], POLICY, device_state=state, wait=9, **options)
            for number, state in enumerate(devices)
        )
    )
    return [outcomes[-1] for outcomes in taken]


async def test_no_device_gives_to_a_second_study_with_one_place_less(
    connect: ClientFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.device.take_part.http_client", lambda _url: connect())
    first = await create(connect)
    devices = [DeviceState.in_memory() for _ in range(DEVICES)]
    taken = await all_take_part(devices)
    assert Counter((each.study, each.state) for each in taken) == {
        (first.id, EndState.FINISHED): DEVICES
    }
    second = await create(connect, cohort_size=DEVICES - 1)
    for each in await all_take_part(devices, study=second.id):
        assert (each.state, each.last_step) == (EndState.DECLINED, None)
        assert "max_exact_studies" in each.error
        assert f"study {first.id} of {URL} had" in each.error
    for url in (URL, SECOND_URL):  # no study is named, or the service has another name
        (each,) = await all_take_part(devices[:1], url)
        assert (each.state, each.last_step) == (EndState.DECLINED, None)


NOW = 20_000 * 24 * 3600


async def end_at(
    service: Service,
    journal: Journal,
    policy: Policy = POLICY,
    collection: str = "default",
    now: float = NOW,
) -> RoundEnd:
    """Let the device of `journal` take part in the round of `service`."""
    given = Contribution({"word": 1})
    device = StudyDevice(Identity.of(bytes(32)), given, journal, collection=collection)
    async with service.client() as http:
        taking = SumParticipation(
            Transport(http, patience=5),
            service.view,
            device,
            policy=policy,
            secrets=service.rng,
            chance=system_words,
            clock=lambda: now,
        )
        return await run_participation(taking, service.plan.study)


@pytest.mark.parametrize("urls", [("https://a", "https://a"), ("https://a", "https://b")])
async def test_of_studies_that_ask_at_once_one_gets_the_vector(urls: tuple[str, str]) -> None:
    """Both look harmless before they join; the journal's lock decides which one is first."""
    services = [Service(view_of(study=name)) for name in ("study-1", "study-2")]
    journal = MemoryJournal()
    ends = await asyncio.gather(
        *(end_at(service, journal.at(url)) for service, url in zip(services, urls, strict=True))
    )
    assert sorted(end.state for end in ends) == [EndState.DECLINED, EndState.FINISHED]
    assert sum("masked-input" in service.received for service in services) == 1
    vectors = [each for each in journal.entries if each.kind is MessageKind.MASKED_INPUT]
    assert [(each.time, each.exact, each.collection) for each in vectors] == [
        (NOW, True, "default")
    ]


async def test_a_refused_study_gets_no_message_and_another_collection_counts_by_itself() -> None:
    journal = MemoryJournal()
    await end_at(Service(view_of(study="study-1")), journal)
    service = Service(view_of(study="study-2"))
    assert (await end_at(service, journal)).state is EndState.DECLINED
    assert service.received == {}
    two = replace(POLICY, max_exact_studies=2)
    assert (await end_at(service, journal, two)).state is EndState.FINISHED
    service = Service(view_of(study="study-3"))
    assert (await end_at(service, journal, collection="others")).state is EndState.FINISHED


async def test_one_reading_of_a_clock_that_is_ahead_frees_no_vector() -> None:
    journal, year = MemoryJournal(), 365 * 24 * 3600
    await end_at(Service(view_of(study="study-1")), journal)
    service = Service(view_of(study="study-2"))
    assert (await end_at(service, journal, now=NOW + year)).state is EndState.DECLINED
    assert service.received == {}
