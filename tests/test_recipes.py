"""Each recipe runs as its page has it: programs of devices among a crowd, and commands.

The folder in which commands run has the file `my.csv`, and their service the studies `products`,
`north`, `south`, `nothing` and `old`, and the key `team`.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blindtally import LocalService, Study, Tracked, Utf8
from blindtally.cli import app
from tests.test_docs import ROOT, blocks

FOLDER = ROOT / "docs" / "recipes"
STARTS = {  # how the program of a page is started
    "flask": "recipe.create_app(); time.sleep(600)",
    "django": (
        "from django.conf import settings; settings.configure(INSTALLED_APPS=['search', 'export'])"
        "; recipe.Command().handle()"
    ),
    "fastapi": "asyncio.run(serve())",
    "cron": "recipe.installed_packages = lambda: ['search', 'export']; recipe.main()",
    "container": "recipe.main()",
}
# Cohorts of a test are small.
PROGRAM = """
import asyncio, time
import recipe

recipe.Policy.__init__.__kwdefaults__["min_cohort"] = 5

async def serve():
    async with recipe.lifespan(recipe.app):
        await asyncio.sleep(600)

"""
QUESTION = Tracked(threshold=5, contribution=2, domain=Utf8(max_bytes=16), message_bytes=5784)
PAGES = {path.stem for path in FOLDER.glob("*.md")}
BLOCK = re.compile(
    r"^```(sh|python)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
PRODUCTS = ["tea", "coffee", "tea", "milk"]
MY_CSV = "user,product,age\n" + "".join(
    f"user{number},{PRODUCTS[number % 4]},{20 + number % 50}\n" for number in range(60)
)


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService() as running:
        yield running


@pytest.fixture(scope="module")
def addresses(service: LocalService) -> dict[str, str]:
    """Return the variables with which commands use a service that has studies and a key."""
    rounds = [["tea"] * 14 + ["milk"], ["tea"] * 14 + ["coffee"], ["coffee"] * 15, ["coffee"] * 15]
    play(service, "products", *rounds)
    play(service, "north", ["tea"] * 15 + ["coffee"] * 5)
    play(service, "south", ["tea"] * 5 + ["coffee"] * 15)
    play(service, "nothing", list("abcdefghijklmno"))
    play(service, "old", PRODUCTS * 4)
    database = service._server.database_url
    made = CliRunner().invoke(app, ["keys", "create", "team", "--database", database])
    assert made.exit_code == 0, made.output
    return {"BLINDTALLY_URL": service.url, "BLINDTALLY_DATABASE_URL": database}


def play(service: LocalService, name: str, *rounds: list[str]) -> None:
    """Run a study whose rounds are answered by devices with these items."""
    study = create(service, name, devices=len(rounds[0]), rounds=len(rounds))
    for items in rounds:
        service.crowd(study, [[item] for item in items]).result()
    study.wait()


def program_of(page: str) -> str:
    (code,) = blocks(FOLDER / f"{page}.md", "python")
    return code


@contextmanager
def running(page: str, service: LocalService, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the program of `page` as a device whose state is in `folder`."""
    (folder / "recipe.py").write_text(program_of(page))
    settings = {
        "STATISTICS_URL": service.url,
        "REGISTRAR_KEY": service.registrar_key.hex(),
        "REGISTRAR_URL": service.registrar,
        "REGISTRAR_TOKEN": service.registrar_token,
        "DEVICE_FOLDER": str(folder / "volume" / "device"),
        "FEATURES": "search export",
        "PYTHONPATH": f"{folder}:{ROOT}",
        **{f"XDG_{kind}_HOME": str(folder / kind) for kind in ("STATE", "CACHE")},
    }
    command = [sys.executable, "-c", PROGRAM + STARTS[page]]
    with subprocess.Popen(
        command,
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def create(service: LocalService, name: str, devices: int, rounds: int = 1) -> Study:
    registrar = service.registrar_key.hex()
    return service.analyst.create(
        name, QUESTION, devices=devices, rounds=rounds, registrar=registrar
    )


def wait_for(study: Study, *programs: subprocess.Popen[str]) -> None:
    """Wait for the end of a study; a program that fails would let it wait for ever."""
    while study.refresh().state == "running":
        for program in programs:
            assert program.poll() in (None, 0), program.communicate()[0]
        time.sleep(0.2)


@pytest.mark.parametrize("page", STARTS)
def test_the_program_of_a_page_takes_part(page: str, service: LocalService, tmp_path: Path) -> None:
    study = create(service, page, devices=12)
    with running(page, service, tmp_path) as process:
        service.crowd(study, [["search"]] * 11)
        wait_for(study, process)
        (row,) = study.heavy_hitters()
        assert (row.item, row.estimate) == ("search", 12), process.communicate(timeout=1)


def test_a_second_process_of_a_machine_does_not_fail_and_is_not_counted(
    service: LocalService, tmp_path: Path
) -> None:
    study = create(service, "two workers", devices=12)
    with running("cron", service, tmp_path) as first, running("cron", service, tmp_path) as second:
        service.crowd(study, [["search"]] * 11)
        wait_for(study, first, second)
        texts = [process.communicate(timeout=60)[0] for process in (first, second)]
        assert [process.returncode for process in (first, second)] == [0, 0], texts
    assert [row.estimate for row in study.heavy_hitters()] == [12]
    assert sum("finished" in text for text in texts) == 1
    (other,) = [text for text in texts if "finished" not in text]
    is_late = "/studies/" not in other  # it began when the study had ended
    assert is_late or "in use" in other or "declined" in other or "no round" in other, other
    assert "folder for each" not in "".join(texts)


def shape(text: str) -> str:
    """Return `text` with # for each number, and one space for each gap and drawn line."""
    text = re.sub(r"[│─╭╮╰╯]", " ", text)
    return " ".join(re.sub(r"-?\d(?:[\d.,]*\d)?(?:e[-+]\d+)?", "#", text).split())


@pytest.mark.parametrize("page", sorted(PAGES - set(STARTS)))
def test_the_commands_of_a_page_print_what_it_shows(
    page: str, addresses: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "my.csv").write_text(MY_CSV)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {**addresses, "PATH": path, "COLUMNS": "100"}
    blocks_of_page = BLOCK.findall((FOLDER / f"{page}.md").read_text())
    assert any(shown for _, _, shown in blocks_of_page)
    for language, code, shown in blocks_of_page:
        ends_servers = "trap 'kill $(jobs -p) 2> /dev/null' EXIT\n"
        command = (
            [sys.executable, "-c", code]
            if language == "python"
            else ["bash", "-c", ends_servers + code]
        )
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=os.environ | settings,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
        )
        printed = shape(done.stdout)
        assert [line for line in shown.splitlines() if shape(line) not in printed] == [], (
            done.stdout
        )
        faults = re.findall(
            r"^(?:error: |usage: |Usage: |Traceback|╭─ Error).*", done.stdout, re.MULTILINE
        )
        assert [line for line in faults if shape(line) not in shape(shown)] == []


def test_programs_of_pages_are_short_and_have_types(tmp_path: Path) -> None:
    files = [tmp_path / f"{page}_recipe.py" for page in STARTS]
    for page, file in zip(STARTS, files, strict=True):
        file.write_text(program_of(page))
        assert len([line for line in program_of(page).splitlines() if line]) <= 30
    for checker in (["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]):
        command = [sys.executable, "-m", *checker, *map(str, files)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
