"""A mechanism of one file, of another distribution, is used like all others by every program."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import httpx
import pytest

FOLDER = Path(__file__).parent / "plug_in"
EXAMPLE = Path(__file__).parents[1] / "examples" / "yes_no"
DEVICES, YES = 60, 40


def blindtally(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the plug-in installed."""
    return subprocess.run(
        [sys.executable, "-m", "blindtally", *words],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{FOLDER}:{EXAMPLE}", "HOME": str(folder), "COLUMNS": "100"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plug-in")
    rows = [f"user{number},{'yes' if number < YES else 'no'}" for number in range(DEVICES)]
    (folder / "poll.csv").write_text("\n".join(["user,item", *rows, ""]))
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """Yield the address of a service that has the plug-in."""
    command = [sys.executable, "-m", "blindtally", "serve", "--open", "--port", "0"]
    with subprocess.Popen(
        [*command, "--log-level", "warning"],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
        server.terminate()


def test_a_study_of_a_plug_in_is_asked_by_the_form_played_by_a_fleet_and_shown(
    folder: Path, url: str
) -> None:
    with httpx.Client(base_url=url, timeout=60) as browser:
        form = browser.get("/studies/new", params={"question": "yes-no"})
        assert "How many devices answer yes, and how many no." in form.text
        values = dict(re.findall(r'name="([^"]+)"[^>]*? value="([^"]*)"', form.text))
        values |= {"question": "yes-no", "name": "poll", "question.threshold": "10", "rounds": "1"}
        values |= {"terms.cohort_size": str(DEVICES), "terms.minimum": "30", "start": "on"}
        values |= {"timeouts.idle": "1"}
        created = browser.post("/studies/new", data=values, headers={"Origin": url})
        assert created.status_code == 303, created.text
        study = created.headers["location"].rsplit("/", 1)[-1]
        played = blindtally(
            folder,
            *("fleet", "--url", url, "--study", study, "--data", "poll.csv", "--no-registrar"),
        )
        assert played.returncode == 0, played.stderr
        page = browser.get(f"/studies/{study}").text
        assert "Counts the devices that answer yes, and those that answer no." in page
        assert f'class="n devices"><strong>{YES}</strong>' in page
        answer = browser.get(f"/v1/studies/{study}/heavy-hitters").json()
        assert [row["estimate"] for row in answer["heavy_hitters"]] == [YES, DEVICES - YES]
    asked = blindtally(folder, "query", study, "--url", url, "--json", "-")
    assert json.loads(asked.stdout)["items"][0]["estimate"] == YES
    assert re.search(rf"yes +{YES} ", blindtally(folder, "query", study, "--url", url).stdout)


def test_a_plug_in_is_simulated(folder: Path) -> None:
    asked = ["simulate", "yes-no", "--data", "poll.csv", "--rounds", "2", "--threshold", "5"]
    simulated = blindtally(folder, *asked, "--json", "-")
    assert simulated.returncode == 0, simulated.stderr
    document = json.loads(simulated.stdout)
    answer, _ = document["heavy_hitters"]
    assert (answer["item"], answer["estimate"], answer["true_count"]) == ("yes", YES, YES)
    assert (document["devices"], document["rounds_decoded"]) == (DEVICES, 2)
    assert re.search(rf"'yes' +{YES}", blindtally(folder, *asked).stdout)


def test_a_plug_in_is_listed(folder: Path) -> None:
    listed = blindtally(folder, "mechanisms", "--json", "-")
    rows = {row["mechanism"]: row for row in json.loads(listed.stdout)["mechanisms"]}
    assert rows["yes-no"]["what"] == "how many devices answer yes, and how many no, exact"


_UNDESCRIBED = """
from yes_no import MECHANISM as M
kept = {part: getattr(type(M), part) for part in ("ring", "encode_sum", "fault", "decode")}
MECHANISM = type("Bare", type(M).__bases__, kept | {"name": "bare", "description": M.description})()
"""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("nowhere:MECHANISM", "cannot be imported"),
        ("json:dumps", "is not a mechanism"),
        ("protocol.mechanisms.tracked.mechanism:Tracked", "call it, with ()"),
        (
            "misnamed:MECHANISM",
            "has the name 'other', and its YesNoQuestion the mechanism 'yes-no'",
        ),
        ("undescribed:MECHANISM", "has no question_type and no plan_type"),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_named(tmp_path: Path, value: str, reason: str) -> None:
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[blindtally.mechanisms]\nx = {value}\n")
    misnamed = "from yes_no import MECHANISM\nMECHANISM.name = 'other'\n"
    (tmp_path / "misnamed.py").write_text(misnamed)
    (tmp_path / "undescribed.py").write_text(_UNDESCRIBED)
    (tmp_path / "yes_no.py").write_text((EXAMPLE / "yes_no.py").read_text())
    ran = subprocess.run(
        [sys.executable, "-m", "blindtally", "mechanisms"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode != 0
    assert reason in ran.stderr
    assert ran.stderr.startswith("error: the plug-in x (")
    assert "of broken" in ran.stderr


def test_a_server_without_the_plug_in_of_its_studies_does_not_start(folder: Path, url: str) -> None:
    created = blindtally(
        folder,
        *("studies", "create", "poll", "--mechanism", "yes-no", "--devices", "130", "--draft"),
        *("--threshold", "10", "--url", url),
    )
    assert created.returncode == 0, created.stderr
    ran = subprocess.run(
        [sys.executable, "-m", "blindtally", "keys", "list"],
        cwd=folder,
        env=_environment(folder) | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "install its plug-in again" in ran.stdout + ran.stderr


def test_the_example_registers_as_the_tested_plug_in_does() -> None:
    tested = ConfigParser()
    assert tested.read(FOLDER / "blindtally_yes_no-1.0.dist-info" / "entry_points.txt")
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    assert {group: dict(tested[group]) for group in tested.sections()} == project["entry-points"]
