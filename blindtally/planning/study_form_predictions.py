"""Predictions for the page that creates studies: accuracy by simulation, and measured times.

Each runs in its own process, at a low priority and with bounded memory, which is killed when it
takes too long, is cancelled, or outlives the service.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from blindtally.console.tables import format_seconds
from blindtally.planning.bracketing_populations import AssumedCounts, bracketing_cases, middle_case
from blindtally.planning.f1_by_words import StudySetting
from blindtally.planning.forecast import (
    DEVICE_RANGE,
    ROUND_RANGE,
    forecast_study,
)
from blindtally.planning.sum_costs import SumCost, measure_operations
from blindtally.process_pool import RetryingProcessPool
from protocol.domains.hashed import Hashed
from protocol.mechanisms.registry import REPORT_MECHANISMS, SUM_MECHANISMS, AnyPlan
from secagg.parameters import choose_parameters
from server.pages.formatting import nbytes, significant
from server.pages.forms.preview import AdviceLine, plan_command_options

_RUNS: Final = 2
_SEED: Final = 1
_TIMEOUT_SECONDS: Final = 50.0  # the page waits 60
_NICENESS: Final = 10
_MAX_MEMORY_BYTES: Final = 2**31  # a prediction takes some 300 MB
_MAX_STRING_BYTES: Final = 64  # of an assumed item, if the domain sets no limit
_WORD_BYTES: Final = 4


async def predict(plan: AnyPlan) -> Sequence[AdviceLine]:
    """Return the predictions for the study that `plan` begins.

    Raises:
        ValueError: if the study cannot be simulated.
        TimeoutError: if the predictions take too long.
    """
    pool = RetryingProcessPool(1, max_attempts=1)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            return await asyncio.wrap_future(pool.submit(_predict_with_limits, plan))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # kills the process


def _predict_with_limits(plan: AnyPlan) -> list[AdviceLine]:
    limit_memory(_MAX_MEMORY_BYTES)
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    return predict_here(plan)


def limit_memory(max_bytes: int) -> None:
    """Let this process have at most `max_bytes` of data; no effect on Windows."""
    with suppress(ImportError):
        import resource  # noqa: PLC0415 (not on every platform)

        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))


def predict_here(plan: AnyPlan) -> list[AdviceLine]:
    """Return the predictions, computed in this process.

    Raises:
        ValueError: if the study cannot be simulated.
    """
    lines = list(_accuracy_lines(plan))
    if plan.mechanism not in REPORT_MECHANISMS:
        lines += _time_lines(plan)
    return lines


def _accuracy_lines(plan: AnyPlan) -> Iterator[AdviceLine]:
    if plan_command_options(plan) is None:
        return
    devices, question = plan.terms.max_devices, plan.question
    if devices not in DEVICE_RANGE or plan.rounds not in ROUND_RANGE:
        limits = f"{DEVICE_RANGE[0]} to {DEVICE_RANGE[-1]:,} devices and {ROUND_RANGE[-1]:,} rounds"
        yield AdviceLine("F1", "not simulated", f"only studies of {limits} are simulated")
        return
    domain, contribution = question.domain, question.contribution
    max_bytes = domain.max_bytes if isinstance(domain, Hashed) else _MAX_STRING_BYTES
    assumed, counts = Hashed(max_bytes=max_bytes), AssumedCounts()
    words: int = getattr(question, "words")  # noqa: B009 (both mechanisms have it)
    setting = StudySetting(plan.rounds, question.threshold, devices * contribution, words)
    middle = middle_case(assumed, counts, setting.tokens, contribution)
    brackets = bracketing_cases(assumed, counts, setting, contribution)
    seeds = [(_SEED, run) for run in range(_RUNS)]
    forecast = forecast_study(middle, setting, seeds, brackets)
    for row in forecast.predictions:
        by = "" if row.mechanism == plan.mechanism else f" by {row.mechanism}"
        f1 = f"{row.f1:.2f} ± {row.f1_deviation:.2f}"
        yield AdviceLine(f"F1{by}", f1, "of simulated studies: 100,000 items, shares as 1 / rank")
        note = f"low: {row.f1_low_population}; high: {row.f1_high_population}"
        yield AdviceLine(f"F1 in other data{by}", row.described_range, note)
        decoded = significant(row.rounds_decoded)
        yield AdviceLine(f"Rounds decoded{by}", decoded, f"of {plan.rounds}")
        yield AdviceLine(f"A device receives{by}", nbytes(row.download_bytes), "a plan, at most")
    for goal, size in forecast.words_by_goal.items():
        value = "more than 200,000" if size is None else f"about {size:,.0f}"
        yield AdviceLine(f"Words for an F1 of {goal}", value, "by tracked")


def _time_lines(plan: AnyPlan) -> Iterator[AdviceLine]:
    terms = plan.terms
    words = SUM_MECHANISMS[plan.mechanism].ring(plan).nbytes // _WORD_BYTES
    parameters = choose_parameters(terms.cohort_size, terms.assumptions)
    cost = SumCost(parameters, terms.assumptions, terms.registrar is not None)
    operations = measure_operations(parameters)
    dropouts = terms.assumptions.max_dropouts(terms.cohort_size)
    device = sum(cost.device_seconds(operations, words).values())
    server, with_dropouts = (
        format_seconds(sum(cost.server_seconds(operations, words, count).values()))
        for count in (0, dropouts)
    )
    yield AdviceLine(
        "A device computes", format_seconds(device), "per round, on a core of this machine"
    )
    note = f"per cohort; {with_dropouts} with {terms.dropout:.0%} dropouts"
    yield AdviceLine("The server computes", server, note)
