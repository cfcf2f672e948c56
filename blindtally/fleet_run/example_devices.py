"""Simulated devices that answer the example study of an open service, in the service's process."""

from asyncio import Lock
from concurrent.futures import Future
from functools import partial
from random import SystemRandom

import structlog

from blindtally.fleet_run.fleet_setup import DataFile, joined_study_setup
from client.background_loop import BackgroundLoop
from client.fleet.config_and_results import FleetConfig
from client.fleet.fleet import Fleet, NobodyEnteredError
from client.http.transport import http_client
from protocol.api.messages import StudyView
from protocol.device_policy.policy import Policy
from secagg.keys import Identity

_log = structlog.get_logger(__name__)


class ExampleDevices:
    """Devices in a thread that ends with the program, for one study at a time.

    `registrar` is the public key of the registrar of them all, in hexadecimal.
    """

    def __init__(self) -> None:
        self._identity = Identity.generate(SystemRandom())
        self.registrar = self._identity.public.hex()
        self.lock = Lock()
        self._background = BackgroundLoop("blindtally example")
        self._run: tuple[str, Future[None]] | None = None

    @property
    def study(self) -> str | None:
        """Return the id of the study that devices take part in now, or None."""
        return None if self._run is None or self._run[1].done() else self._run[0]

    def play(self, study: StudyView, host: str, port: int) -> None:
        """Let as many devices as a round has seats take part in each round of `study`."""
        shown = f"[{host}]" if ":" in host else host
        self._run = study.id, self._background.submit(self._play(study, f"http://{shown}:{port}"))

    async def _play(self, study: StudyView, url: str) -> None:
        policy = Policy(registrar=self._identity.public)
        config = FleetConfig(study.terms.max_devices, policy=policy, registrar=self._identity)
        try:
            setup = joined_study_setup(DataFile(), config, study, None)
            fleet = Fleet(partial(http_client, url), study, setup.holdings, setup.fleet_config)
            async for _ in fleet.run():
                pass
        except NobodyEnteredError:  # the study was stopped
            _log.info("the example's devices ended early", study=study.id)
        except Exception:
            _log.exception("the example's devices failed")
