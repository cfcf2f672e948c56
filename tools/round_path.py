"""The modules that a whole round over HTTP enters, from its open plan to its answer.

    python tools/round_path.py

A real service and real devices meet in memory. They play two rounds: in the first one modules are
imported, and the second one is recorded. A module is entered if one of its functions runs.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any, Final

import httpx
import numpy as np
import structlog

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from client.device.device import StudyDevice  # noqa: E402
from client.device.driver import EndState, run_participation  # noqa: E402
from client.device.encoding import Contribution  # noqa: E402
from client.device.journal import MemoryJournal  # noqa: E402
from client.device.participation import SumParticipation  # noqa: E402
from client.http.transport import Transport  # noqa: E402
from protocol.api.messages import HeavyHitterPage, RoundView  # noqa: E402
from protocol.device_policy.policy import Policy  # noqa: E402
from protocol.randomness import seeded_words  # noqa: E402
from secagg.keys import Identity  # noqa: E402
from server.app import create_app  # noqa: E402
from server.settings import Pace, Settings  # noqa: E402

PACKAGES: Final = ("client", "protocol", "secagg", "server")
_POLICY: Final = Policy(
    min_cohort=2,
    min_threshold=1,
    trust_server_identities=True,
    accept_exact_estimates=True,
)


def _study(devices: int) -> dict[str, Any]:
    """Return the request for a study with one round of this many devices."""
    return {
        "name": "letters",
        "question": {
            "mechanism": "tracked",
            "threshold": 4,
            "contribution": 1,
            "domain": {"kind": "utf8", "max_bytes": 3},
            "message_bytes": 7000,
        },
        "terms": {"cohort_size": devices, "minimum": 3, "corrupt": 0.17, "dropout": 0.34},
        "rounds": 1,
        "start": True,
    }


async def _play(
    http: httpx.AsyncClient, devices: int, record: Callable[[bool], None] = lambda _on: None
) -> list[str]:
    """Play a round of devices that all have the item "ab"; return the heavy hitters.

    The round is recorded without the creation of the study and the pages of its answer.
    """
    study = (await http.post("/studies", json=_study(devices))).json()["id"]
    record(True)
    answer = await http.get(f"/studies/{study}/rounds/open", params={"wait": 10})
    view = RoundView.model_validate_json(answer.content)

    async def take_part(number: int) -> None:
        identity = Identity.of(number.to_bytes(32, "big"))
        device = StudyDevice(identity, Contribution({"ab": 1}), MemoryJournal())
        part = SumParticipation(
            Transport(http),
            view,
            device,
            policy=_POLICY,
            secrets=SystemRandom(),
            chance=seeded_words(np.random.default_rng(number)),
        )
        end = await run_participation(part, study)
        assert end.state is EndState.FINISHED, end

    await asyncio.gather(*(take_part(number) for number in range(devices)))
    # It is answered once the study is over, since no other round opens.
    await http.get(f"/studies/{study}/rounds/open", params={"after": 1, "wait": 10})
    record(False)
    answer = await http.get(f"/studies/{study}/heavy-hitters")
    page = HeavyHitterPage.model_validate_json(answer.content)
    return [each.item for each in page.heavy_hitters]


async def _play_two(record: Callable[[bool], None]) -> list[str]:
    with TemporaryDirectory() as folder:
        settings = Settings(database_url=f"sqlite:///{folder}/round.db", open=True)
        app = create_app(settings, None, Random(1), pace=Pace(poll_seconds=60))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://test/v1") as http,
        ):
            await _play(http, 12)  # opens the connections to the database
            return await _play(http, 7, record)  # caches have no sizes of this cohort


def entered_modules() -> set[str]:
    """Play the rounds; return the paths of the modules that the second one entered."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    ran, is_recording = set[CodeType](), [False]

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        if is_recording[0]:
            ran.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        listed = asyncio.run(_play_two(lambda on: is_recording.__setitem__(0, on)))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    assert listed == ["ab"], listed
    paths = {code.co_filename.removeprefix(f"{ROOT}/") for code in ran if code.co_name[0] != "<"}
    # Only in some runs a thread opens its connection in the second round, which enters this module.
    paths.add("server/db/database_url.py")
    return {path for path in paths if path.split("/")[0] in PACKAGES}


if __name__ == "__main__":
    print(*sorted(entered_modules()), sep="\n")
