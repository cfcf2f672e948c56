"""People take part in a real browser: their messages are in a sum that is exact, each once."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from random import SystemRandom

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from blindtally.demo.join import make_listener
from blindtally.demo.server_process import ServerProcess
from client.analyst.analyst import Analyst, Study
from client.fleet.config_and_results import FleetConfig, FleetRound
from client.fleet.fleet import Fleet
from client.http.transport import http_client
from protocol.mechanisms.registry import SUM_MECHANISMS, parse_question
from protocol.question_and_plan import Terms
from protocol.randomness import system_words
from secagg.keys import Identity
from tests.server.pages.test_browser import faults, photograph
from tests.server.pages.test_join import OPTIONS
from tests.support.policies import trusting_policy

FLEET = 4
# It flips no coins, and has more options than fit as boxes on a phone.
MANY_OPTIONS = {"kind": "listed", "items": ["fig", "pear", *map(str, range(100))]}
QUESTION = parse_question(OPTIONS | {"mechanism": "approximate-histogram", "domain": MANY_OPTIONS})
OPERATORS = tuple(Identity.generate(SystemRandom()) for _ in range(5))
TERMS = Terms.model_validate(
    {
        "cohort_size": FLEET + 2,  # with the two browsers the round is full
        "minimum": 3,
        "sum": "one-shot",
        "committee": {"members": [each.public.hex() for each in OPERATORS]},
    }
)
COUNTED = "This browser was counted"
ENTERED = ("pear",), ("fig", "pear")


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


def open_page(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(url)
    return page


def send(page: Page, items: tuple[str, ...]) -> None:
    """Enter items, agree to what a careful device refuses, and send."""
    page.get_by_label("One per line").fill("\n".join(items))
    page.get_by_label("I take part nevertheless").check()
    page.get_by_role("button").click()


def phone(browser: Browser) -> BrowserContext:
    size = {"width": 390, "height": 844}
    return browser.new_context(viewport=size, ignore_https_errors=True)  # type: ignore[arg-type]


def check_sum(study: Study, played: FleetRound) -> None:
    """Check that the sum has the vectors of the fleet and of both browsers, and nothing else."""
    plan = played.view.plan
    mechanism = SUM_MECHANISMS[plan.mechanism]
    ring, expected = mechanism.ring(plan), mechanism.ring(plan).zero()
    for result in played.results:
        assert result.vector is not None
        ring.add(expected, result.vector)
    for items in ENTERED:
        ring.add(expected, mechanism.encode(plan, dict.fromkeys(items, 1), system_words))
    assert ring.pack(study.cohort_sum(played.view)) == ring.pack(expected)


def test_browsers_are_counted_once_in_an_exact_sum_although_one_is_closed_before_the_answer(
    browser: Browser, server: ServerProcess
) -> None:
    assert server.join is not None
    with Analyst(server.url) as analyst, ThreadPoolExecutor(1) as executor:
        study = analyst.create("Which fruit?", QUESTION, TERMS, rounds=1)
        link = server.join.url(study.id)
        played: Future[FleetRound] = executor.submit(run_fleet, server.url, study)
        first, second = phone(browser), phone(browser)
        page = open_page(first, link)
        assert faults(page) == []
        send(page, ("pear", "kiwi"))
        expect(page.get_by_role("status")).to_have_text(
            "Nothing was sent. The study does not ask for: kiwi", timeout=20_000
        )
        send(page, ENTERED[0])
        expect(page.get_by_role("status")).to_contain_text(COUNTED, timeout=20_000)
        page.close()

        page = open_page(second, link)
        sent = list[bool]()

        def pass_on_without_answer(route: Route) -> None:
            route.fetch()
            sent.append(True)

        page.route("**/message", pass_on_without_answer)
        send(page, ENTERED[1])
        while not sent:
            page.wait_for_timeout(50)
        page.close()

        check_sum(study, played.result())
        assert study.round(1).participants == FLEET + 2
        for context, text in ((first, COUNTED), (second, "began to send its message to round 1")):
            with closing(context), closing(open_page(context, link)) as again:
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
