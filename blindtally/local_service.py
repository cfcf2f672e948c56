"""Service for trials: a server, a registrar and simulated devices on this machine.

    with LocalService() as service:
        study = service.analyst.create(
            "words", question, devices=10, rounds=1, registrar=service.registrar_key.hex()
        )
        service.crowd(study, [["hello"]] * 9)
        take_part(service.url, ["hello"], service.policy, study=study.id, wait=60,
                  registrar=service.registrar, registrar_token=service.registrar_token)

A test of an app uses it as the app uses the real parties. The server is another process, as that of
`blindtally demo`; the registrar signs for all devices. Nothing is kept.
"""

import atexit
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, Self

from blindtally.own_packages import import_own
from client.analyst.analyst import Analyst, Study
from client.background_loop import BackgroundLoop
from client.device.driver import EndState
from client.device.encoding import Items, count_items
from client.extras_installation import describe_missing
from client.fleet.config_and_results import FleetConfig
from client.fleet.fleet import Fleet
from client.http.transport import http_client
from client.lazy_modules import LazyModule
from protocol.device_policy.policy import Policy
from secagg.keys import Identity

if TYPE_CHECKING:
    from blindtally.demo import server_process
    from blindtally.registrar_service import trial_registrar
else:
    # Both need the extra `server`, which a device's program may lack.
    server_process = LazyModule("blindtally.demo.server_process")
    trial_registrar = LazyModule("blindtally.registrar_service.trial_registrar")

MAX_TRIAL_EPSILON: Final = 100.0


class LocalService:
    """An open server and a registrar on ports of this machine, from `start` to `stop`.

    Attributes:
        url: the address of the server.
        analyst: an analyst at the server.
        registrar, registrar_token: the address of the registrar, and what it accepts as a proof.
        registrar_key: its public key, for `Policy.registrar`; the analyst needs `.hex()` of it.
        policy: limits for trials, which accept small studies; those of an app should be stricter.

    Raises:
        ModuleNotFoundError: without the extra `server`.
        ShadowedPackageError: if the program has imported a `server.py` of its own.
    """

    def __init__(self) -> None:
        self.registrar_token = "trial"  # noqa: S105 - it enrols all devices
        self._identity = Identity.generate(SystemRandom())
        self.registrar_key = self._identity.public
        self.policy = Policy(
            registrar=self.registrar_key,
            min_cohort=2,
            min_threshold=1,
            max_epsilon=MAX_TRIAL_EPSILON,
            accept_exact_estimates=True,
        )
        self._folder = TemporaryDirectory(prefix="blindtally-", ignore_cleanup_errors=True)
        self._background = BackgroundLoop("blindtally local service")
        self._was_started = False
        try:
            import_own(["server"])
            self._server = server_process.ServerProcess(Path(self._folder.name), is_open=True)
            port = server_process.free_port()
            self._serve_registrar = partial(trial_registrar.serve, self._identity, port)
        except ModuleNotFoundError as error:
            self._folder.cleanup()
            text = f"LocalService needs {describe_missing(error, 'server')}"
            raise ModuleNotFoundError(text, name=error.name) from None
        self.url, self.registrar = self._server.url, f"http://127.0.0.1:{port}"
        self.analyst = Analyst(self.url)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the server and the registrar: some seconds.

        They end at `stop`, or with the program, however that ends.

        Raises:
            RuntimeError: if it was started before: make another one.
            ServerDownError: if the server cannot start; its notes are the end of its log.
        """
        if self._was_started:
            raise RuntimeError("this LocalService was started already: make another one")
        self._was_started = True
        atexit.register(self.stop)
        self._server.launch()
        self._background.submit(self._serve_registrar())
        try:
            self._server.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything and delete its files; a device of the crowd drops out."""
        atexit.unregister(self.stop)
        self._background.close()
        self.analyst.close()
        self._server.stop()
        self._folder.cleanup()

    def crowd(
        self, study: Study, items_by_device: Sequence[Items], dropout: float = 0.0
    ) -> Future[Counter[EndState]]:
        """Let simulated devices with these items take part in the background.

        Each round takes up to one of them for each seat, and the fraction `dropout` of these drops
        out. The future has the numbers of devices by the end of their part, once the study has
        ended or all devices have taken part.
        """
        config = FleetConfig(
            min(study.view.terms.max_devices, len(items_by_device)),
            dropout,
            policy=self.policy,
            registrar=self._identity,
        )
        held = [count_items(items) for items in items_by_device]
        devices = Fleet(partial(http_client, self.url), study.view, held, config)

        async def run() -> Counter[EndState]:
            rounds = [played async for played in devices.run()]
            return Counter(result.state for played in rounds for result in played.results)

        return self._background.submit(run())
