"""Predictions for the page that creates studies: accuracy by simulation.

Each runs in its own process, with bounded memory, which is killed when it takes too long, is
cancelled, or outlives the service. The process is started when a form is shown, so that it is ready
when a prediction is requested: its imports take some seconds.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Final

from blindtally.planning.f1_by_words import StudySetting
from blindtally.planning.stepwise_forecast import (
    RUNS,
    ForecastRequest,
    PartialForecast,
    advance,
    begin,
    prepare,
)
from blindtally.planning.study_forecast import DEVICE_RANGE, ROUND_RANGE, StudyForecast
from blindtally.process_pool import RetryingProcessPool
from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import AnyPlan
from server.pages.formatting import nbytes, significant
from server.pages.forms.predictor import AdviceLine, PartialPrediction
from server.pages.forms.preview import plan_command_options

_TIMEOUT_SECONDS: Final = 50.0  # the page waits 60
_IDLE_SECONDS: Final = 300.0  # after which a process that nobody uses ends
_MAX_STRING_BYTES: Final = 64  # of an assumed item, if the domain sets no limit


class ProcessPredictions:
    """Predictions, each in a process that is started before it is needed."""

    def __init__(self) -> None:
        self._ready: RetryingProcessPool | None = None
        self._idle: asyncio.TimerHandle | None = None

    def prepare(self) -> None:
        """Start a process unless one is ready; it ends after a while without a prediction."""
        if self._ready is None:
            self._ready = RetryingProcessPool(1, max_attempts=1)
            self._ready.submit(prepare)
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(_IDLE_SECONDS, self.close)

    def close(self) -> None:
        """End the process that is ready."""
        pool, self._ready = self._ready, None
        if self._idle is not None:
            self._idle.cancel()
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)  # kills the process

    async def predict(self, plan: AnyPlan) -> AsyncGenerator[PartialPrediction]:
        """Yield better and better predictions for the study that `plan` begins.

        Raises:
            ValueError: if the study cannot be simulated.
            TimeoutError: if the predictions take too long.
        """
        self.prepare()
        pool, self._ready = self._ready, None
        assert pool is not None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                await asyncio.wrap_future(pool.submit(begin, request_of(plan)))
                while (step := await asyncio.wrap_future(pool.submit(advance))) is not None:
                    yield PartialPrediction(lines_of(plan, step), step.done, step.steps)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # kills the process


def request_of(plan: AnyPlan) -> ForecastRequest:
    """Return the settings of the forecast for the study that `plan` begins."""
    setting, terms, question = None, plan.terms, plan.question
    if _is_simulated(plan):
        tokens, words = terms.max_devices * question.contribution, _words(plan)
        setting = StudySetting(plan.rounds, question.threshold, tokens, words)
    domain = question.domain
    max_bytes = domain.max_bytes if isinstance(domain, Hashed) else _MAX_STRING_BYTES
    return ForecastRequest(setting, question.contribution, max_bytes)


def _words(plan: AnyPlan) -> int:
    words: int = getattr(plan.question, "words")  # noqa: B009 (both simulated mechanisms have it)
    return words


def _is_simulated(plan: AnyPlan) -> bool:
    if plan_command_options(plan) is None:
        return False
    return plan.terms.max_devices in DEVICE_RANGE and plan.rounds in ROUND_RANGE


def lines_of(plan: AnyPlan, forecast: PartialForecast) -> list[AdviceLine]:
    """Return the lines of the page for a forecast."""
    lines = list[AdviceLine]()
    if plan_command_options(plan) is not None and not _is_simulated(plan):
        limits = f"{DEVICE_RANGE[0]} to {DEVICE_RANGE[-1]:,} devices and {ROUND_RANGE[-1]:,} rounds"
        note = f"only studies of {limits} are simulated"
        lines.append(AdviceLine("F1", "not simulated", note))
    if forecast.study is not None:
        lines += _accuracy_lines(plan, forecast.study, min(forecast.done, RUNS))
    return lines


def _accuracy_lines(plan: AnyPlan, forecast: StudyForecast, runs: int) -> Iterator[AdviceLine]:
    studies = "one simulated study" if runs == 1 else "simulated studies"
    for row in forecast.predictions:
        by = "" if row.mechanism == plan.mechanism else f" by {row.mechanism}"
        f1 = f"{row.f1:.2f}" if runs == 1 else f"{row.f1:.2f} ± {row.f1_deviation:.2f}"
        yield AdviceLine(f"F1{by}", f1, f"of {studies}: 100,000 items, shares as 1 / rank")
        if row.described_range:
            note = f"low: {row.f1_low_population}; high: {row.f1_high_population}"
            yield AdviceLine(f"F1 in other data{by}", row.described_range, note)
        decoded = significant(row.rounds_decoded)
        yield AdviceLine(f"Rounds decoded{by}", decoded, f"of {plan.rounds}")
        yield AdviceLine(f"A device receives{by}", nbytes(row.download_bytes), "a plan, at most")
    for goal, size in forecast.words_by_goal.items():
        value = "more than 200,000" if size is None else f"about {size:,.0f}"
        yield AdviceLine(f"Words for an F1 of {goal}", value, "by tracked")
