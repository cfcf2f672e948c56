"""A server that invents the other devices of a sum: by default, no device sends it anything."""

import pytest

from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.take_part import ParticipationOutcome, take_part
from protocol.device_policy.policy import Policy
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.question_and_plan import Terms
from protocol.study_state import EMPTY_STATE
from secagg.keys import Identity
from secagg.ring import Vector
from secagg.session import Registry
from tests.client.cohort import STUDY, Service, view_of
from tests.support.policies import trusting_policy

DEVICES = 63  # 62 of them are invented; the default policy accepts this cohort
ITEM = "secret"
REGISTRAR, SERVERS_REGISTRAR = Identity.of(bytes(range(32))), Identity.of(bytes(range(1, 33)))


class InventingService(Service):
    """A service that invents every device but one; the invented devices hold nothing."""

    def open(self) -> bytes:
        """Return the open round."""
        return self.view.model_dump_json().encode()

    def vector(self, slot: int) -> Vector:  # noqa: ARG002
        """Return the vector of the invented device in `slot`, which is zero."""
        return self.ring.zero()


def inventing_service(registrar: Identity | None, signer: Identity | None = None) -> Service:
    """Return a service whose study names `registrar`; `signer` enrols the invented devices."""
    key = registrar.public.hex() if registrar else None
    view = view_of(cohort_size=DEVICES, minimum=DEVICES, dropout=0.2, registrar=key)
    return InventingService(view, signer, n=DEVICES)


async def victim_at(
    service: Service,
    policy: Policy | None,
    monkeypatch: pytest.MonkeyPatch,
    of_analyst: Registry | None = None,
) -> ParticipationOutcome:
    """Let a device with `ITEM` take part; every registrar has enrolled it.

    A registrar enrols for the registry `of_analyst` only, or for any that a device shows it.
    """

    async def sign(registry: Registry, identity: bytes) -> bytes:
        keys = (REGISTRAR, SERVERS_REGISTRAR)
        (registrar,) = (each for each in keys if each.public == registry.registrar)
        return registrar.sign((of_analyst or registry).enrolment_statement(identity))

    monkeypatch.setattr("client.device.take_part.http_client", lambda _url: service.client())
    state = DeviceState.in_memory()
    (outcome,) = await take_part(
        "http://service", [ITEM], policy, study=STUDY, device_state=state, enrolment_signer=sign
    )
    return outcome


@pytest.mark.parametrize("registrar", [None, SERVERS_REGISTRAR])
async def test_a_device_sends_nothing_to_invented_devices(
    registrar: Identity | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = inventing_service(registrar, registrar)
    outcome = await victim_at(service, None, monkeypatch)
    assert outcome.state is EndState.DECLINED
    assert "(trust_server_identities)" in outcome.error
    assert service.received == {}


@pytest.mark.parametrize("signer", [REGISTRAR, SERVERS_REGISTRAR])
async def test_a_pinned_registrar_shows_which_devices_are_invented(
    signer: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = inventing_service(REGISTRAR, signer)
    outcome = await victim_at(service, Policy(registrar=REGISTRAR.public), monkeypatch)
    if signer is REGISTRAR:
        assert outcome.state is EndState.FINISHED, outcome.error
    else:
        assert outcome.state is EndState.DECLINED
        assert "not enrolled" in outcome.error
        assert list(service.received) == ["participants"]


@pytest.mark.parametrize("changes", [{"minimum": 50}, {"cohort_size": 64}, {"corrupt": 0.05}])
async def test_a_device_enrolled_for_other_terms_sends_nothing(
    changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server shows one device invented terms, and its colluders sign anything."""
    service = inventing_service(REGISTRAR, REGISTRAR)
    terms = Terms.model_validate(service.plan.terms.model_dump() | changes)
    of_analyst = service.plan.model_copy(update={"terms": terms}).registry
    assert of_analyst is not None
    policy = Policy(registrar=REGISTRAR.public)
    outcome = await victim_at(service, policy, monkeypatch, of_analyst)
    assert outcome.state is EndState.DECLINED
    assert "did not enrol this device for the study with" in outcome.error
    assert service.received == {}


async def test_the_server_reads_a_device_that_trusts_its_identities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = inventing_service(None)
    outcome = await victim_at(service, trusting_policy(), monkeypatch)
    assert outcome.state is EndState.FINISHED, outcome.error
    mechanism = SUM_MECHANISMS[service.plan.mechanism]
    answer = mechanism.decode(service.plan, service.total(), DEVICES, EMPTY_STATE)
    assert [(each.item, each.count) for each in answer.estimates] == [(ITEM, 1)]
