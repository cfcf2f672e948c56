"""Fleet of simulated devices in one process, which use a real service.

Each device takes part like any other device, over HTTP. A round selects devices that may still
contribute, of which a fixed fraction drops out, each after any of its steps except the last. The
fleet remembers the vector that each device encoded, which no service ever sees, so a demo or a test
can check that a sum is exact.

If the database of the service is restored, rounds that the fleet has seen may run again, or not
exist yet. The fleet then goes on with the round that is open, with the devices that have not sent a
vector.

`seed` determines selection, dropouts and clipping. Secrets, sampling and noise always use the
system's randomness.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from client.committee.registrar import DrawRecord, Registrar, seating_rounds
from client.committee.round_poller import polling
from client.device.device import STEP_OF_PHASE, DeviceStep
from client.device.driver import PARTICIPATION_ERRORS, EndState, wait_for_open_round
from client.errors import NoRoundError, NotFoundError, WrongStateError
from client.fleet import committee
from client.fleet.behaviour import DeviceBehaviour, draw_behaviours
from client.fleet.config_and_results import (
    DeviceResult,
    FleetConfig,
    FleetProgress,
    FleetRound,
    select_devices,
)
from client.fleet.devices import ClientFactory, FleetDevices, Holdings
from client.fleet.shards import Shard, ShardPool, gather_results, run_shard
from protocol.api.messages import RoundView, StudyView
from protocol.committee_terms import VolunteerTerms
from protocol.device_policy.plan_check import plan_violations
from protocol.device_policy.policy import PolicyError
from secagg.errors import PortableError

_MAX_ROUND_BYTES: Final = 2**24  # of a view: the survivors of a round of a million devices
_CLOSING_POLL_SECONDS: Final = 0.1  # between two requests for a round that will end soon
_RESTORED_CHECK_SECONDS: Final = 5.0  # between two checks that an earlier round still exists
_PROGRESS_POLL_SECONDS: Final = 1.0  # between two requests for a round that shards run

ProgressReporter: TypeAlias = Callable[[FleetProgress], None]


class NobodyEnteredError(PortableError, RuntimeError):
    """No device of the fleet took part in a round, so waiting has no use.

    Attributes:
        refusals: the violations of the policy, one per limit; empty if the policy is not the cause.
    """

    def __init__(self, number: int, reason: str, refusals: Sequence[PolicyError] = ()) -> None:
        super().__init__(f"no device of this fleet took part in round {number}: {reason}")
        self.refusals = tuple(refusals)


@dataclass
class Fleet:
    """Devices with `holdings`, one histogram each, that take part in `study`."""

    connect: ClientFactory
    study: StudyView
    holdings: Holdings
    config: FleetConfig
    report: ProgressReporter | None = None
    workers: ShardPool | None = None

    def __post_init__(self) -> None:
        self.devices = FleetDevices(self.connect, self.study, self.holdings, self.config)
        self._closed_rounds = set[int]()

    async def run(self) -> AsyncGenerator[FleetRound, None]:
        """Take part in round after round; yield each round when it has ended.

        It stops when the study ends, or when every device has sent its vector.

        Raises:
            NobodyEnteredError: if no device took part in a round.
            ValueError: if the fleet has too few devices for a committee of volunteers.
        """
        async with self._seating(), self.serving_committee():
            async for played in self._rounds():
                yield played

    def _seating(self) -> AbstractAsyncContextManager[None]:
        """Seat devices and draw committees, if the fleet has the key of a registrar that must."""
        config, terms = self.config, self.study.terms
        if config.registrar is None or not (terms.is_seated or terms.draws_committee):
            return nullcontext()
        # Its draws are not kept: it must not seat the devices of others.
        registrar = Registrar(config.registrar, DrawRecord(), study=self.study.id)
        return seating_rounds(self.connect, registrar, config.api_key)

    @asynccontextmanager
    async def serving_committee(self) -> AsyncIterator[None]:
        """Serve as the members of the committee, if the fleet has their keys."""
        terms = self.study.terms.committee
        if self.config.operators:
            members = [*committee.operators(self.config)]
        elif isinstance(terms, VolunteerTerms) and self.config.registrar is not None:
            members = await committee.volunteers(self.devices, terms)
        else:
            members = []
        async with polling(self.connect, members):
            yield

    async def _rounds(self) -> AsyncIterator[FleetRound]:
        after = latest = 0
        while self.devices.eligible(latest + 1):
            view = await self.next_round(after)
            if view is None:
                return
            results = await self.run_round(view)
            after, latest = view.number, max(latest, view.number)
            if await self._is_undone(after):  # the service was restored meanwhile
                after = 0
                continue
            if all(result.last_step is None for result in results):
                invited = [each for each in results if each.state is not EndState.NOT_INVITED]
                if not invited or any(result.state is EndState.LATE for result in invited):
                    continue  # no coin invited a device, or the round was full: try the next one
                raise NobodyEnteredError(view.number, *self._why_nobody_entered(view, invited[0]))
            try:
                closed = await self._wait_until_closed(view.number)
            except NotFoundError:  # `next_round` finds out why
                continue
            self._closed_rounds.add(view.number)
            if self.workers is not None:  # messages that came after the last poll
                self._report_received(closed, len(results))
            yield FleetRound(closed, results)

    def _why_nobody_entered(
        self, view: RoundView, result: DeviceResult
    ) -> tuple[str, list[PolicyError]]:
        """Return the error of one device, or every limit of the policy that the plan exceeds."""
        if result.policy_error is None:
            return result.error, []
        violations = plan_violations(self.config.policy, view.plan, self.study.id, view.number)
        by_limit = {error.limit: error for error in (result.policy_error, *violations)}
        return "; ".join(map(str, by_limit.values())), list(by_limit.values())

    async def next_round(self, after: int) -> RoundView | None:
        """Return the first open round after number `after`, None if the study has ended.

        If the service was restored to an earlier state, it is the first round that is open.
        """
        while True:
            async with self.devices.transport() as transport:
                try:
                    return await wait_for_open_round(
                        transport,
                        self.study.id,
                        after,
                        ticket=self.config.api_key,
                        patience=_RESTORED_CHECK_SECONDS,
                    )
                except WrongStateError:
                    return None
                except NoRoundError:
                    if after and await self._is_undone(after):
                        after = 0

    async def _is_undone(self, number: int) -> bool:
        """Return whether a round is as before the fleet saw it: the service was restored.

        What the fleet saw later is undone as well, so it forgets that.
        """
        try:
            view = await self._fetch_round(number)
            is_undone = view.state == "running" and number in self._closed_rounds
        except NotFoundError:
            is_undone = True
        if is_undone:
            self._closed_rounds.clear()
        return is_undone

    async def run_round(self, view: RoundView) -> tuple[DeviceResult, ...]:
        selected, last_steps = select_devices(
            self.config, view.number, view.plan.terms.sum, self.devices.eligible(view.number)
        )
        seed = [self.config.seed, view.number, 1]
        behaviours = draw_behaviours(self.config.behaviour, selected, last_steps, seed)
        if self.workers is None:
            return await self._run_devices(view, behaviours)
        return await self._run_shards(self.workers, view, behaviours)

    async def _run_devices(
        self, view: RoundView, behaviours: Mapping[int, DeviceBehaviour]
    ) -> tuple[DeviceResult, ...]:
        steps: Counter[DeviceStep] = Counter()
        ends: Counter[EndState] = Counter()

        def on_progress(progress: DeviceStep | EndState) -> None:
            if isinstance(progress, EndState):
                ends[progress] += 1
            else:
                steps[progress] += 1
            if self.report:
                not_invited = ends[EndState.NOT_INVITED]
                devices, dropouts = len(behaviours) - not_invited, ends.total() - not_invited
                self.report(FleetProgress(view, devices, dict(steps), dropouts))

        return await self.devices.run_round(view, behaviours, on_progress)

    async def _run_shards(
        self, workers: ShardPool, view: RoundView, behaviours: Mapping[int, DeviceBehaviour]
    ) -> tuple[DeviceResult, ...]:
        """Let workers run shards of the devices; report the service's view meanwhile."""
        loop = asyncio.get_running_loop()
        config = replace(self.config, registrar=None, operators=(), api_key=None)
        shards = []
        for part in workers.split(list(behaviours)):
            devices = [self.devices.snapshot(index, behaviours[index]) for index in part]
            holdings = {index: self.holdings[index] for index in part}
            shards.append(Shard(self.connect, self.study, view, config, holdings, devices))
        watching = loop.create_task(self._watch(view, len(behaviours)))
        try:
            shard_results = await gather_results(
                [loop.run_in_executor(workers.executor, run_shard, shard) for shard in shards]
            )
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        results: dict[int, DeviceResult] = {}
        for result, entries in (pair for part in shard_results for pair in part):
            self.devices.update(result, entries)
            results[result.device] = result
        return tuple(results[index] for index in behaviours)

    async def _watch(self, view: RoundView, devices: int) -> None:
        """Report the number of messages that the service has received in each phase."""
        while self.report:
            with suppress(*PARTICIPATION_ERRORS):
                view = await self._fetch_round(view.number)
            self._report_received(view, devices)
            await asyncio.sleep(_PROGRESS_POLL_SECONDS)

    def _report_received(self, view: RoundView, devices: int) -> None:
        steps = Counter[DeviceStep]()
        for record in (record for cohort in view.cohorts for record in cohort.history):
            if record.phase in STEP_OF_PHASE:
                steps[STEP_OF_PHASE[record.phase]] += record.received
        if self.report:
            self.report(FleetProgress(view, devices, dict(steps), 0))

    async def _wait_until_closed(self, number: int) -> RoundView:
        while True:
            view = await self._fetch_round(number)
            if view.state != "running":
                return view
            await asyncio.sleep(_CLOSING_POLL_SECONDS)

    async def _fetch_round(self, number: int) -> RoundView:
        async with self.devices.transport() as transport:
            path = f"/studies/{self.study.id}/rounds/{number}"
            answer = await transport.send(
                "GET", path, ticket=self.config.api_key, max_bytes=_MAX_ROUND_BYTES
            )
        return RoundView.model_validate_json(answer.content)
