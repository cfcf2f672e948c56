"""A real server process that the commands share."""

from collections.abc import Iterator

import pytest

from blindtally.demo.server_process import ServerProcess


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("service"), is_open=True) as running:
        yield running


@pytest.fixture(scope="session")
def url(service: ServerProcess) -> str:
    return service.url
