"""Device for programs without an event loop: it takes part in a separate thread.

with Device(URL, policy, enrolment_signer=sign) as device:
outcomes = device.take_part(["hello", "world"])  # waits for the end
part = device.start(["hello", "world"], on_progress=print)  # returns at once
outcomes = part.result(timeout=600)
device.run(read_items, every=timedelta(days=1))  # until Ctrl-C
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from client.background_loop import BackgroundLoop, result_of
from client.lazy_modules import LazyModule

if TYPE_CHECKING:  # the models of all mechanisms take half a second to import
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from datetime import timedelta
    from typing import Any, Self, Unpack

    from client import credentials
    from client.device import encoding, repeated_participation, take_part
    from client.device.device_state import DeviceState
    from client.device.encoding import Items
    from client.device.repeated_participation import PassCallback, PassOptions
    from client.device.take_part import ParticipationOutcome
    from client.http import address_and_retries
    from protocol.device_policy.policy import Policy
    from protocol.mechanisms.registry import AnyPlan
    from secagg.session import Registry
else:
    address_and_retries = LazyModule("client.http.address_and_retries")
    credentials = LazyModule("client.credentials")
    encoding = LazyModule("client.device.encoding")
    repeated_participation = LazyModule("client.device.repeated_participation")
    take_part = LazyModule("client.device.take_part")


class Device:
    """A device at the service at `url`; its part in a study runs in a background thread.

    The arguments are those of the function `take_part`, but `enrolment_signer` is a plain function
    of a registry and an identity, and `consent` one of a plan. A device on disk that is closed and
    made again is the same device. The thread ends with the program: a device that is in a round
    then drops out.
    """

    def __init__(  # noqa: PLR0913 - devices differ in all of these
        self,
        url: str,
        policy: Policy | None = None,
        *,
        device_state: DeviceState | None = None,
        token: str | None = None,
        registrar: str | None = None,
        registrar_token: str | None = None,
        enrolment_signer: Callable[[Registry, bytes], bytes] | None = None,
        consent: Callable[[AnyPlan], bool] | None = None,
        patience: float | None = None,
    ) -> None:
        given = (policy, device_state, enrolment_signer, consent)
        if any(each is not None for each in given):
            take_part.check_arguments(*given)
        self._options: dict[str, Any] = {
            "url": address_and_retries.service_url(url),
            "policy": policy,
            "device_state": device_state,
            "token": credentials.checked_secret(token, "enrolment token"),
            "registrar": registrar,
            "registrar_token": credentials.checked_secret(registrar_token, "registrar_token"),
        }
        if enrolment_signer is not None:
            self._options["enrolment_signer"] = _awaitable(enrolment_signer)
        if consent is not None:
            self._options["consent"] = _awaitable(consent)
        if patience is not None:
            self._options["patience"] = patience
        self._background = BackgroundLoop("blindtally device")

    def __repr__(self) -> str:
        return f"<Device at {address_and_retries.shown_url(self._options['url'])}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take_part(
        self, items: Items, **options: Unpack[PassOptions]
    ) -> tuple[ParticipationOutcome, ...]:
        """Take part in a round of one study with `items`, and return the outcomes at its end.

        Options (`study`, `collection`, `wait`, `serve_on_committee`, `on_progress`) and errors are
        those of the function `take_part`. Ctrl-C drops the device out.
        """
        return result_of(self.start(items, **options))

    def start(
        self, items: Items, **options: Unpack[PassOptions]
    ) -> Future[tuple[ParticipationOutcome, ...]]:
        """Start to take part in the background, and return the future outcomes.

        `result(timeout)` of the future waits for them or raises an error of `take_part`; `cancel()`
        drops the device out. `on_progress` is called in the thread of the device.

        Raises:
            ValueError: at once, if `items` cannot be those of a device.
        """
        held = encoding.count_items(items)
        return self._background.submit(take_part.take_part(items=held, **self._options, **options))

    def run(
        self,
        items: Callable[[], Items],
        every: timedelta,
        *,
        jitter: float | None = None,
        back_off: Callable[[], timedelta | None] | None = None,
        stop: Callable[[], bool] | None = None,
        timeout: timedelta | None = None,
        on_pass: PassCallback | None = None,
        **options: Unpack[PassOptions],
    ) -> None:
        """Take part about `every` so often until Ctrl-C, until `stop()` is true, or for `timeout`.

        Arguments and errors are those of the function `take_part_repeatedly`, and `options` those
        of the method `take_part`. The callables run in threads of the device.
        """
        given = {"jitter": jitter, "back_off": back_off, "stop": stop, "on_pass": on_pass}
        changed: Any = {name: value for name, value in given.items() if value is not None}
        passes = repeated_participation.take_part_repeatedly(
            items=items, every=every, timeout=timeout, **self._options, **changed, **options
        )
        with suppress(KeyboardInterrupt):  # the usual end of such a program
            result_of(self._background.submit(passes))

    def close(self) -> None:
        """Drop out of the rounds in the background, and end the thread."""
        self._background.close()


def _awaitable(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return `function` as it runs in another thread, so that a slow registrar blocks no round."""

    async def call(*args: object) -> object:
        return await asyncio.to_thread(function, *args)

    return call
