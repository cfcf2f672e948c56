"""Participation of one device again and again, as a program that runs for months does.

Each pass reads the items again, and calls `take_part`. Passes begin about `every` so often: with
jitter, so that a million devices do not arrive in the same second. `back_off` may ask for a pause
before a pass, at night or on a metered network. A service out of reach ends a pass, whose outcome
has the reason, and not the program.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from random import SystemRandom
from typing import Final, TypeAlias, TypedDict, Unpack

from client.device.device_state import DeviceState
from client.device.driver import PARTICIPATION_ERRORS, EndState, ProgressCallback, RoundEnd
from client.device.encoding import Items
from client.device.take_part import (
    ConsentCallback,
    EnrolmentSigner,
    ParticipationOutcome,
    take_part,
)
from protocol.device_policy.policy import Policy

_LOG: Final = logging.getLogger(__name__)
DEFAULT_JITTER: Final = 0.1
STOP_CHECK_SECONDS: Final = 1.0

PassCallback: TypeAlias = Callable[[tuple[ParticipationOutcome, ...]], None]


class PassOptions(TypedDict, total=False):
    """Options of `Device.take_part`."""

    study: str | None
    collection: str
    wait: float
    serve_on_committee: bool
    on_progress: ProgressCallback


class ParticipationOptions(PassOptions, total=False):
    """Options of the function `take_part`."""

    device_state: DeviceState | None
    token: str | None
    registrar: str | None
    registrar_token: str | None
    enrolment_signer: EnrolmentSigner | None
    consent: ConsentCallback | None
    patience: float | None


def log_pass(outcomes: tuple[ParticipationOutcome, ...]) -> None:
    """Log how a pass ended in each study, with the level INFO."""
    for each in outcomes:
        _LOG.info("study %s, round %s: %s. %s", each.study, each.round, each.state, each.error)


async def take_part_repeatedly(  # noqa: PLR0913 - devices differ in all of these
    url: str,
    items: Callable[[], Items],
    every: timedelta,
    policy: Policy | None = None,
    *,
    jitter: float = DEFAULT_JITTER,
    back_off: Callable[[], timedelta | None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
    timeout: timedelta | None = None,  # noqa: ASYNC109 - of all passes together
    on_pass: PassCallback = log_pass,
    **options: Unpack[ParticipationOptions],
) -> None:
    """Take part with the result of `items()` about `every` so often, beginning now.

    The time between two passes varies by the fraction `jitter`. Before a pass, `back_off()` returns
    None, or a pause after which it is asked again. `on_pass` receives the outcomes of each pass, as
    `take_part` returns them; by default they are logged. Errors of `on_pass` are logged as well.
    An error of `items` ends the pass in the state `fault`, and one of `back_off` leaves the pass
    out; both are logged.
    `options` are those of `take_part`.

    The call returns once `stop()` is true, which is asked every second between two passes, or when
    the `timeout` of all passes together is over. At a timeout, and when the call is cancelled, the
    device drops out of a round.

    Raises:
        ValueError: if an argument is not of its type, or as `take_part` does.
        JournalError: if the device's folder cannot be used, except while another process uses it.
    """
    _check(items, every, jitter, timeout)
    clock, rng = asyncio.get_running_loop().time, SystemRandom()
    try:
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()) as limit:
            while not stop():
                if pause := _pause(back_off, every):
                    await _wait(max(pause.total_seconds(), STOP_CHECK_SECONDS), stop)
                    continue
                began = clock()
                outcomes = await _one_pass(url, items, policy, options)
                try:
                    on_pass(outcomes)
                except Exception:
                    _LOG.exception("on_pass failed; the device goes on")
                period = every.total_seconds() * rng.uniform(1 - jitter, 1 + jitter)
                await _wait(began + period - clock(), stop)
    except TimeoutError:
        if not limit.expired():
            raise


async def _one_pass(
    url: str, items: Callable[[], Items], policy: Policy | None, options: ParticipationOptions
) -> tuple[ParticipationOutcome, ...]:
    study = options.get("study") or ""
    try:
        held = await asyncio.to_thread(items)
    except Exception as error:
        _LOG.exception("the items could not be read; the next pass reads them again")
        fault = f"the items could not be read: {type(error).__name__}"
        return (ParticipationOutcome(study, EndState.FAULT, error=fault),)
    try:
        return await take_part(url, held, policy, **options)
    except PARTICIPATION_ERRORS as error:  # the list of studies could not be read
        end = RoundEnd.of(error)
        return (ParticipationOutcome(study, end.state, error=end.error),)


def _pause(back_off: Callable[[], timedelta | None], every: timedelta) -> timedelta | None:
    """Return the pause before a pass: `every` if `back_off` fails, since the network may cost."""
    try:
        return back_off()
    except Exception:
        _LOG.exception("back_off failed; the device waits for the next pass")
        return every


async def _wait(seconds: float, stop: Callable[[], bool]) -> None:
    clock = asyncio.get_running_loop().time
    end = clock() + seconds
    while not stop() and (left := end - clock()) > 0:  # noqa: ASYNC110 - `stop` is a callable
        await asyncio.sleep(min(left, STOP_CHECK_SECONDS))


def _check(items: object, every: object, jitter: float, timeout: object) -> None:
    """Raise ValueError for an argument that cannot be right."""
    if not callable(items):
        raise ValueError(  # noqa: TRY004 - arguments that cannot be right are a ValueError
            "items is a function that returns the items of a pass, such as read_items"
        )
    if not isinstance(every, timedelta) or every <= timedelta():
        raise ValueError(f"every is a time such as timedelta(hours=6), got {every!r}")
    if not 0 <= jitter < 1:
        raise ValueError(f"jitter is a fraction of `every` from 0 to below 1, got {jitter!r}")
    if timeout is not None and not isinstance(timeout, timedelta):
        raise ValueError(f"timeout is a time such as timedelta(days=1), got {timeout!r}")
