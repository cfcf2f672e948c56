"""Predictions of a study's results, one at a time, which pages follow while they get better.

A program that serves passes the source of predictions to `create_app`: the server has none, because
a simulation imports what the server does not need.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Protocol

import structlog

from protocol.mechanisms.registry import AnyPlan
from server.notify.notifier import Notifier

ANSWER_SECONDS: Final = 1.5  # until the page shows that the simulation runs
_ABANDONED_SECONDS: Final = 10.0  # without a request of the page
_SLOW_MESSAGE: Final = (
    "the simulation takes longer than this service allows: `blindtally plan` predicts the study on "
    "your machine"
)
_BUSY_MESSAGE: Final = "another study is being simulated: try again in a moment"
_STOPPING_MESSAGE: Final = "the service is stopping: try again in a moment"
_FAILED_MESSAGE: Final = "the simulation failed: the log of the service has the reason"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AdviceLine:
    """One fact of a preview: a label, its value, and a note on the value."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class PartialPrediction:
    """The facts of a prediction after the first `done` of its `steps`."""

    lines: Sequence[AdviceLine]
    done: int = 1
    steps: int = 1


class PredictionSource(Protocol):
    """Source of predictions."""

    def prepare(self) -> None:
        """Get ready for a prediction that may be requested in a moment."""

    def predict(self, plan: AnyPlan) -> AsyncGenerator[PartialPrediction]:
        """Yield better and better predictions; TimeoutError if they take too long."""

    def close(self) -> None:
        """Release what `prepare` holds."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """The facts of a prediction so far, or the reason why there are none.

    While it runs, `seconds` is the time since its start, and `done` of `steps` are over.
    """

    lines: Sequence[AdviceLine] = ()
    error: str = ""
    seconds: float | None = None
    done: int = 0
    steps: int = 0


@dataclass(slots=True)
class _Simulation:
    """A prediction that runs, or has ended; `requested` is the time of the page's last request.

    `changed` is set when there is a better prediction than the last one that a page has seen.
    """

    question: tuple[object, ...]
    started: float
    requested: float
    latest: PartialPrediction = PartialPrediction((), 0, 0)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Prediction] | None = None

    @property
    def result(self) -> Prediction | None:
        """Return the result, None while it runs."""
        return self.task.result() if self.task is not None and self.task.done() else None


class Predictor:
    """Runs one prediction of `source` at a time; None if the server has no source.

    The page requests a prediction again until it has ended. A prediction that no page requests any
    more is cancelled.
    """

    def __init__(self, source: PredictionSource | None) -> None:
        self._source = source
        self._simulation: _Simulation | None = None

    @property
    def is_available(self) -> bool:
        return self._source is not None

    def prepare(self) -> None:
        """Get ready for a prediction, because a form is being filled."""
        if self._source is not None and not self._is_running:
            self._source.prepare()

    @property
    def _is_running(self) -> bool:
        return self._simulation is not None and self._simulation.result is None

    async def aclose(self) -> None:
        """Release what was prepared; a prediction that runs ends when the service stops."""
        if self._source is not None:
            self._source.close()

    async def predict(self, plan: AnyPlan, notifier: Notifier) -> Prediction:
        """Start the prediction for `plan` unless it runs, and return its state after a moment.

        When the service stops, the prediction is cancelled. It has ended when this returns.
        """
        question, now = (plan.question, plan.terms, plan.rounds), monotonic()
        simulation = self._simulation
        if simulation is not None and simulation.question != question:
            if self._is_running:
                return Prediction(error=_BUSY_MESSAGE)
            simulation = None
        if simulation is None or (simulation.result is not None and simulation.result.error):
            self._simulation = simulation = _Simulation(question, now, now)
            simulation.task = asyncio.create_task(self._run(simulation, plan, notifier))
        simulation.requested = now
        if simulation.result is None:
            await _wait_for_change(simulation)
        if simulation.result is not None:
            return simulation.result
        latest, seconds = simulation.latest, monotonic() - simulation.started
        return Prediction(latest.lines, "", seconds, latest.done, latest.steps)

    async def _run(self, simulation: _Simulation, plan: AnyPlan, notifier: Notifier) -> Prediction:
        following = asyncio.create_task(self._follow(simulation, plan))
        shutdown = asyncio.create_task(notifier.wait_for_shutdown())
        try:
            while not following.done() and not shutdown.done() and not _is_abandoned(simulation):
                await asyncio.wait(
                    (following, shutdown),
                    timeout=_ABANDONED_SECONDS / 2,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not following.done():
                return Prediction(error=_STOPPING_MESSAGE if shutdown.done() else _BUSY_MESSAGE)
            await following
            return Prediction(simulation.latest.lines)
        except TimeoutError:
            return Prediction(error=_SLOW_MESSAGE)
        except Exception:
            _log.exception("no prediction", mechanism=plan.mechanism)
            return Prediction(error=_FAILED_MESSAGE)
        finally:
            following.cancel()
            shutdown.cancel()
            await asyncio.gather(following, shutdown, return_exceptions=True)
            simulation.changed.set()

    async def _follow(self, simulation: _Simulation, plan: AnyPlan) -> None:
        assert self._source is not None, "a page without a source requests no prediction"
        async with aclosing(self._source.predict(plan)) as predictions:
            async for simulation.latest in predictions:
                simulation.changed.set()


async def _wait_for_change(simulation: _Simulation) -> None:
    """Wait for a better prediction or its end, for at most a moment."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await simulation.changed.wait()
    except TimeoutError:
        return
    simulation.changed.clear()
    if simulation.task is not None and simulation.latest.done == simulation.latest.steps:
        await asyncio.wait((simulation.task,), timeout=ANSWER_SECONDS)  # which ends now


def _is_abandoned(simulation: _Simulation) -> bool:
    return monotonic() - simulation.requested > _ABANDONED_SECONDS
