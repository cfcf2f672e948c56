"""`blindtally login` and `logout`: profiles, and the order of options, variables and profiles."""

import json
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.console.profiles import Profile, find_profile, save_profile
from blindtally.demo.server_process import free_port
from tests.server.application import ServiceOnPort, on_a_port


class MemoryKeyring(KeyringBackend):
    """A keyring in memory."""

    priority = 1.0  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.saved = dict[tuple[str, str], str]()

    def get_password(self, service: str, username: str) -> str | None:
        return self.saved.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.saved[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.saved[service, username]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceOnPort]:
    with on_a_port(tmp_path_factory.mktemp("closed"), is_open=False) as service:
        yield service


@pytest.fixture(params=[MemoryKeyring, NoKeyring])
def ring(request: pytest.FixtureRequest) -> Iterator[Any]:
    before, ring = keyring.get_keyring(), request.param()
    keyring.set_keyring(ring)
    yield ring
    keyring.set_keyring(before)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "profiles.json"
    monkeypatch.setattr("blindtally.console.profiles.profiles_path", lambda: path)
    return path


def run(*words: str, typed: str = "", env: Mapping[str, str] | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, words, input=typed, env=env)
    return result.exit_code, " ".join(result.output.replace("│", "").split())


def test_a_key_is_checked_saved_used_for_its_address_only_and_removed(
    closed: ServiceOnPort, ring: Any, file: Path
) -> None:
    key = str(closed.key)
    code, output = run("login", closed.url, typed=f"{key[:-9]}wrong_key\n")
    assert (code, file.exists()) == (1, False), output
    assert "unknown, expired or revoked" in output
    assert key[:-9] not in output
    code, output = run("login", closed.url, typed=f" {key} \n")
    assert (code, key in output) == (0, False), output
    assert (key in file.read_text()) is isinstance(ring, NoKeyring)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("studies", "list")[0] == 0
    assert run("studies", "list", "--profile", "default")[0] == 0
    assert run("studies", "list", env={"BLINDTALLY_URL": closed.url})[0] == 0
    assert run("studies", "list", "--key", "btk_other")[0] == 1  # an option first
    assert run("studies", "list", env={"BLINDTALLY_API_KEY": "btk_other"})[0] == 1
    other = closed.url.replace("127.0.0.1", "localhost")
    code, output = run("studies", "list", "--url", other)
    assert (code, "key" in output) == (1, True)  # a profile's key is for its address only
    assert key not in repr(find_profile("default"))
    assert find_profile("default") == Profile(closed.url, key)
    assert run("logout") == (0, "removed the profile 'default'")
    assert (json.loads(file.read_text()), getattr(ring, "saved", {})) == ({}, {})
    assert run("logout")[0] == 1


def test_profiles_that_are_saved_at_once_are_all_kept(file: Path) -> None:
    keyring.set_keyring(NoKeyring())
    profiles = {
        f"p{number}": Profile("http://127.0.0.1:1", f"btk_{number}") for number in range(30)
    }
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(save_profile, profiles, profiles.values())} == {str(file)}
    assert {name: find_profile(name) for name in profiles} == profiles


@pytest.mark.long_cells  # of studies that other tests made
def test_an_option_precedes_the_variable_and_this_the_profile(url: str, file: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert run("login", url, "--profile", "trial", typed="\n")[0] == 0
    assert run("studies", "list", "--profile", "trial", env={"BLINDTALLY_URL": nobody})[0] == 0
    code, output = run("studies", "list", env={"BLINDTALLY_URL": nobody})
    assert (code, f"{nobody} is out of reach" in output) == (1, True)
    assert run("studies", "list", env={"BLINDTALLY_URL": "trial"})[0] == 0
    code, output = run("studies", "list", "--profile", "other")
    assert (code, "there is no profile of this name" in output) == (2, True)
    for text in ("{", '{"trial": {"url": 3}}', '["trial"]'):
        file.write_text(text)
        assert run("studies", "list", "--profile", "trial")[1].endswith("and log in again")


@pytest.mark.usefixtures("file")
def test_an_address_is_saved_in_one_form_and_without_a_password() -> None:
    code, output = run("login", "http://ann:secret@127.0.0.1:1", typed="\n")
    assert (code, "secret" in output, "a profile saves no password" in output) == (2, False, True)
    assert run("login", "http://127.0.0.1:1", "--profile", "a name", typed="\n")[0] == 2
    keyring.set_keyring(NoKeyring())
    save_profile("trial", Profile("http://127.0.0.1:1", "btk_1"))
    assert find_profile(url="HTTP://127.0.0.1:1/") == Profile("http://127.0.0.1:1", "btk_1")
