"""Each recipe's program runs as its page has it, among a crowd, and has types."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from blindtally import LocalService, Study, Tracked, Utf8
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
QUESTION = Tracked(threshold=5, contribution=2, domain=Utf8(max_bytes=16), words=2000)


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService() as running:
        yield running


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


def create(service: LocalService, name: str, devices: int) -> Study:
    registrar = service.registrar_key.hex()
    return service.analyst.create(name, QUESTION, devices=devices, rounds=1, registrar=registrar)


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
    assert "in use" in other or "declined" in other or "no round" in other, other
    assert "folder for each" not in "".join(texts)


def test_programs_of_pages_are_short_and_have_types(tmp_path: Path) -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == set(STARTS)
    files = [tmp_path / f"{page}_recipe.py" for page in STARTS]
    for page, file in zip(STARTS, files, strict=True):
        file.write_text(program_of(page))
        assert len([line for line in program_of(page).splitlines() if line]) <= 30
    for checker in (["mypy", "--strict"], ["pyright", "--pythonpath", sys.executable]):
        command = [sys.executable, "-m", *checker, *map(str, files)]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
