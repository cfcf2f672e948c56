"""Time, bytes and memory of a device in JavaScript, next to its goals and to Prio3 of Divvi Up.

    python -m benchmarks.javascript [--runs N] [--json PATH]

npm installs `@divviup/prio3` 0.8 from its registry into a temporary folder. Its Prio3Histogram is
the only open client for browsers that hides a histogram from all servers together. Both make
messages in the same run, in Node: the goals are a fifth of its time and its bytes.

**Prio3 proves its inputs**: that each device adds 1 to one entry. Our message proves only that its
shares are of one polynomial, so a device can add what it wants. A proof needs a large field: each
element of Prio3 has 16 bytes, and each of ours has 15 bits.

A message of `tracked` includes the encoding of its items; 490 elements are what 367 words need in
all. Times are the shortest of N, which other work disturbs least. `memory` is what a page's
renderer has for itself at its peak, beyond that of an empty page, if it makes all messages once.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from playwright.sync_api import Page, sync_playwright

from benchmarks.harness import BenchmarkRow, argument_parser, report
from blindtally.demo.server_process import ServerProcess
from protocol.committee_terms import CommitteeTerms
from protocol.domains.strings import Utf8
from protocol.mechanisms.registry import SUM_MECHANISMS
from protocol.mechanisms.tracked.plan import TrackedQuestion
from protocol.question_and_plan import Terms
from tests.js.node import NODE, ROOT, SITE, run_node, run_page

_PRIO3: Final = "@divviup/prio3@0.8"
_FOLDER: Final = Path(__file__).parent
MESSAGES: Final = "../../benchmarks/javascript_messages.mjs"  # from the folder of tests
# With 367 words, a vector of `tracked` has 490 elements, and its message more than 1,400 bytes.
_ELEMENTS: Final = 490
_FIRST_BYTES: Final = 1400
_WORDS: Final = ("hello", "brunch", "selfie")
_OF_WINDOW: Final = "--top-chrome-webui"
# The most resident memory, and the pages of files, such as the browser's program: all of its
# processes share them. Its compilers alone add 8 MB of such pages once a script is hot.
_SIZES: Final = re.compile(r"(?:VmHWM|RssFile):\s+(\d+) kB")


def tracked_plan() -> dict[str, Any]:
    """Return the plan of a first round with seven operators, whose vectors have 490 elements."""
    members = tuple(Random(i).randbytes(32).hex() for i in range(7))
    committee = CommitteeTerms(members=members)
    terms = Terms(cohort_size=1000, minimum=50, sum="one-shot", committee=committee)
    mechanism = SUM_MECHANISMS["tracked"]
    for nbytes in range(_FIRST_BYTES, 2 * _FIRST_BYTES, 4):
        question = TrackedQuestion(
            threshold=20, contribution=3, domain=Utf8(max_bytes=16), message_bytes=nbytes
        )
        plan = mechanism.first_plan(question, terms, "benchmark", 10, Random(1))
        if sum(lane.length for lane in mechanism.ring(plan).lanes) >= _ELEMENTS:
            document: dict[str, Any] = json.loads(plan.canonical_text())
            return document
    raise AssertionError("no message has so many elements")


def given_messages(runs: int) -> dict[str, Any]:
    """Return the arguments with which `MESSAGES` measures each message `runs` times."""
    committees = run_node(MESSAGES, {})
    return {"plan": tracked_plan(), "items": _WORDS, "runs": runs, "committees": committees}


def prio3_messages(runs: int) -> dict[str, dict[str, float]]:
    """Return time and bytes of Prio3's messages, by entries."""
    npm = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    with TemporaryDirectory() as folder:
        command = [str(NODE), str(npm), "install", "--silent", "--prefix", folder, _PRIO3]
        subprocess.run(command, check=True)  # noqa: S603 - arguments of this file
        module = shutil.copy(_FOLDER / "prio3_messages.mjs", folder)
        timed: dict[str, dict[str, float]] = run_node(module, {"runs": runs})
        return timed


@contextmanager
def page_of_chromium() -> Iterator[tuple[Page, list[int]]]:
    """Yield a page of a new Chromium, and a list of the peak bytes of its renderers."""
    path = os.environ.get("BLINDTALLY_CHROMIUM") or shutil.which("chromium")
    peaks = list[int]()
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser.new_page(), peaks
        processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
        for process in processes["processInfo"]:
            folder = Path(f"/proc/{process['id']}")
            # The browser's own window has a renderer, too, whose memory varies by 30 MB.
            if process["type"] == "renderer" and _OF_WINDOW not in (folder / "cmdline").read_text():
                peak, shared = _SIZES.findall((folder / "status").read_text())
                peaks.append(1024 * (int(peak) - int(shared)))
        browser.close()


def page_messages(given: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Return a page's messages, and the memory of making each once beyond an empty page."""
    with page_of_chromium() as (page, _):
        timed = run_page(page, MESSAGES, given)
    with page_of_chromium() as (page, empty):
        page.route(f"{SITE}/**", lambda route: route.fulfill(body="<!doctype html>"))
        page.goto(SITE)
    with page_of_chromium() as (page, full):
        run_page(page, MESSAGES, given | {"runs": 1})
    return timed, max(full) - max(empty)


def lines_of_a_reader() -> int:
    """Return the lines of the example for Node, without those that are empty or a comment."""
    text = (ROOT / "examples" / "node" / "take_part.mjs").read_text()
    return sum(bool(line) and not line.startswith("//") for line in text.splitlines())


def bytes_of_bundle() -> dict[str, int]:
    """Return the bytes that a service sends as its bundle, by the encoding that is accepted."""
    with TemporaryDirectory() as folder, ServerProcess(Path(folder), is_open=True) as service:
        address = f"{service.url}/static/blindtally-device.js"
        answers = {
            encoding: httpx.get(address, headers={"Accept-Encoding": encoding}).raise_for_status()
            for encoding in ("identity", "br")
        }
        return {encoding: answer.num_bytes_downloaded for encoding, answer in answers.items()}


def goal_rows(runs: int) -> Iterator[BenchmarkRow]:
    """Yield each figure next to its goal."""
    given = given_messages(runs)
    node = run_node(MESSAGES, given)
    page, memory = page_messages(given)
    prio3 = prio3_messages(runs)
    for entries, theirs in prio3.items():
        ours, name = node[entries], f"{int(entries):,} entries, seven operators, Node"
        yield BenchmarkRow(f"{name}, without a proof", ours["ms"], "ms", theirs["ms"] / 5)
        yield BenchmarkRow(f"{name}, without a proof", ours["bytes"], "B", theirs["bytes"] / 5)
        yield BenchmarkRow(f"{int(entries):,} entries, Prio3, proved", theirs["ms"], "ms")
        yield BenchmarkRow(f"{int(entries):,} entries, Prio3, proved", theirs["bytes"], "B")
    yield BenchmarkRow("tracked of 367 words, Node", node["plan"]["ms"], "ms", 10.0)
    yield BenchmarkRow("tracked of 367 words, Chromium", page["plan"]["ms"], "ms", 20.0)
    yield BenchmarkRow("1,000 elements, 100 members, Node", node["drawn"]["ms"], "ms", 25.0)
    yield BenchmarkRow("memory of a page beyond an empty one", memory / 1e6, "MB", 20.0)
    bundle = bytes_of_bundle()
    yield BenchmarkRow("bundle", bundle["identity"], "B", 30_000)
    yield BenchmarkRow("bundle, as browsers receive it", bundle["br"], "B", 12_000)
    yield BenchmarkRow("lines that a reader writes", lines_of_a_reader(), "lines", 8.0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=int, default=30, help="Number of measured messages.")
    options = parser.parse_args(arguments)
    report([*goal_rows(options.runs)], "goal", options.json)
    print("Prio3 proves what a device adds. Our messages do not: goals are a fifth of Prio3's.")


if __name__ == "__main__":
    main()
