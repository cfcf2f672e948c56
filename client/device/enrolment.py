"""Enrolment of a device: its registrar's service signs the device's identity for one study.

The device sends a proof that it is real, its identity, and the study with its question and terms.
The proof goes to the registrar alone. The registrar's public key in the device's policy decides
which signature it believes, and not the address: without that key no proof is sent.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Final

import httpx

from client.credentials import checked_secret
from client.errors import TRANSIENT_STATUSES, NotEnrolledError, ServiceError
from client.http.address_and_retries import service_url, shown_url
from client.http.exchange import parse_document
from client.http.transport import Transport, http_client
from client.http_environment import is_loopback
from protocol.api.credentials import REGISTRAR_TOKEN_PREFIX
from protocol.api.messages import (
    PROBLEM_TYPE_PREFIX,
    ProblemType,
    SignatureAnswer,
    SignatureRequest,
)
from protocol.device_policy.policy import Policy
from protocol.mechanisms.registry import AnyPlan
from secagg.errors import UnsafeRequestError

MAX_ANSWER_BYTES: Final = 4096  # of a signature or a refusal
MAX_PROOF_CHARACTERS: Final = 8192  # of a header


def check_service_token(token: str | None) -> None:
    """Refuse a registrar's token where the aggregation server would receive it."""
    if token is not None and token.startswith(REGISTRAR_TOKEN_PREFIX):
        raise ValueError("token is a registrar's: pass it as registrar_token, with registrar=URL")


@dataclass(frozen=True, slots=True)
class RegistrarService:
    """The service at `url` of a device's registrar, and the `proof` that the device is real."""

    url: str
    proof: str = field(repr=False)

    @classmethod
    def of(
        cls, url: str | None, proof: str | None, policy: Policy, aggregation_url: str
    ) -> "RegistrarService":
        """Return the service at `url`; raises ValueError if no proof may be sent there."""
        text = checked_secret(proof, "registrar_token")
        if url is None or text is None or len(text) > MAX_PROOF_CHARACTERS:
            raise ValueError(
                "registrar is the address of a registrar's service, and registrar_token has 1 to "
                f"{MAX_PROOF_CHARACTERS} characters, which prove to it that the device is real"
            )
        address, shown = httpx.URL(service_url(url)), shown_url(service_url(url))
        if policy.registrar is None:
            reason = "an address alone does not prove who signs"
            raise ValueError(
                f"pass the key of the registrar at {shown} as Policy.registrar: {reason}"
            )
        if address.netloc == httpx.URL(aggregation_url).netloc:
            raise ValueError(f"{shown} is the aggregation server, which must not be the registrar")
        is_secure = address.scheme == "https" or is_loopback(address.host)
        if address.userinfo or not is_secure:
            raise ValueError(f"{shown} must be an https address without a user or password")
        return cls(str(address), text)

    async def sign(self, plan: AnyPlan, identity: bytes, patience: float) -> bytes:
        """Return the registrar's signature under `identity` for the study of `plan`.

        A request without an answer is repeated for `patience` seconds.

        Raises:
            NotEnrolledError: if the registrar refuses.
            UnsafeRequestError: if the answer is not signed by the registrar that `plan` names.
            ServiceUnreachableError, ServiceError: if it does not answer in time.
        """
        registry = plan.registry
        assert registry is not None, "the caller checks the plan"
        facts = plan.model_dump(include={"study", "question", "terms", "rounds"})
        request = SignatureRequest.model_validate(facts | {"identity": identity.hex()})
        content = request.model_dump_json().encode()
        async with http_client(self.url) as http:
            try:
                send = partial(Transport(http, patience).send, max_bytes=MAX_ANSWER_BYTES)
                answer = await send("POST", "/enrolments", content=content, ticket=self.proof)
            except ServiceError as error:
                raise self._refusal(error) from None
        signature = bytes.fromhex(parse_document(SignatureAnswer, answer.content).signature)
        if not registry.admits(identity, signature):
            raise UnsafeRequestError(f"{shown_url(self.url)} did not sign with the registrar's key")
        return signature

    def _refusal(self, error: ServiceError) -> ServiceError:
        if error.problem.status in TRANSIENT_STATUSES:
            return error
        detail = f"the registrar at {shown_url(self.url)} refuses this device: {error.message}"
        changes = {"type": PROBLEM_TYPE_PREFIX + ProblemType.NOT_ENROLLED, "errors": None}
        return NotEnrolledError(error.problem.model_copy(update=changes | {"detail": detail}))
