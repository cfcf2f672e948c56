"""Device for programs without an event loop: it takes part in a separate thread.

with Device(URL, policy, enrolment_signer=sign) as device:
outcomes = device.take_part(["hello", "world"])  # waits for the end
part = device.start(["hello", "world"], on_progress=print)  # returns at once
outcomes = part.result(timeout=600)
device.run(read_items, every=timedelta(days=1))  # until Ctrl-C
"""

from __future__ import annotations

import asyncio
from threading import Lock, Thread
from typing import TYPE_CHECKING

from client.lazy_modules import LazyModule

if TYPE_CHECKING:  # the models of all mechanisms take half a second to import
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from datetime import timedelta
    from typing import Any, Self, Unpack

    from client import credentials
    from client.device import encoding, repeated_participation, take_part
    from client.device.device_state import DeviceState
    from client.device.driver import ProgressCallback
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
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def __repr__(self) -> str:
        return f"<Device at {address_and_retries.shown_url(self._options['url'])}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take_part(
        self,
        items: Items,
        *,
        study: str | None = None,
        collection: str = "default",
        wait: float = 0.0,
        serve_on_committee: bool = False,
        on_progress: ProgressCallback | None = None,
    ) -> tuple[ParticipationOutcome, ...]:
        """Take part in a round of one study with `items`, and return the outcomes at its end.

        Arguments and errors are those of the function `take_part`. Ctrl-C drops the device out.
        """
        part = self.start(
            items,
            study=study,
            collection=collection,
            wait=wait,
            serve_on_committee=serve_on_committee,
            on_progress=on_progress,
        )
        try:
            return part.result()
        except BaseException:
            part.cancel()
            raise

    def start(
        self,
        items: Items,
        *,
        study: str | None = None,
        collection: str = "default",
        wait: float = 0.0,
        serve_on_committee: bool = False,
        on_progress: ProgressCallback | None = None,
    ) -> Future[tuple[ParticipationOutcome, ...]]:
        """Start to take part in the background, and return the future outcomes.

        `result(timeout)` of the future waits for them or raises an error of `take_part`; `cancel()`
        drops the device out. `on_progress` is called in the thread of the device.

        Raises:
            ValueError: at once, if `items` cannot be those of a device.
        """
        options = self._options | {"study": study, "collection": collection, "wait": wait}
        options["serve_on_committee"] = serve_on_committee
        if on_progress is not None:
            options["on_progress"] = on_progress
        part = take_part.take_part(items=encoding.count_items(items), **options)
        return asyncio.run_coroutine_threadsafe(part, self._running_loop())

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
        changed = {name: value for name, value in given.items() if value is not None}
        passes = repeated_participation.take_part_repeatedly(
            items=items, every=every, timeout=timeout, **self._options, **changed, **options
        )
        part = asyncio.run_coroutine_threadsafe(passes, self._running_loop())
        try:
            part.result()
        except KeyboardInterrupt:
            pass  # the usual end of such a program
        finally:
            part.cancel()

    def close(self) -> None:
        """Drop out of the rounds in the background, and end the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = Thread(
                    target=self._loop.run_forever, name="blindtally device", daemon=True
                )
                self._thread.start()
            return self._loop


def _awaitable(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return `function` as it runs in another thread, so that a slow registrar blocks no round."""

    async def call(*args: object) -> object:
        return await asyncio.to_thread(function, *args)

    return call


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, and wait for their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
