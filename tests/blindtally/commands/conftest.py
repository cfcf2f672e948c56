"""A real service on a port that the commands share."""

from collections.abc import Iterator, Mapping, Sequence

import httpx
import pytest

from client.fleet.config_and_results import FleetConfig
from client.fleet.fleet import Fleet
from protocol.api.messages import StudyView
from tests.server.application import ServiceOnPort, on_a_port
from tests.support.policies import trusting_policy


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceOnPort]:
    with on_a_port(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="session")
def url(service: ServiceOnPort) -> str:
    return service.url


async def play_one_round(url: str, study: StudyView, held: Sequence[Mapping[str, int]]) -> None:
    """Let a device for each of `held` take part in the next round of `study`, which is decoded."""
    policy = trusting_policy(min_cohort=5, max_epsilon=5000)
    config = FleetConfig(len(held), policy=policy)
    fleet = Fleet(lambda: httpx.AsyncClient(base_url=f"{url}/v1", timeout=30), study, held, config)
    async for played in fleet.run():
        assert played.view.state == "decoded"
        return
