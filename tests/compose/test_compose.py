"""Promises of docker-compose.yml: some read in the file, all tried in a real engine."""

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.core import TyperGroup

from blindtally.cli import load_command
from server.settings import Settings
from tests.compose.engine import why_none
from tests.compose.one_shot import MEMBERS
from tests.compose.stand_ins import IMAGES

ROOT = Path(__file__).parents[2]
FILE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
LASTING_SERVICES = sorted(SERVICES.keys() - {"fleet", "one-shot-fleet", "simulation"})
DASK = {"scheduler", "worker", "simulation"}
REGISTRAR = {"registrar"}
COMMITTEE = {*MEMBERS, "member-proxy", "one-shot-fleet"}
SECRET = "PASSWORD|KEY|TOKEN"
# Keys that docker-compose 1.29 does not know.
NEW_TOP_LEVEL_KEYS = {"name", "include", "version"}
NEW_SERVICE_KEYS = {
    "develop",
    "attach",
    "annotations",
    "post_start",
    "pre_stop",
    "provider",
    "models",
}


def test_old_engines_know_every_key() -> None:
    assert not NEW_TOP_LEVEL_KEYS & FILE.keys()
    for service in SERVICES.values():
        assert not NEW_SERVICE_KEYS & service.keys()
        assert "start_interval" not in service["healthcheck"]
        for condition in service.get("depends_on", {}).values():
            assert condition.keys() == {"condition"}


def test_engines_without_buildkit_know_every_line_of_the_images() -> None:
    for path in [ROOT / "Dockerfile", *ROOT.glob("tests/compose/stand_ins/*.Dockerfile")]:
        text = path.read_text()
        assert not re.search(r"--mount|--chmod|--link|<<|^# *syntax", text, re.MULTILINE), path
        assert not re.search(r"^RUN.*[^|]\|[^|]", text, re.MULTILINE), "a pipe hides failures"


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    uses = re.findall(rf"\$\{{\w*(?:{SECRET})\w*([^}}]*)\}}", text)
    assert uses
    assert set(uses) == {":?run make env first"}
    variables = [pair for s in SERVICES.values() for pair in s.get("environment", {}).items()]
    given = {name: value for name, value in variables if re.search(SECRET, name)}
    assert given
    assert all(value is None or value.startswith("${") for value in given.values())


@pytest.mark.parametrize("name", LASTING_SERVICES)
def test_services_are_checked_restarted_and_stopped_in_order(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] == "CMD"
    assert service["restart"] == "unless-stopped"
    assert service["stop_signal"] in {"SIGTERM", "SIGINT", "SIGUSR1"}
    assert int(service["stop_grace_period"].removesuffix("s")) > 10


@pytest.mark.parametrize("name", SERVICES)
def test_services_hold_no_rights(name: str) -> None:
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"]
    assert not service.get("privileged")
    assert service.get("user", "10001") != "root"
    if "build" in service:
        assert re.search(r"^USER 10001$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    else:
        assert service["user"] in {"postgres", "haproxy"}


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_limited(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"2g|512m", service["mem_limit"])
    assert service["cpus"] <= 1  # or an engine with one core refuses the file
    assert service["pids_limit"] <= 256


def test_a_frozen_replica_leaves_the_proxy_within_four_seconds() -> None:
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    (timeout,) = re.findall(r"^ *timeout check (\d+)ms", text, re.MULTILINE)
    ((interval, checks),) = re.findall(
        r"^ *default-server .* inter (\d+)s fall (\d+)", text, re.MULTILINE
    )
    assert int(interval) + int(checks) * int(timeout) / 1000 <= 4
    assert "on-marked-down shutdown-sessions" in text
    assert "option redispatch 1" in text


def test_readers_reach_living_replicas_while_none_is_ready() -> None:
    """A replica whose database refuses writes is not ready, but shows pages."""
    text = (ROOT / "deploy" / "haproxy.cfg").read_text()
    assert "use_backend readers if METH_GET !{ path /readyz } { nbsrv(replicas) lt 1 }" in text
    _, readers = text.split("\nbackend readers\n")
    assert "option httpchk GET /healthz\n" in readers


def test_only_the_proxy_is_reached_from_outside_and_only_from_this_machine() -> None:
    assert [name for name, service in SERVICES.items() if service.get("ports")] == ["proxy"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["proxy"]["ports"])
    assert FILE["networks"]["inside"] == {"internal": True}
    assert SERVICES["database"]["networks"] == SERVICES["server"]["networks"] == ["inside"]
    assert SERVICES["fleet"]["networks"] == ["outside"]
    assert FILE["networks"]["dask"] == {"internal": True}
    assert {name for name, service in SERVICES.items() if "dask" in service["networks"]} == DASK
    assert all(SERVICES[name]["networks"] == ["dask"] for name in DASK)


def test_two_replicas_run_the_image_of_the_fleet() -> None:
    assert SERVICES["server"]["scale"] == "${BLINDTALLY_REPLICAS:-2}"
    assert SERVICES["server"]["image"] == SERVICES["fleet"]["image"]
    assert SERVICES["server"]["build"] == SERVICES["fleet"]["build"]


def test_each_member_has_its_own_volume_and_reaches_only_its_proxy() -> None:
    proxy = SERVICES["member-proxy"]
    assert proxy["networks"] == ["inside", *MEMBERS]
    assert proxy["volumes"] == SERVICES["proxy"]["volumes"]
    for name in MEMBERS:
        service = SERVICES[name]
        assert service["hostname"] == name
        assert service["networks"] == [name]
        assert FILE["networks"][name] == {"internal": True}
        assert [other for other in SERVICES if name in SERVICES[other]["networks"]] == [
            "member-proxy",
            name,
        ]
        own, shared = service["volumes"]
        assert own == f"{name}:/home/blindtally"  # its key and journal, in the folder of its user
        assert shared == "members:/members"  # public keys
        assert service["environment"].keys() == {"BLINDTALLY_API_KEY"}
        assert "MEMBER_KEY" in service["environment"]["BLINDTALLY_API_KEY"]
    assert SERVICES["one-shot-fleet"]["volumes"] == ["members:/members:ro"]
    assert {*SERVICES["one-shot-fleet"]["depends_on"]} == {"proxy", *MEMBERS}


def test_dask_runs_on_request_in_a_separate_image() -> None:
    assert {name for name in SERVICES if "profiles" in SERVICES[name]} == (
        DASK | COMMITTEE | REGISTRAR
    )
    assert all(SERVICES[name]["profiles"] == ["one-shot"] for name in COMMITTEE)
    for name in DASK:
        assert SERVICES[name]["profiles"] == ["dask"]
        assert SERVICES[name]["build"]["args"]["LOCK"] == "dask"
        assert SERVICES[name]["image"] != SERVICES["server"]["image"]
    assert "ARG LOCK=server\n" in (ROOT / "Dockerfile").read_text()


def test_pulled_images_can_be_replaced_and_have_stand_ins() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    chosen = dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", text))
    assert set(chosen) == {"PYTHON_IMAGE", "POSTGRES_IMAGE", "PROXY_IMAGE"}
    assert set(chosen.values()) == IMAGES.keys()


@pytest.mark.parametrize("name", ["fleet", "simulation"])
def test_the_command_line_accepts_the_command_of_a_service(name: str) -> None:
    command, *arguments = (
        re.sub(r"\$\{\w+:-(\w+)\}", r"\1", part) for part in SERVICES[name]["command"]
    )
    assert load_command(command).make_context(command, arguments).params


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("member-1", ["--create", "--public-key"]),
        ("one-shot-fleet", ["--member", "a" * 64]),
        ("registrar", ["--behind-proxy"]),
    ],
)
def test_the_command_line_accepts_the_command_of_a_script(
    name: str, expected: list[str], tmp_path: Path
) -> None:
    """A stand-in for the program records its arguments."""
    members, program = tmp_path / "members", tmp_path / "blindtally"
    members.mkdir()
    (members / "member-1").write_text("a" * 64 + "\n")
    program.write_text('#!/bin/sh\necho "$@" > call\n')
    program.chmod(0o700)
    (script,) = SERVICES[name]["command"]
    script = script.replace("$$", "$").replace("/members/", f"{members}/")
    variables = {"HOSTNAME": name, "DEVICES": "100", "ROUNDS": "3"}
    environment = variables | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", script], cwd=tmp_path, env=environment, check=True)
    name, *arguments = (tmp_path / "call").read_text().split()
    command = load_command(name)
    if isinstance(command, TyperGroup):
        name, *arguments = arguments
        command = command.commands[name]
    assert set(expected) <= set(arguments)
    assert command.make_context(name, arguments).params


def test_secrets_are_random_private_and_never_made_twice(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    program = tmp_path / "deploy" / "make_env"
    program.write_bytes((ROOT / "deploy" / "make_env").read_bytes())
    made = []
    for _ in range(2):
        subprocess.run(["sh", program], check=True, capture_output=True)
        made.append((tmp_path / ".env").read_text())
        assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    assert made[0] == made[1]  # the database knows the first
    assert made[0].count("BLINDTALLY_MEMBER_KEY=btk_") == 1
    (password,) = re.findall(r"^POSTGRES_PASSWORD=([0-9a-f]{64})$", made[0], re.MULTILINE)
    assert len(set(password)) > 4  # false with probability below 16^-59
    (tmp_path / ".env").unlink()
    subprocess.run(["sh", program], check=True, capture_output=True)
    assert password not in (tmp_path / ".env").read_text()


def test_a_file_of_an_older_version_receives_the_key_of_members(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    program, made = tmp_path / "deploy" / "make_env", tmp_path / ".env"
    program.write_bytes((ROOT / "deploy" / "make_env").read_bytes())
    made.write_text("POSTGRES_PASSWORD=first\n")
    made.chmod(0o600)
    subprocess.run(["sh", program], check=True, capture_output=True)
    assert re.fullmatch(
        r"POSTGRES_PASSWORD=first\n\n#.*\nBLINDTALLY_MEMBER_KEY=btk_[\w-]{43}\n", made.read_text()
    )
    assert stat.S_IMODE(made.stat().st_mode) == 0o600


def test_a_login_at_a_provider_is_passed_on_if_the_lines_of_make_env_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy").mkdir()
    program = tmp_path / "deploy" / "make_env"
    program.write_bytes((ROOT / "deploy" / "make_env").read_bytes())
    subprocess.run(["sh", program], check=True, capture_output=True)
    lines = re.findall(r"^#(\w+=.*)$", (tmp_path / ".env").read_text(), re.MULTILINE)
    variables = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    files = variables["COMPOSE_FILE"].split(":")
    assert (ROOT / files[0]).read_text() == (ROOT / "docker-compose.yml").read_text()
    login = yaml.safe_load((ROOT / files[1]).read_text())
    passed = login["services"]["server"]["environment"]
    settings = {name for name in Settings.model_fields if re.match("public_url|oidc_", name)}
    assert passed.keys() == {f"BLINDTALLY_{name.upper()}" for name in settings}
    for name, value in passed.items():
        assert value.startswith(f"${{{name}:")
        monkeypatch.setenv(name, variables[name])
    assert Settings().oidc_issuer
    for name in ("OIDC_ISSUER", "OIDC_CLIENT_SECRET"):
        assert ":?" in passed[f"BLINDTALLY_{name}"]  # no default


def test_only_replicas_reach_a_provider() -> None:
    """The fleet reaches the proxy by another network, so that it cannot go around the proxy."""
    login = yaml.safe_load((ROOT / "deploy" / "login.yml").read_text())
    assert login["services"].keys() == {"server"}
    assert login["services"]["server"]["networks"] == ["inside", "provider"]
    assert login["networks"].keys() == {"provider"}
    assert not any("provider" in service["networks"] for service in SERVICES.values())


def test_secrets_stay_out_of_git_and_of_images() -> None:
    for file in (".gitignore", ".dockerignore"):
        assert ".env" in (ROOT / file).read_text().splitlines()


@pytest.mark.timeout(1800)  # it makes a base image, and downloads packages
def test_a_replica_killed_in_mid_round_costs_no_sum() -> None:
    if os.environ.get("BLINDTALLY_COMPOSE") != "1":
        pytest.skip("docker-compose.yml is tried in a real engine by make compose-test: minutes")
    if (why := why_none()) is not None:
        pytest.fail(f"docker-compose.yml cannot be tried: {why}")
    done = subprocess.run([sys.executable, "-m", "tests.compose.prove"], cwd=ROOT, check=False)
    assert done.returncode == 0
