"""One sum of browsers, Node and Python: it is exact, and has the message of each device once."""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from random import SystemRandom
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from blindtally.demo.join import make_listener
from blindtally.demo.server_process import ServerProcess
from client.analyst.analyst import Analyst, Study
from client.fleet.config_and_results import FleetConfig, FleetRound
from client.fleet.fleet import Fleet
from client.http.transport import http_client
from protocol.committee_terms import CommitteeTerms
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.randomness import system_words
from secagg.keys import Identity
from tests.js.node import NODE, ROOT, run_node
from tests.js.test_bundle import BUNDLE
from tests.js.test_taking_part import operators
from tests.server.pages.test_browser import faults, photograph
from tests.server.pages.test_join import OPTIONS
from tests.support.policies import trusting_policy

FLEET, IN_NODE = 75, 20
# Its table has room for all items, so it samples none; there are too many for boxes on a phone.
MANY_OPTIONS = {"kind": "listed", "items": ["fig", "pear", *map(str, range(100))]}
QUESTION = parse_question(OPTIONS | {"domain": MANY_OPTIONS, "message_bytes": 9000})
OPERATORS = tuple(Identity.generate(SystemRandom()) for _ in range(5))
MEMBERS = [each.public.hex() for each in OPERATORS]
COMMITTEE = CommitteeTerms(members=tuple(MEMBERS))
ENTERED = ("pear",), ("fig", "pear"), ("7", "fig"), ("pear", "99"), ("fig",)
N = FLEET + IN_NODE + len(ENTERED)
TERMS = Terms(cohort_size=N, minimum=3, sum="one-shot", committee=COMMITTEE)
LIMITS: dict[str, Any] = {"min_cohort": 3, "min_threshold": 1, "accept_exact_estimates": True}
LIMITS |= {"trust_server_identities": True, "committee": MEMBERS}
COUNTED, ENCODING = "This browser was counted", "content-encoding"
# What happens to a page's message: nothing, its answer is lost, or the message is. The last page is
# the example.
LOSSES = None, None, Route.fetch, Route.abort


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, is_open=True, join=make_listener(tmp_path)) as running:
        yield running


def run_fleet(url: str, study: Study) -> FleetRound:
    """Let devices and the committee take part in the only round; return it when it has ended."""
    known = frozenset(operator.public for operator in OPERATORS)
    policy = trusting_policy(min_cohort=3, committee=known)
    config = FleetConfig(FLEET, policy=policy, operators=OPERATORS)
    fleet = Fleet(partial(http_client, url), study.view, [{"fig": 1}] * FLEET, config)

    async def play() -> FleetRound:
        return await anext(fleet.run())

    return asyncio.run(play())


def example(name: str) -> str:
    """Return a program of a reader, with the limits that the devices of this round have."""
    text = (ROOT / "examples" / name).read_text()
    return re.sub("const limits = .*;", f"const limits = {json.dumps(LIMITS)};", text)


def run_node_devices(folder: Path, url: str, study: Study) -> list[str]:
    """Let devices that hold a fig take part in processes of Node; return their states."""
    request = {"url": url, "study": study.id, "items": ["fig"], "policy": LIMITS, "wait": 60}
    devices = [request | {"folder": str(folder / f"{index}")} for index in range(1, IN_NODE)]
    run = partial(run_node, "take_part.mjs")
    with ThreadPoolExecutor(2) as executor:
        outcomes = [*executor.map(run, (devices[::2], devices[1::2]))]
    program = folder / "take_part.mjs"
    program.write_text(example("node/take_part.mjs"))
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "blindtally").symlink_to(ROOT / "js")
    printed = subprocess.check_output([NODE, program, url, study.id, "fig"], cwd=folder, text=True)
    return [each["state"] for each in outcomes[0] + outcomes[1]] + printed.split()


def open_example(context: BrowserContext, url: str, study: Study) -> Page:
    """Open the example of a page with a copy of the bundle, which this origin does not have."""
    text = example("browser/index.html").replace("https://stats.example.org", url)
    page, body = context.new_page(), text.replace("5f3a1c…", study.id)
    page.route(f"{url}/mine", lambda route: route.fulfill(body=body, content_type="text/html"))
    page.route(f"{url}/blindtally-device.js", lambda route: route.fulfill(path=BUNDLE))
    page.goto(f"{url}/mine")
    return page


def open_page(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(url)
    return page


def send(page: Page, items: tuple[str, ...]) -> None:
    """Enter items, agree to what a careful device refuses, and send."""
    page.get_by_label("One per line").fill("\n".join(items))
    page.get_by_label("I take part nevertheless").check()
    page.get_by_role("button").click()


def send_and_close(page: Page, items: tuple[str, ...], loss: Callable[[Route], object]) -> None:
    """Send items, and close the page after `loss` has happened to its message."""
    lost = list[object]()
    page.route("**/message", lambda route: lost.append(loss(route)))
    send(page, items)
    while not lost:
        page.wait_for_timeout(50)
    page.close()


def phone(browser: Browser) -> BrowserContext:
    size = {"width": 390, "height": 844}
    return browser.new_context(viewport=size, ignore_https_errors=True)  # type: ignore[arg-type]


def check_sum(study: Study, played: FleetRound) -> None:
    """Check that the sum has the vectors of all devices, and nothing else.

    The last lane thins copies by coins, so only its size is known.
    """
    plan = played.view.plan
    mechanism = SUM_MECHANISMS[plan.mechanism]
    ring, expected = mechanism.ring(plan), mechanism.ring(plan).zero()
    for result in played.results:
        assert result.vector is not None
        ring.add(expected, result.vector)
    for items in (*ENTERED, *[("fig",)] * IN_NODE):
        ring.add(expected, mechanism.encode(plan, dict.fromkeys(items, 1), system_words))
    *lanes, thinned = zip(study.cohort_sum(played.view), expected, strict=True)
    assert all(np.array_equal(*lane) for lane in lanes)
    assert len(set(map(len, thinned))) == 1


def test_browsers_node_and_python_are_counted_once_in_an_exact_sum_although_pages_are_closed(
    browser: Browser, server: ServerProcess, tmp_path: Path
) -> None:
    assert server.join is not None
    with Analyst(server.url) as analyst, ThreadPoolExecutor(2) as executor:
        study = analyst.create("Which fruit?", QUESTION, TERMS, rounds=1)
        link = server.join.url(study.id)
        played: Future[FleetRound] = executor.submit(run_fleet, server.url, study)
        in_node = executor.submit(run_node_devices, tmp_path, server.url, study)
        contexts = [phone(browser) for _ in ENTERED]
        forgetful = contexts[LOSSES.index(None)]
        forgetful.add_init_script("Object.defineProperty(window, 'localStorage', {value: null})")
        encodings = list[str | None]()
        contexts[0].on("response", lambda got: encodings.append(got.headers.get(ENCODING)))
        page = open_page(contexts[0], link)
        assert faults(page) == []
        assert encodings.count("br") == 1  # the bundle
        send(page, ("pear", "kiwi"))
        expect(page.get_by_role("status")).to_have_text(
            "Nothing was sent. The study does not ask for: kiwi", timeout=20_000
        )
        page.close()
        for context, items, loss in zip(contexts, ENTERED, LOSSES, strict=False):
            page, other_tab = open_page(context, link), open_page(context, link)
            if loss is None:
                send(page, items)
            else:  # the page is closed before the answer, and opened again
                send_and_close(page, items, loss)
                page = open_page(context, link)
            expect(page.get_by_role("status")).to_contain_text(COUNTED, timeout=20_000)
            page.close()
            send(other_tab, items)
            expect(other_tab.get_by_role("status")).to_contain_text("nothing more is sent")
            other_tab.close()

        page = open_example(contexts[-1], link.removesuffix(f"/join/{study.id}"), study)
        page.get_by_label("Fruit").fill(*ENTERED[-1])
        page.get_by_role("button").click()
        expect(page.get_by_role("status")).to_contain_text("finished", timeout=20_000)
        assert in_node.result() == ["finished"] * IN_NODE
        check_sum(study, played.result())
        assert study.round(1).participants == N
        for context in contexts[:-1]:
            with closing(context), closing(open_page(context, link)) as again:
                text = "has sent its message" if context is forgetful else COUNTED
                expect(again.get_by_role("status")).to_contain_text(text)
                expect(again.get_by_role("alert")).to_contain_text("This study is over")


def test_the_page_is_readable_everywhere_and_says_why_a_page_without_https_cannot_work(
    browser: Browser, server: ServerProcess
) -> None:
    with Analyst(server.url) as analyst:
        study = analyst.create("Which fruit?", parse_question(OPTIONS), TERMS, rounds=1)
    path = f"/join/{study.id}"
    assert photograph(browser, server.url, {"join": path}) == []
    with closing(browser.new_page()) as page:
        elsewhere = "http://phone.test"

        def pass_on(route: Route) -> None:
            address = route.request.url.replace(elsewhere, server.url)
            route.fulfill(response=route.fetch(url=address))

        page.route(f"{elsewhere}/**", pass_on)
        page.goto(elsewhere + path)
        expect(page.get_by_role("status")).to_contain_text("a link that begins with https")
        expect(page.get_by_role("button")).to_be_disabled()
        expect(page.get_by_role("button")).to_have_css("opacity", "0.5")


@pytest.fixture
def closed_server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ThreadPoolExecutor(1) as executor:  # browsers have an event loop in this thread
        running = executor.submit(ServerProcess(tmp_path).__enter__).result()
    yield running
    running.stop()


def test_a_closed_service_admits_a_browser_by_the_token_in_its_link(
    browser: Browser, closed_server: ServerProcess
) -> None:
    with Analyst(closed_server.url, closed_server.key) as analyst:
        study = analyst.create("Which fruit?", QUESTION, TERMS, rounds=1)
    link = f"{closed_server.url}/join/{study.id}"
    with closing(open_page(browser.new_context(), link)) as page:
        expect(page.get_by_role("status")).to_contain_text("Open the whole link")
    for token, status in (f"bte_{'0' * 64}", 401), (closed_server.token, 204):
        with closing(open_page(browser.new_context(), f"{link}#token={token}")) as page:
            with page.expect_response("**/v1/devices") as answer:
                send(page, ("pear",))
            assert answer.value.status == status


async def convene(url: str, done: Event) -> None:
    async with operators(url, identities=OPERATORS):
        await asyncio.to_thread(done.wait)


def test_a_browser_warns_of_a_second_study_and_says_later_that_its_round_failed(
    browser: Browser, server: ServerProcess
) -> None:
    done = Event()
    with (
        Analyst(server.url) as analyst,
        closing(browser.new_context()) as context,
        ThreadPoolExecutor(1) as executor,
        closing(SimpleNamespace(close=done.set)),
    ):
        executor.submit(asyncio.run, convene(server.url, done))
        studies = [analyst.create(name, QUESTION, TERMS, rounds=1) for name in ("one", "two")]
        for study, warnings in zip(studies, (0, 1), strict=True):
            with closing(open_page(context, f"{server.url}/join/{study.id}")) as page:
                expect(page.get_by_role("button")).to_be_enabled()
                expect(page.get_by_text("asks this browser again, after 1")).to_have_count(warnings)
                send(page, ("pear",))
                expect(page.get_by_role("status")).to_contain_text(COUNTED, timeout=20_000)
        studies[0].stop()
        for study, text in zip(studies, ("The round has failed", COUNTED), strict=True):
            with closing(open_page(context, f"{server.url}/join/{study.id}")) as page:
                expect(page.get_by_role("status")).to_contain_text(text)
