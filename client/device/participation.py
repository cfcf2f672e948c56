"""Steps of one device in a round: a report, or a vector in a secure sum.

A secure sum takes the states of `secagg.participant`, driven over HTTP:

    join -> [roster] share -> [encrypted shares] check -> [complaints, share commitments] mask
         -> [survivors] confirm -> [confirmations, signed inputs] unmask

The brackets show what the device waits for before a step: documents in the response to its message
before, or a long poll. Each step is computed once, and its bytes are sent until they arrive. A
message that may be sent in one version only is in the device's journal before it is sent. The
device checks each answer of the service against its policy before the step that depends on it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, ParamSpec, TypeVar

from client.device.device import DeviceStep, RoundParticipation
from client.device.encoding import encode
from client.device.journal import JournalEntry
from client.device.vector_participation import VectorParticipation
from client.http.address_and_retries import url_path
from client.http.exchange import DocumentStream, parse_document, refusing_malformed
from protocol.api.credentials import new_secret
from protocol.api.messages import SlotAssignment
from protocol.api.messages_outside_sums import (
    NEXT_DOCUMENTS,
    DocumentKind,
    JoinRequest,
    SignedReport,
    Survivors,
)
from protocol.api.phases import MessageKind
from protocol.device_policy.cohort_check import (
    check_cohort,
    check_enrolment,
    check_seating,
    check_slot,
)
from protocol.device_policy.plan_check import check_plan, check_spent_epsilon, sharings
from protocol.device_policy.policy import PolicyError
from protocol.device_policy.sizes_and_losses import noise_events
from protocol.mechanisms.registry import REPORT_MECHANISMS
from secagg.keys import KEY_BYTES, SIGNATURE_BYTES
from secagg.messages import (
    Answers,
    Complaints,
    KeyShares,
    MaskedInput,
    UnmaskingShares,
    unpack_signatures,
    unpack_signed_inputs,
)
from secagg.parameters import choose_parameters
from secagg.participant import Checked, Confirmed, Joined, Masked, Shared, join
from secagg.roster import DIGEST_BYTES, GRAPH_NONCE_BYTES, Roster, ShareCommitments
from secagg.seating import CohortSeating
from secagg.session import Session, Transcript
from secagg.shares import SHARE_PAIR_BYTES, ReceivedShares

# A step that expands this many bytes of masks takes about 10 ms, and runs in a thread.
THREAD_WORK_BYTES: Final = 4 * 2**20
HOLDER_WORK_BYTES: Final = 2**16  # as slow as the keys and signatures of one holder
NOISE_EVENT_WORK_BYTES: Final = 2**6  # as slow as one event of the noise
MAX_PROBLEM_BYTES: Final = 2**14  # of an error, and of the braces around survivors
MAX_ROW_BYTES: Final = {  # of one participant, in each document about a cohort
    DocumentKind.ROSTER: 3 * KEY_BYTES + 2 * SIGNATURE_BYTES,
    DocumentKind.SHARE_COMMITMENTS: GRAPH_NONCE_BYTES + DIGEST_BYTES + 4,
    DocumentKind.SURVIVORS: len("100000, "),
    DocumentKind.CONFIRMATIONS: SIGNATURE_BYTES + 4,
    DocumentKind.ENCRYPTED_SHARES: SHARE_PAIR_BYTES + 4,
    DocumentKind.COMPLAINTS: SIGNATURE_BYTES + 4,
    DocumentKind.SIGNED_INPUTS: DIGEST_BYTES + SIGNATURE_BYTES + 4,
}
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class SumParticipation(VectorParticipation):
    """The participation of a device by a vector in a pairwise sum."""

    _ticket: str = field(default="", init=False, repr=False)
    _following: DocumentStream | None = field(default=None, init=False)

    async def steps(self, study: str) -> AsyncGenerator[DeviceStep]:
        """Take part in a round of `study`; yield each step. Without an invitation, yield nothing.

        Raises:
            UnsafeRequestError: if the service asks for more than the policy allows, or for a
                message that would weaken the sum.
            ServiceError: if the service refuses a message: `DroppedOutError`, `CohortFailedError`
                and so on.
            JournalError: if a message cannot be recorded.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        if not await self.device.journal.run(self._may_join, study):
            return
        try:
            joined, assignment = await self._join(study)
            yield DeviceStep.JOINED
            shared = await self._share(joined, assignment)
            yield DeviceStep.SHARED
            checked = await self._check(shared)
            yield DeviceStep.CHECKED
            await self._answer(checked)
            masked = await self._mask(checked)
            yield DeviceStep.MASKED
            confirmed = await self._confirm(masked)
            yield DeviceStep.CONFIRMED
            await self._unmask(confirmed)
            yield DeviceStep.UNMASKED
        finally:
            await self._stop_reading()

    def _check_sharings(self, study: str) -> None:
        self.device.journal.check_sharings(study, sharings(self.policy, self._plan))

    async def _join(self, study: str) -> tuple[Joined, SlotAssignment]:
        device = self.device
        self._ticket = device.credential or new_secret(self.secrets)
        joined = join(device.identity, self.secrets)
        request = JoinRequest(
            identity=device.identity.public.hex(),
            mask_key=joined.public_keys.mask.hex(),
            encryption_key=joined.public_keys.encryption.hex(),
            signature=joined.advertise(self._plan.digest()).hex(),
            registrar_signature=device.enrolment.hex() if self._plan.registry else None,
        )
        path = url_path("studies", study, "rounds", self.view.number, "participants")
        content = request.model_dump_json().encode()
        max_bytes = MAX_PROBLEM_BYTES, self._max_bytes(DocumentKind.ROSTER)
        answer, self._following = await self.transport.post(path, content, self._ticket, max_bytes)
        self.assignment = parse_document(SlotAssignment, answer)
        # Before the journal records it; the roster has the cohort's real size.
        if not self._plan.terms.is_seated:
            check_slot(self._plan, self.assignment, self._plan.terms.cohort_size)
        return joined, self.assignment

    async def _share(self, joined: Joined, assignment: SlotAssignment) -> Shared:
        roster = await self._fetch(DocumentKind.ROSTER)
        if self._plan.terms.is_seated:
            assignment, roster = await self._run_step(self._take_seat, assignment, roster)
            self.assignment = assignment
        # Holders are drawn now. The draw counts even if the device then refuses the roster,
        # because the service can ask it to join again.
        keys = joined.public_keys.mask + joined.public_keys.encryption
        max_sharings = sharings(self.policy, self._plan)
        await self.device.journal.run(
            self._record, self._cohort, MessageKind.KEY_SHARES, keys, max_sharings
        )
        shared, key_shares = await self._run_step(self._share_keys, joined, assignment, roster)
        await self._send(MessageKind.KEY_SHARES, key_shares.pack())
        return shared

    def _take_seat(self, assignment: SlotAssignment, body: bytes) -> tuple[SlotAssignment, bytes]:
        """Return the seat that the registrar drew, and the entries of the roster in `body`.

        Raises:
            PolicyError: if the registrar did not seat this cohort, or this device in it.
        """
        with refusing_malformed():
            seating, entries = CohortSeating.split(body)
            identities = Roster.unpack(entries, has_registrar=True).identities
        check_seating(self._plan, seating, identities)
        if self.device.identity.public not in identities:
            raise PolicyError("seating", "shows a cohort without this device")
        slot = identities.index(self.device.identity.public)
        seat = {"cohort": seating.cohort, "slot": slot}
        return assignment.model_copy(update=seat), entries

    def _share_keys(
        self, joined: Joined, assignment: SlotAssignment, body: bytes
    ) -> tuple[Shared, KeyShares]:
        plan = self._plan
        with refusing_malformed():
            roster = Roster.unpack(body, has_registrar=plan.registry is not None)
        check_cohort(self.policy, plan, assignment, len(roster))
        with refusing_malformed():  # the terms may be infeasible for a cohort of this size
            assumptions, registry = plan.terms.assumptions, plan.registry
            cohort, slot = assignment.seat
            session = Session(plan.digest(), cohort, roster, assumptions, registry)
        return joined.share(slot, session, self.secrets)

    async def _check(self, shared: Shared) -> Checked:
        encrypted_shares = await self._fetch(DocumentKind.ENCRYPTED_SHARES)
        checked, complaints = await self._run_step(self._check_shares, shared, encrypted_shares)
        await self._send(MessageKind.COMPLAINTS, complaints.pack())
        return checked

    def _check_shares(self, shared: Shared, body: bytes) -> tuple[Checked, Complaints]:
        with refusing_malformed():
            received_shares = ReceivedShares.unpack(body)
        return shared.check(received_shares)

    async def _answer(self, checked: Checked) -> None:
        """Answer the complaints about this device; usually there are none."""
        body = await self._fetch(DocumentKind.COMPLAINTS)
        if body:
            answers = await self._run_step(self._answer_complaints, checked, body)
            await self._send(MessageKind.ANSWERS, answers.pack())

    def _answer_complaints(self, checked: Checked, body: bytes) -> Answers:
        with refusing_malformed():
            complaints = unpack_signatures(body)
        return checked.answer(complaints)

    async def _mask(self, checked: Checked) -> Masked:
        share_commitments = await self._fetch(DocumentKind.SHARE_COMMITMENTS)
        masked, masked_input = await self._run_step(self._mask_vector, checked, share_commitments)
        await self._send_once(MessageKind.MASKED_INPUT, masked_input.pack())
        return masked

    def _mask_vector(self, checked: Checked, body: bytes) -> tuple[Masked, MaskedInput]:
        session = checked.shared.session
        with refusing_malformed():
            transcript = Transcript(session, ShareCommitments.unpack(body))
        vector = encode(self._plan, self.device.contribution, session.n, self.chance)
        masked, masked_input = checked.mask(transcript, self._ring, vector)
        self.vector = vector
        return masked, masked_input

    async def _confirm(self, masked: Masked) -> Confirmed:
        body = await self._fetch(DocumentKind.SURVIVORS)
        survivors = parse_document(Survivors, body).survivors
        confirmed, signature = masked.confirm(survivors)
        await self._send_once(MessageKind.CONFIRMATION, signature)
        return confirmed

    async def _unmask(self, confirmed: Confirmed) -> None:
        confirmations = await self._fetch(DocumentKind.CONFIRMATIONS)
        signed_inputs = await self._fetch(DocumentKind.SIGNED_INPUTS)
        unmasking_shares = await self._run_step(
            self._reveal_shares, confirmed, confirmations, signed_inputs
        )
        await self._send_once(MessageKind.UNMASKING_SHARES, unmasking_shares.pack())

    def _reveal_shares(
        self, confirmed: Confirmed, signatures: bytes, inputs: bytes
    ) -> UnmaskingShares:
        with refusing_malformed():
            confirmations = unpack_signatures(signatures)
            signed_inputs = unpack_signed_inputs(inputs)
        return confirmed.unmask(confirmations, signed_inputs, self.secrets)

    async def _run_step(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a step, which runs in a thread if it takes long."""
        terms = self._plan.terms
        holders = choose_parameters(terms.cohort_size, terms.assumptions).holders
        masks = holders * (self._ring.nbytes + HOLDER_WORK_BYTES)
        if masks + noise_events(self._plan) * NOISE_EVENT_WORK_BYTES < THREAD_WORK_BYTES:
            return step(*args, **kwargs)
        return await asyncio.to_thread(step, *args, **kwargs)

    async def _fetch(self, kind: DocumentKind) -> bytes:
        """Return a document about the cohort, the next one that the last message is answered by."""
        if self._following is not None and (body := await self._following.next()) is not None:
            return body
        max_bytes = self._max_bytes(kind)
        response = await self.transport.poll(self._path(kind), self._ticket, max_bytes)
        return response.content

    def _max_bytes(self, kind: DocumentKind) -> int:
        """Return the limit of a document, which cannot have more rows than participants."""
        return MAX_PROBLEM_BYTES + self._plan.terms.cohort_size * MAX_ROW_BYTES[kind]

    async def _send(self, kind: MessageKind, body: bytes) -> None:
        await self._stop_reading()
        max_bytes = [self._max_bytes(each) for each in NEXT_DOCUMENTS.get(kind, ())]
        self._following = await self.transport.send_message(
            self._path(kind), body, self._ticket, max_bytes
        )

    async def _stop_reading(self) -> None:
        if self._following is not None:
            await self._following.close()

    async def _send_once(self, kind: MessageKind, body: bytes) -> None:
        """Record and send a message that may be sent in one version only."""
        await self.device.journal.run(
            self._record, self._cohort, kind, body, self._max_per_study, max_per_round=1
        )
        await self._send(kind, body)

    @property
    def _cohort(self) -> int:
        assert self.assignment is not None  # `steps` joins first
        return self.assignment.seat[0]

    def _path(self, resource: str) -> str:
        assert self.assignment is not None  # `steps` joins first
        return url_path("participants", self.assignment.participant) + f"/{resource}"


class ReportParticipation(RoundParticipation):
    """The participation of a device by a report, with its identity in all studies of reports.

    The report is made once and recorded with its privacy loss before it is sent: the noise of two
    reports of the same item would average out. A crash between record and send costs the device its
    part in the study, and its epsilon.
    """

    has_one_step = True

    async def steps(self, study: str) -> AsyncGenerator[DeviceStep]:
        """Report to `study`; yield the only step.

        Raises:
            PolicyError: if the service asks for more than the policy allows.
            ServiceError: if the service refuses the report.
            JournalError: if the report cannot be recorded.
            ServiceUnreachableError: if the service is out of reach for too long.
        """
        plan, device = self.view.plan, self.device
        mechanism = REPORT_MECHANISMS.get(plan.mechanism)
        if mechanism is None:
            raise PolicyError("plan", "asks for a report in a round that sums vectors")
        rounds_by_study = await device.journal.run(device.journal.rounds_by_study)
        check_plan(self.policy, plan, study, self.view.number, rounds_by_study)
        check_enrolment(plan, device.identity, device.enrolment)
        epsilon = mechanism.epsilon(plan)
        check_epsilon = partial(check_spent_epsilon, self.policy, epsilon=epsilon)
        check_epsilon(await device.journal.run(device.journal.epsilon_spent))  # before any work
        body = mechanism.encode(plan, [device.contribution.histogram], self.chance).tobytes()
        enrolment = device.enrolment if plan.registry else b""
        report = SignedReport.sign(device.identity, plan.digest(), body, enrolment)
        content = report.content_digest
        entry = JournalEntry.of(plan.study, self.view.number, 0, MessageKind.REPORT, content)
        entry = replace(entry, epsilon=epsilon)
        await device.journal.run(device.journal.record, entry, check_epsilon=check_epsilon)
        round_path = url_path("studies", study, "rounds", self.view.number)
        path = f"{round_path}/reports/{device.identity.public.hex()}"
        ticket = device.credential or None
        await self.transport.send("PUT", path, content=report.pack(), ticket=ticket)
        yield DeviceStep.REPORTED
