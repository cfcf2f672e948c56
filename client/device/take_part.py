"""Participation of one device with its items: the function that a program on a device calls.

    policy = Policy(registrar=PUBLIC_KEY)
    signs = {"registrar": "https://registrar.example.org", "registrar_token": TOKEN}
    outcomes = await take_part(URL, ["hello", "world"], policy, **signs)

The device's state (`client.device.device_state`) is on its disk: a program that calls again, today
or next year, is the same device, which contributes to no study twice.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import SystemRandom
from threading import Lock
from typing import Final, TypeAlias

from pydantic import BaseModel

from client.committee.member import CommitteeMember, Volunteering
from client.credentials import checked_secret
from client.device.committee_service import (
    CommitteeOutcome,
    CommitteeState,
    DeviceService,
    device_policy,
)
from client.device.device import DEFAULT_COLLECTION, DeviceStep, StudyDevice
from client.device.device_state import DeviceState
from client.device.driver import (
    EndState,
    ProgressCallback,
    RoundEnd,
    enrol_device,
    logging_errors,
    participation_type,
    run_participation,
    wait_for_open_round,
)
from client.device.encoding import Items, LeftOut, count_items, make_contribution
from client.device.enrolment import RegistrarService, check_service_token
from client.device.folder_lock import ONE_DEVICE_ADVICE, DeviceInUseError
from client.device.journal import Journal, JournalError
from client.errors import (
    MAX_RETRY_AFTER_SECONDS,
    NoRoundError,
    NotAuthorisedError,
    ServiceError,
    ServiceUnreachableError,
    WrongStateError,
)
from client.http.address_and_retries import service_url, url_path
from client.http.exchange import parse_document
from client.http.transport import MIN_POLL_INTERVAL_SECONDS, Transport, http_client
from protocol.api.messages import RoundView, SlotAssignment
from protocol.device_policy.plan_check import check_plan, max_copies
from protocol.device_policy.policy import Policy
from protocol.histograms import Histogram
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyPlan
from protocol.public_model import Id
from protocol.randomness import system_words
from secagg.errors import ProtocolError, UnsafeRequestError
from secagg.session import Registry

MAX_LISTED_STUDIES: Final = 20  # bounds the work that a service can give to a device
DEFAULT_PATIENCE_SECONDS: Final = 120.0  # in a round
MIN_FIRST_PATIENCE_SECONDS: Final = 10.0  # before the device has seen a round
_MAY_CHANGE: Final = (EndState.NO_ROUND, EndState.LATE)  # when another round opens
_LOG: Final = logging.getLogger(__name__)
_SERVES_NO_LATER: Final = (EndState.FINISHED, EndState.DISCONNECTED)
_RUNS_TWICE: Final = (
    f"this device takes part in the study already, in another call of this program. "
    f"{ONE_DEVICE_ADVICE}"
)
_running: Final[set[bytes]] = set()  # devices that take part in a study, by their identity in it
_running_access: Final = Lock()  # devices may run in several threads

EnrolmentSigner: TypeAlias = Callable[[Registry, bytes], Awaitable[bytes]]
ConsentCallback: TypeAlias = Callable[[AnyPlan], Awaitable[bool]]


class ConsentRefusedError(ProtocolError):
    """The device's user does not want to take part in this study."""


@dataclass(frozen=True, slots=True)
class ParticipationOutcome:
    """The part of a device in a study.

    Attributes:
        study: empty if another process took part as the device, and no study was named.
        round: None if the service showed no round.
        cohort, slot: the place in a secure sum, None without one.
        last_step: the last step that the device took, None before the first.
        bytes_sent, bytes_received: bytes of HTTP.
        error: the reason, if the device did not finish.
        left_out: the records that the device left out of its vector or report, by reason.
        committee: its service on a committee, None if it did not volunteer.
    """

    study: str
    state: EndState
    round: int | None = None
    cohort: int | None = None
    slot: int | None = None
    last_step: DeviceStep | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    error: str = ""
    left_out: tuple[LeftOut, ...] = ()
    committee: CommitteeOutcome | None = None


async def take_part(  # noqa: PLR0913 - devices differ in all of these
    url: str,
    items: Items,
    policy: Policy | None = None,
    *,
    study: str | None = None,
    collection: str = DEFAULT_COLLECTION,
    device_state: DeviceState | None = None,
    token: str | None = None,
    registrar: str | None = None,
    registrar_token: str | None = None,
    enrolment_signer: EnrolmentSigner | None = None,
    consent: ConsentCallback | None = None,
    wait: float = 0.0,
    patience: float | None = None,
    serve_on_committee: bool = False,
    on_progress: ProgressCallback = lambda _step: None,
) -> tuple[ParticipationOutcome, ...]:
    """Let one device with `items` take part in a round of one study; return the outcomes.

    `items` are texts or numbers, or their counts as a mapping. In a study with segments they are
    pairs of a segment and an item, or a mapping of segments to lists of items.

    Without a `study`, the device tries the running studies that the service lists, newest first,
    and takes part in the first that its policy accepts; there is one outcome per study that it
    tried. A closed service lists no studies to devices. The device waits up to `wait` seconds for a
    round with room. `collection` names the collection that the items come from: exact sums are
    limited per collection (`Policy.max_exact_studies`), so the same items need the same name. The
    default `device_state` is that of the current user on this machine: several devices on one
    machine need one folder each. A closed service admits the device by an enrolment `token`. If a
    study has a registrar, the one at the URL `registrar` signs the device's identity, if
    `registrar_token` proves that the device is real and `policy` pins the registrar's key. Instead,
    `enrolment_signer` may return this signature in another way. `consent` is asked before the
    device joins a round that its policy accepts, with the round's plan. If it returns False, the
    device is `declined`, which is only logged: the next call asks again. A service out of reach is
    tried again for `patience` seconds; by default for 120, but until the device has seen a round,
    for `wait` seconds and at least for 10. `on_progress` receives each step of the device, and the
    end of its part unless it finished; its errors are logged.

    With `serve_on_committee` the device also volunteers for the committee of one round of `study`,
    if one convenes within `wait` seconds and before the device has sent its message. If the
    registrar draws it, it serves until it has sent the sum of its shares
    (`client.device.committee_service`).

    Cancelling the call drops the device out. Messages that were recorded count as sent.

    Raises:
        ValueError: if an argument has a wrong type, `items` is one text instead of a list,
            `collection` is empty, `url` is not an http or https address, `study` or `token` cannot
            be one, a segment contains ":", the device is to serve on a committee without a `study`
            and a registrar, or a proof must not be sent to `registrar`.
        JournalError: if a message cannot be recorded, so that it is not sent; or if the device's
            folder is an older copy.
        ServiceError, ServiceUnreachableError, UnsafeRequestError: if the service does not list its
            studies, is out of reach, or sends a list that cannot be read. Any error in one study
            is an outcome.
    """
    check_arguments(policy, device_state, enrolment_signer, consent, on_progress)
    if not collection:
        raise ValueError("collection must name the collection that the items come from")
    if serve_on_committee and (study is None or (enrolment_signer is None and registrar is None)):
        raise ValueError("to serve on a committee, pass `study` and `registrar`")
    histogram = count_items(items)
    token = checked_secret(token, "enrolment token")
    check_service_token(token)
    if device_state is None:
        device_state = await asyncio.to_thread(DeviceState.on_disk)
    url = service_url(url)
    if study is not None:
        url_path(study)
    policy = policy or Policy()
    service = None
    if registrar is not None or registrar_token is not None:
        service = RegistrarService.of(registrar, registrar_token, policy, url)
    run = _DeviceRun(
        url,
        histogram,
        collection,
        policy,
        device_state,
        token,
        service,
        enrolment_signer,
        consent,
        DEFAULT_PATIENCE_SECONDS if patience is None else patience,
        patience_for_first_round(wait) if patience is None else patience,
        logging_errors(on_progress),
    )
    start = time.monotonic()
    with ExitStack() as running:
        try:
            running.enter_context(device_state.running())
        except DeviceInUseError as error:
            run.on_progress(EndState.IN_USE)
            return (ParticipationOutcome(study or "", EndState.IN_USE, error=str(error)),)
        if study is not None and serve_on_committee:
            return (await run.run_and_serve(study, start + wait, wait),)
        if study is not None:
            return (await run.run(study, start + wait),)
        return await run.run_newest((start, start + wait) if wait > 0 else (start,))


def check_arguments(policy: object, device_state: object, *functions: object) -> None:
    """Raise ValueError for an argument of `take_part` whose type would fail in each study."""
    if not isinstance(policy, Policy | None):
        raise ValueError("policy is a Policy, such as Policy(max_epsilon=2)")  # noqa: TRY004
    if not isinstance(device_state, DeviceState | None):
        raise ValueError(  # noqa: TRY004 - arguments that cannot be right are a ValueError
            'device_state is a DeviceState, such as DeviceState.on_disk("folder")'
        )
    if not all(function is None or callable(function) for function in functions):
        raise ValueError("enrolment_signer, consent and on_progress are functions")


class _ListedStudy(BaseModel):
    """A study in a list, without its question and terms: those are computed from its plan only."""

    id: Id
    state: str


class _StudyList(BaseModel):
    studies: tuple[_ListedStudy, ...]


@dataclass(frozen=True, slots=True)
class _DeviceRun:
    """A device at a service."""

    url: str
    histogram: Histogram = field(repr=False)
    collection: str
    policy: Policy
    device_state: DeviceState
    token: str | None = field(repr=False)
    registrar: RegistrarService | None
    enrolment_signer: EnrolmentSigner | None
    consent: ConsentCallback | None
    patience: float
    first_patience: float
    on_progress: ProgressCallback

    @property
    def journal(self) -> Journal:
        """Return the device's journal for this service."""
        return self.device_state.journal.at(self.url)

    async def running_studies(self) -> tuple[str, ...]:
        async with http_client(self.url) as http:
            transport = Transport(http, self.first_patience)
            answer = await transport.send("GET", "/studies", params={"limit": MAX_LISTED_STUDIES})
        studies = parse_document(_StudyList, answer.content).studies[:MAX_LISTED_STUDIES]
        return tuple(study.id for study in studies if study.state == "running")

    async def run_newest(self, deadlines: Sequence[float]) -> tuple[ParticipationOutcome, ...]:
        """Take part in the newest study possible; wait for rounds until each of `deadlines`."""
        studies = await self.running_studies()
        outcomes: dict[str, ParticipationOutcome] = {}
        for deadline in deadlines:
            for study in studies:
                if study in outcomes and outcomes[study].state not in _MAY_CHANGE:
                    continue
                outcomes[study] = outcome = await self.run(study, deadline)
                if outcome.last_step is not None or outcome.state is EndState.DISCONNECTED:
                    return tuple(outcomes.values())
        return tuple(outcomes.values())

    async def run(self, study: str, deadline: float) -> ParticipationOutcome:
        """Take part in one round of `study`; if that round is full, in the next one.

        The outcome is a refusal if another call in this process takes part as the same device.
        """
        device = self.device_state.identity(self.url, study).public
        with _running_once(device) as is_only_one:
            if not is_only_one:
                self.on_progress(EndState.IN_USE)
                return ParticipationOutcome(study, EndState.IN_USE, error=_RUNS_TWICE)
            return await self._run_alone(study, deadline)

    async def _run_alone(self, study: str, deadline: float) -> ParticipationOutcome:
        await asyncio.to_thread(self.journal.read_clock, time.time())  # also if no round is open
        rounds_by_study = await asyncio.to_thread(self.journal.rounds_by_study)
        after = max(rounds_by_study.get(study, ()), default=0)
        async with http_client(self.url) as http:
            transport = Transport(http, self.patience)
            for pause in _growing_pauses():
                left = deadline - time.monotonic()
                outcome = await self._run_round(transport, study, after, left)
                is_full = outcome.state is EndState.LATE and outcome.last_step is None
                if outcome.round is None or not is_full or time.monotonic() >= deadline:
                    break
                after = outcome.round
                await asyncio.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            return outcome

    async def run_and_serve(self, study: str, deadline: float, wait: float) -> ParticipationOutcome:
        """Take part in one round of `study`, and serve on the committee of one at the same time.

        A device that has sent its message, or that cannot, waits for no round to serve in.
        """
        async with self._device_service(study) as service:
            limit = self.policy.max_round_seconds
            serving = asyncio.create_task(service.run(wait, limit))
            try:
                outcome = await self.run(study, deadline)
                if outcome.state in _SERVES_NO_LATER and not service.has_volunteered:
                    return replace(outcome, committee=CommitteeOutcome(CommitteeState.NO_ROUND))
                return replace(outcome, committee=await serving)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

    @asynccontextmanager
    async def _device_service(self, study: str) -> AsyncIterator[DeviceService]:
        """Yield the service of the device on a committee of `study`, which may go on in a round."""
        identity = self.device_state.identity(self.url, study)

        async def enrol(plan: AnyPlan) -> bytes:
            return await self._enrolment(plan, identity.public)

        journal = await asyncio.to_thread(self.device_state.member_journal)
        try:
            async with http_client(self.url) as http:
                transport, policy = Transport(http, self.patience), device_policy(self.policy)
                offer = Volunteering(study, enrol)
                member = CommitteeMember(identity, journal, policy, volunteering=offer)
                credential = self.device_state.credential(self.url, study)
                first = transport.with_patience(self.first_patience)
                service = DeviceService(member, first, credential)
                with suppress(ServiceError, ServiceUnreachableError, UnsafeRequestError):
                    await self._ensure_enrolled(first, study)
                    await service.resume()
                service.transport = transport
                yield service
        finally:
            journal.close()

    async def _run_round(
        self, transport: Transport, study: str, after: int, wait: float
    ) -> ParticipationOutcome:
        view: RoundView | None = None
        assignment: SlotAssignment | None = None
        left_out: tuple[LeftOut, ...] = ()
        try:
            first = transport.with_patience(self.first_patience)
            view = await self._open_round(first, study, after, wait)
            device = await self._device(transport, view, study)
            left_out = device.contribution.left_out
            participation = participation_type(view.plan)(
                transport,
                view,
                device,
                policy=self.policy,
                secrets=SystemRandom(),
                chance=system_words,
            )
        except JournalError:
            raise
        except Exception as error:  # of any kind: it ends this study, and no other
            end = _end_before_joining(error)
            self.on_progress(end.state)
        else:
            end = await run_participation(participation, study, self.on_progress)
            assignment = participation.assignment
        return ParticipationOutcome(
            study,
            end.state,
            view.number if view else None,
            assignment.cohort if assignment else None,
            assignment.slot if assignment else None,
            end.last_step,
            transport.traffic.sent,
            transport.traffic.received,
            end.error,
            left_out,
        )

    async def _open_round(
        self, transport: Transport, study: str, after: int, wait: float
    ) -> RoundView:
        ticket = await self._ensure_enrolled(transport, study)
        return await wait_for_open_round(transport, study, after, ticket=ticket, patience=wait)

    async def _device(self, transport: Transport, view: RoundView, study: str) -> StudyDevice:
        """Return the device with its identity for `study`.

        Raises:
            PolicyError: if the policy refuses the plan; before the registrar is asked to sign.
        """
        plan, number = view.plan, view.number
        rounds_by_study = await asyncio.to_thread(self.journal.rounds_by_study)
        check_plan(self.policy, plan, study, number, rounds_by_study)
        scope = None if plan.mechanism in REPORT_MECHANISMS else study
        ticket = self.device_state.credential(self.url, scope)
        if scope is None:
            ticket = await self._ensure_enrolled(transport, None)
        identity = self.device_state.identity(self.url, scope)
        enrolment = await self._enrolment(plan, identity.public)
        contribution = await asyncio.to_thread(
            make_contribution,
            plan.question,
            self.histogram,
            self.device_state.choices(self.url, study),
            max_copies(self.policy, plan),
        )
        return StudyDevice(identity, contribution, self.journal, enrolment, ticket, self.collection)

    async def _enrolment(self, plan: AnyPlan, identity: bytes) -> bytes:
        """Return the signature of the plan's registrar under `identity`, empty without one.

        Raises:
            ConsentRefusedError: before the registrar is asked.
        """
        if self.consent is not None and not await self.consent(plan):
            _LOG.info("consent to study %s was refused", plan.study)
            raise ConsentRefusedError("consent to this study was refused")
        registry = plan.registry
        if registry is None:
            return b""
        if self.registrar is not None:
            return await self.registrar.sign(plan, identity, self.first_patience)
        if self.enrolment_signer is not None:
            return await self.enrolment_signer(registry, identity)
        return b""

    async def _ensure_enrolled(self, transport: Transport, study: str | None) -> str:
        """Register the device's identity in `study` if a token is given; return its credential.

        An expired token registers no new device, but registered devices stay registered.
        """
        identity = self.device_state.identity(self.url, study)
        credential = self.device_state.credential(self.url, study)
        if self.token is not None:
            with suppress(NotAuthorisedError):
                await enrol_device(transport, identity, self.token, credential)
        return credential


@contextmanager
def _running_once(device: bytes) -> Iterator[bool]:
    """Yield whether no other call in this process takes part as `device`, a study's identity."""
    with _running_access:
        is_only_one = device not in _running
        _running.add(device)
    try:
        yield is_only_one
    finally:
        if is_only_one:
            with _running_access:
                _running.discard(device)


def _growing_pauses() -> Iterator[float]:
    """Yield the seconds between two rounds that were full, so that no service can hurry devices."""
    pause = MIN_POLL_INTERVAL_SECONDS
    while True:
        yield pause
        pause = min(2 * pause, MAX_RETRY_AFTER_SECONDS)


def patience_for_first_round(wait: float) -> float:
    """Return the seconds for which a device that waits for a round tries to reach the service."""
    return min(DEFAULT_PATIENCE_SECONDS, max(wait, MIN_FIRST_PATIENCE_SECONDS))


def _end_before_joining(error: Exception) -> RoundEnd:
    if isinstance(error, NoRoundError | WrongStateError):
        state = EndState.NO_ROUND if isinstance(error, NoRoundError) else EndState.OVER
        return RoundEnd(state, error=error.message)
    return RoundEnd.of(error)
