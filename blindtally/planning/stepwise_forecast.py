"""Forecast of a study in steps, for a separate process: a first answer at once, then better ones.

    prepare()                # imports, before a user waits
    begin(request)
    while (forecast := advance()) is not None: ...

A process has one forecast. It imports nothing of the server, so that it starts in half the time.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from blindtally.planning.bracketing_populations import AssumedCounts, bracketing_cases, middle_case
from blindtally.planning.f1_by_words import StudySetting
from blindtally.planning.study_forecast import StudyForecast, forecast_in_steps
from protocol.domains.hashed import Hashed

RUNS: Final = 2
_SEED: Final = 1
_NICENESS: Final = 10
_MAX_MEMORY_BYTES: Final = 2**31  # a forecast takes some 300 MB
_QUICK_TOKENS: Final = 10**6  # of all rounds: their first study is not at a low priority
_WARM_UP_STUDY: Final = StudySetting(rounds=2, tau=5, tokens=50, words=500)


@dataclass(frozen=True, slots=True)
class ForecastRequest:
    """Settings of a forecast; no `setting` if the study is not simulated."""

    setting: StudySetting | None
    contribution: int = 1
    max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartialForecast:
    """A forecast after the first `done` of its `steps`."""

    done: int = 0
    steps: int = 0
    study: StudyForecast | None = None


def prepare() -> None:
    """Limit the memory of this process, and simulate a small study."""
    limit_memory(_MAX_MEMORY_BYTES)
    middle = middle_case(Hashed(max_bytes=16), AssumedCounts(items=100), _WARM_UP_STUDY.tokens, 1)
    for _ in forecast_in_steps(middle, _WARM_UP_STUDY, [(_SEED, 0)]):
        break


_forecast: Iterator[PartialForecast] | None = None  # that of this process


def begin(request: ForecastRequest) -> None:
    """Begin the forecast of this process."""
    global _forecast  # noqa: PLW0603 - a process has one
    _forecast = forecast_steps(request)


def advance() -> PartialForecast | None:
    """Return the forecast after another step, None after the last one.

    Raises:
        ValueError: if the study cannot be simulated.
    """
    assert _forecast is not None, "a forecast begins first"
    return next(_forecast, None)


def forecast_steps(request: ForecastRequest) -> Iterator[PartialForecast]:
    """Yield the forecast after each step; the steps after the first have a low priority."""
    setting = request.setting
    if setting is None:
        yield PartialForecast()
        return
    if setting.rounds * setting.tokens > _QUICK_TOKENS:
        _lower_priority()
    assumed, counts = Hashed(max_bytes=request.max_bytes), AssumedCounts()
    middle = middle_case(assumed, counts, setting.tokens, request.contribution)
    brackets = bracketing_cases(assumed, counts, setting, request.contribution)
    seeds = [(_SEED, run) for run in range(RUNS)]
    forecast = PartialForecast(steps=RUNS + len(brackets) + 1)
    for study in forecast_in_steps(middle, setting, seeds, brackets):
        forecast = replace(forecast, done=forecast.done + 1, study=study)
        yield forecast
        _lower_priority()


def limit_memory(max_bytes: int) -> None:
    """Let this process have at most `max_bytes` of data; no effect on Windows."""
    with suppress(ImportError):
        import resource  # noqa: PLC0415 (not on every platform)

        resource.setrlimit(resource.RLIMIT_DATA, (max_bytes, max_bytes))


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
