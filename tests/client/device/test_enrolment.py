"""A device believes the registrar that its policy pins, and shows its proof to no other party."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from client.credentials import hide_secrets
from client.device.device_state import DeviceState
from client.device.driver import EndState
from client.device.enrolment import MAX_ANSWER_BYTES
from client.device.take_part import ParticipationOutcome, take_part
from protocol.api.messages import PROBLEM_TYPE_PREFIX, SignatureRequest
from protocol.device_policy.policy import Policy
from secagg.keys import Identity
from tests.client.cohort import REGISTRAR, SECOND_REGISTRAR, STUDY, Service, view_of
from tests.client.mock_transport import MockTransport

TOKEN = "btr_a-secret-proof-that-this-device-is-real-4711"
ADDRESS = "https://registrar.example.org"
POLICY = Policy(registrar=REGISTRAR.public, min_cohort=5)
Answer = Callable[[httpx.Request], httpx.Response]


def signed_by(registrar: Identity, **changes: Any) -> Answer:
    """Return a registrar's service that signs all that is asked, with `changes` of the request."""

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        asked = SignatureRequest.model_validate(json.loads(request.content) | changes)
        registry = asked.question.registry(asked.study, asked.terms, asked.rounds)
        assert registry is not None
        signature = registrar.sign(registry.enrolment_statement(bytes.fromhex(asked.identity)))
        return httpx.Response(200, json={"signature": signature.hex()})

    return answer


def padded(request: httpx.Request) -> httpx.Response:
    """Return a right answer that is too long."""
    content = signed_by(REGISTRAR)(request).content
    return httpx.Response(200, content=content + b" " * MAX_ANSWER_BYTES)


class OpenService(Service):
    """A service that shows its open round."""

    def open(self) -> bytes:
        return self.view.model_dump_json().encode()


class Played:
    """A device at a service and a registrar in memory; `sent` has what each received."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, named: Identity = REGISTRAR) -> None:
        self.service = OpenService(view_of(registrar=named.public.hex()), named)
        self.asked: list[httpx.Request] = []
        self.requests: list[httpx.Request] = []
        self._monkeypatch = monkeypatch

    async def outcome(self, answer: Answer, **options: Any) -> ParticipationOutcome:
        def at_registrar(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            return answer(request)

        def registrar(url: str) -> httpx.AsyncClient:
            return httpx.AsyncClient(transport=MockTransport(at_registrar), base_url=f"{url}/v1")

        async def note(request: httpx.Request) -> None:
            self.requests.append(request)

        def service(_url: str) -> httpx.AsyncClient:
            client = self.service.client()
            client.event_hooks = {"request": [note]}
            return client

        self._monkeypatch.setattr("client.device.enrolment.http_client", registrar)
        self._monkeypatch.setattr("client.device.take_part.http_client", service)
        options = {"registrar": ADDRESS, "registrar_token": TOKEN, "patience": 0.1} | options
        policy = options.pop("policy", POLICY)
        state = DeviceState.in_memory()
        (outcome,) = await take_part(
            "http://service", ["item"], policy, study=STUDY, device_state=state, **options
        )
        assert TOKEN not in outcome.error
        for request in self.requests:
            assert TOKEN not in f"{request.url}{request.headers}"
            assert TOKEN.encode() not in request.content
        return outcome


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


async def test_a_device_is_enrolled_by_its_registrar_and_takes_part(played: Played) -> None:
    outcome = await played.outcome(signed_by(REGISTRAR))
    assert outcome.state is EndState.FINISHED, outcome.error
    (request,) = played.asked
    assert (request.method, request.url.path) == ("POST", "/v1/enrolments")
    asked = SignatureRequest.model_validate_json(request.content)
    plan = played.service.view.plan
    assert (asked.study, asked.question, asked.terms) == (STUDY, plan.question, plan.terms)
    assert asked.rounds == plan.rounds


async def test_a_lost_answer_is_asked_for_again(played: Played) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if len(played.asked) == 1:
            raise httpx.ReadError("lost")
        return signed_by(REGISTRAR)(request)

    outcome = await played.outcome(answer, patience=10)
    assert outcome.state is EndState.FINISHED, outcome.error
    assert played.asked[0].content == played.asked[1].content


@pytest.mark.parametrize(
    "answer",
    [
        signed_by(SECOND_REGISTRAR),  # the aggregation server pretends to be the registrar
        signed_by(REGISTRAR, study="study-2"),  # a signature for another study
        signed_by(REGISTRAR, rounds=1),
        signed_by(REGISTRAR, identity="ab" * 32),
        lambda _: httpx.Response(200, json={"signature": "00" * 64}),
        lambda _: httpx.Response(200, json={"signature": "00" * 63}),
        lambda _: httpx.Response(200, json={"signature": 7}),
        lambda _: httpx.Response(200, json={}),
        lambda _: httpx.Response(200, content=b"\xff"),
        padded,
        lambda _: httpx.Response(302, headers={"location": "http://service/v1/enrolments"}),
    ],
)
async def test_a_device_without_its_registrars_signature_sends_nothing(
    played: Played, answer: Answer
) -> None:
    outcome = await played.outcome(answer)
    assert outcome.state in (EndState.DECLINED, EndState.REJECTED), outcome.error
    assert len(played.asked) == 1
    assert played.service.received == {}


async def test_the_address_is_named_where_another_party_signs(played: Played) -> None:
    outcome = await played.outcome(signed_by(SECOND_REGISTRAR))
    assert f"{ADDRESS} did not sign with the registrar's key" in outcome.error


async def test_a_refusal_is_shown_with_its_registrar(played: Played) -> None:
    problem = {
        "type": f"{PROBLEM_TYPE_PREFIX}not-enrolled",
        "title": "Not enrolled",
        "status": 403,
        "detail": f"the proof {TOKEN} is not accepted",
    }
    outcome = await played.outcome(lambda _: httpx.Response(403, json=problem))
    assert outcome.state is EndState.REJECTED
    assert f"the registrar at {ADDRESS} refuses this device: the proof (secret)" in outcome.error
    assert played.service.received == {}


async def test_a_registrar_out_of_reach_ends_the_part_in_this_study(played: Played) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody")

    outcome = await played.outcome(answer)
    assert outcome.state is EndState.DISCONNECTED
    assert "registrar.example.org" in outcome.error
    assert played.service.received == {}


async def test_a_server_that_names_its_own_registrar_gets_no_proof_and_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = Played(monkeypatch, SECOND_REGISTRAR)
    outcome = await played.outcome(signed_by(SECOND_REGISTRAR))
    assert outcome.state is EndState.DECLINED
    assert "(registrar)" in outcome.error
    assert played.asked == []
    assert played.service.received == {}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"policy": Policy(trust_server_identities=True)}, "as Policy.registrar"),
        ({"policy": None}, "as Policy.registrar"),
        ({"registrar": "http://registrar.example.org"}, "must be an https address"),
        ({"registrar": "http://service"}, "is the aggregation server"),
        ({"registrar": "http://service:80/registrar"}, "is the aggregation server"),
        ({"registrar": "https://a:b@registrar.example.org"}, "without a user or password"),
        ({"registrar": "registrar"}, "not an http or https address"),
        ({"registrar": None}, "registrar_token has 1 to 8192"),
        ({"registrar_token": None}, "registrar_token has 1 to 8192"),
        ({"registrar_token": "x" * 8193}, "registrar_token has 1 to 8192"),
        ({"registrar_token": "a b"}, "characters that no key has"),
        ({"token": TOKEN}, "pass it as registrar_token"),
    ],
)
async def test_no_proof_is_sent_where_it_could_be_read_or_prove_nothing(
    options: dict[str, Any], reason: str
) -> None:
    options = {"registrar": ADDRESS, "registrar_token": TOKEN, "policy": POLICY} | options
    policy = options.pop("policy")
    with pytest.raises(ValueError, match=reason) as refused:
        await take_part("http://service", [], policy, study=STUDY, **options)
    assert TOKEN not in str(refused.value)
    assert hide_secrets(TOKEN) == "(secret)"
