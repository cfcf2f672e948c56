"""Settings and speed classes of all tests.

Every test has one of three speeds. `make quick` runs the fast ones, `make test` all but the
slow ones, and `make test-slow` the slow ones and, with more examples, all properties:

    fast     tests that no table of `speeds.toml` names
    medium   tests that its table `medium` names, about 0.1 s or more each
    slow     tests that its table `slow` names, about 1 s or more each, all but the first cases
             of the table `repeated`, and all tests that need PostgreSQL

Seconds are processor time. Examples of properties are not timed, because the machines they run on
are shared.

A shell that starts its tests in the background lets them and their processes ignore Ctrl-C, which
some tests use to stop a process.
"""

import functools
import gc
import os
import shutil
import signal
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
import stamina._core
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ALL_TESTS: Final = ("",)
_SPEEDS: Final = tomllib.loads((Path(__file__).parent / "speeds.toml").read_text())
SLOW_TESTS, MEDIUM_TESTS, REPEATED_TESTS = (
    {path: tuple(begins) for path, begins in _SPEEDS[table].items()}
    for table in ("slow", "medium", "repeated")
)
# Laws with several examples of each mechanism: all but the first of each are slow.
LAW_FILES = ("tests/protocol/test_mechanism_laws.py", "tests/protocol/test_report_laws.py")
CASES_KEPT = 2  # of each of REPEATED_TESTS
POSTGRES = {"postgres", "postgresql"}  # parameters of fixtures that choose a database

for _profile, _examples in (("quick", 3), ("test", 6), ("slow", 100)):
    settings.register_profile(_profile, deadline=None, max_examples=_examples)
settings.load_profile("test")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out whole files without importing them, which takes seconds in every worker."""
    path, left_out = collection_path.relative_to(config.rootpath).as_posix(), config.option.markexpr
    slow = "not slow" in left_out and SLOW_TESTS.get(path) == ALL_TESTS
    medium = "not medium" in left_out and MEDIUM_TESTS.get(path) == ALL_TESTS
    return slow or medium or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its speed."""
    tried = Counter[tuple[str, ...]]()
    for item in items:
        path, _, test = item.nodeid.partition("::")
        name, _, case = test.partition("[")
        mechanism = case.partition(",")[0]
        is_repeated = path in LAW_FILES and tried[path, name, mechanism] > 0
        if name in REPEATED_TESTS.get(path, ()):
            is_repeated |= tried[path, name] >= CASES_KEPT
        if is_repeated or _needs_postgres(item) or _is("slow", path, test):
            item.add_marker("slow")
            continue
        tried.update([(path, name), (path, name, mechanism)])
        if _is("medium", path, test):
            item.add_marker("medium")


def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay until the end, out of every search for garbage.

    Searches are also rarer than by default: they took a tenth of the time of the server's tests.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a hundredth of the time between two attempts of a client."""
    seconds = stamina._core._compute_backoff
    monkeypatch.setattr(stamina._core, "_compute_backoff", lambda *args: seconds(*args) / 100)


@pytest.fixture(scope="module")  # its event loop would stop asynchronous tests of other modules
def browser() -> "Iterator[Browser]":
    """Yield Debian's Chromium, at `BLINDTALLY_CHROMIUM` or where it usually is."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - few workers need it

    path = os.environ.get("BLINDTALLY_CHROMIUM") or shutil.which("chromium")
    if path is None:  # CI installs it
        pytest.skip("NO BROWSER: install Debian's chromium, or name one in BLINDTALLY_CHROMIUM")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield launched
        launched.close()


def _is(speed: str, path: str, test: str) -> bool:
    """Return whether the table of `speed` names `test`, or a folder or file that it is in."""
    begins = _begins(speed, path)
    case = test[test.find("[") :] if "[" in test else ""
    return test.startswith(begins) or case.startswith(begins)


@functools.cache
def _begins(speed: str, path: str) -> tuple[str, ...]:
    """Return the beginnings of the tests of `speed` in a file."""
    rows = {"slow": SLOW_TESTS, "medium": MEDIUM_TESTS}[speed].items()
    return tuple(b for part, begins in rows if f"{path}/".startswith(f"{part}/") for b in begins)


def _needs_postgres(item: pytest.Item) -> bool:
    chosen = (
        item.callspec.params.values()
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else ()
    )
    kinds = {value for value in chosen if isinstance(value, str)}
    return "postgres_server" in getattr(item, "fixturenames", ()) or bool(POSTGRES & kinds)


def pytest_xdist_auto_num_workers() -> int:
    """Return the workers of `--numprocesses auto`: one more than cores, because tests wait."""
    return (os.cpu_count() or 1) + 1


@pytest.fixture(scope="session")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a file of 20,000 ages and three unknown ones."""
    values = np.round(np.random.default_rng(2).gamma(4, 10, 20_000), 1)
    path = tmp_path_factory.mktemp("data") / "numbers.csv"
    path.write_text("\n".join(["age,count", *(f"{value},1" for value in values), "unknown,3"]))
    return str(path)
