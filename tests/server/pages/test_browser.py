"""The pages in a real browser, a real server and fleet; screenshots go to `screenshots/`."""

import asyncio
import csv
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import SystemRandom
from sqlite3 import connect as connect_sqlite
from struct import unpack
from time import monotonic

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from blindtally.demo.server_process import STOP_SECONDS, ServerProcess
from client.analyst.analyst import Analyst
from client.fleet.config_and_results import FleetConfig
from client.fleet.fleet import Fleet
from client.http.transport import http_client
from protocol.api.credentials import new_secret
from protocol.api.messages import StudyView, Timeouts
from tests.client.conftest import REQUEST
from tests.server.fake_provider import OIDC_SETTINGS, FakeProvider, on_a_port
from tests.support.policies import trusting_policy

SHOTS = Path(__file__).parents[3] / "screenshots"
WINDOWS = ((1440, 900, "light"), (390, 844, "dark"))
PATIENCE = 20_000  # milliseconds
DEVICES = 10
HOSTILE = "<b>\u202e"  # of 6 bytes: what the study's domain takes
HOLDINGS = [{"common": 1, HOSTILE: 1, f"rare {index % 3}": 2} for index in range(2 * DEVICES)]
SERIOUS_IMPACTS = ("serious", "critical")


@dataclass
class WatchedPage:
    """A page with its `problems` that a person would not see.

    A request without a server is not among them, because the page itself shows it.
    """

    page: Page
    url: str
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", self._on_request)

    def _on_console(self, message: object) -> None:
        kind, text = message.type, message.text  # type: ignore[attr-defined]
        expected = ("Failed to load resource", "htmx: htmx:error: Failed to fetch")
        if kind in ("error", "warning") and not text.startswith(expected):
            self.problems.append(text)

    def _on_request(self, request: object) -> None:
        url = request.url  # type: ignore[attr-defined]
        if not url.startswith((self.url, "blob:", "data:")):
            self.problems.append(f"request to another site: {url}")

    def open(self, path: str) -> None:
        self.page.goto(self.url + path)


def photograph(browser: Browser, url: str, paths: dict[str, str]) -> list[str]:
    """Take a screenshot of each page at both widths; return the `faults` of all."""
    SHOTS.mkdir(exist_ok=True)
    problems = []
    for width, height, scheme in WINDOWS:
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        for name, path in paths.items():
            page.goto(url + path)
            if name == "study":
                page.locator(".plot .lines").first.wait_for(state="attached")
            problems += [f"{name} {width} {scheme}: {fault}" for fault in faults(page)]
            page.screenshot(path=SHOTS / f"{name}-{width}-{scheme}.png", full_page=True)
        context.close()
    return problems


def faults(page: Page) -> list[str]:
    """Return the serious problems that axe-core finds, and whether the window is too narrow."""
    results = Axe().run(page).response["violations"]
    problems = [
        f"{violation['id']}: {violation['nodes'][0]['html'][:200]}"
        for violation in results
        if violation["impact"] in SERIOUS_IMPACTS
    ]
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        problems.append("wider than the window")
    return problems


async def _play(url: str, study: StudyView, fleet: list[Fleet], after: int) -> None:
    if not fleet:
        policy = trusting_policy(min_cohort=5)
        fleet.append(
            Fleet(lambda: http_client(url), study, HOLDINGS, FleetConfig(DEVICES, policy=policy))
        )
    view = await fleet[0].next_round(after)
    assert view is not None
    await fleet[0].run_round(view)


def play(url: str, study: StudyView, fleet: list[Fleet], after: int) -> None:
    """Let a fleet take part in one round, outside the browser's event loop."""
    with ThreadPoolExecutor(1) as executor:
        executor.submit(asyncio.run, _play(url, study, fleet, after)).result()


def fill(page: Page) -> None:
    """Fill in the form for the study whose items the fleet holds."""
    page.locator("#rare > summary").click()
    question, terms = REQUEST.question, REQUEST.terms
    for label, value in {
        "What do you want to know?": "words <i>live</i>",
        "Threshold": f"{question.threshold:g}",
        "Items per device": str(question.contribution),
        "Longest item, bytes": "6",
        "Bytes per device": str(question.message_bytes),
        "Rounds": "2",
        "Devices in a cohort, at most": str(terms.cohort_size),
        "Devices in a cohort, at least": str(terms.minimum),
        "Share of corrupt devices": str(terms.corrupt),
        "Share of dropouts": str(terms.dropout),
        "Idle seconds": "1",
    }.items():
        page.get_by_label(label, exact=True).fill(value)


def check_faults(page: Page) -> None:
    """Check that an error is shown until its field changes, and the preview's place on a phone."""
    rounds, button = page.get_by_label("Rounds"), page.get_by_role("button", name="Create study")
    valid = rounds.input_value()
    rounds.fill("0")
    button.click()
    marked = page.locator("#f-rounds-fault")
    expect(marked).to_contain_text("must be from 1 to")
    expect(page.locator("#preview")).to_contain_text("Rounds: must be from 1 to")
    rounds.fill(valid)
    expect(marked).to_be_empty()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_text("Message of a device", exact=True)).to_be_visible()
    minimum, maximum = (
        page.get_by_label(f"Devices in a cohort, at {end}") for end in ("least", "most")
    )
    small, large = minimum.input_value(), maximum.input_value()
    minimum.fill("50")
    expect(page.locator("#preview .fault")).to_be_visible()
    button.click()
    expect(page.locator("#f-terms-minimum-fault")).to_be_visible()
    maximum.fill("60")  # also removes the other error
    expect(page.locator("#f-terms-minimum-fault")).to_be_empty()
    minimum.fill(small)
    maximum.fill(large)
    expect(page.get_by_text("Message of a device", exact=True)).to_be_visible()
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    tops = [each.bounding_box() for each in (rounds, page.locator("#preview"), button)]
    assert all(tops)
    assert [top["y"] for top in tops if top] == sorted(top["y"] for top in tops if top)
    assert size
    page.set_viewport_size(size)


def check_answer(page: Page, url: str, study: str) -> None:
    """Check that the table, its search and its CSV file have the data of the API."""
    with Analyst(url) as analyst:
        items = [
            (item.item, f"{item.estimate:,.0f}") for item in analyst.study(study).heavy_hitters()
        ]
    assert HOSTILE in dict(items)
    rows = page.get_by_role("region", name="Table of heavy hitters").locator("tbody tr")
    expect(rows).to_have_count(len(items))
    shown = [
        (row.locator("bdi").text_content(), row.locator("td.devices").inner_text().split()[0])
        for row in rows.all()
    ]
    assert shown == items
    page.goto(f"{page.url}?q=<B>")
    expect(rows).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    with download.value.path().open(newline="", encoding="utf-8") as file:
        assert [row["item"] for row in csv.DictReader(file)] == [item for item, _ in items]
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").first.click()
    width, height = unpack(">II", download.value.path().read_bytes()[16:24])
    assert min(width, height) > 200


def check_cursor(page: Page) -> None:
    """Check that the pointer over one chart shows the values of its round in the others, too."""
    page.locator("#size-charts summary").click()
    lines = page.locator(".chart .lines").first
    lines.scroll_into_view_if_needed()
    lines.hover(position={"x": 2, "y": 20})
    outputs = page.locator(".chart output")
    assert outputs.count() > 1
    for output in outputs.all():
        expect(output).to_have_text("1")
    page.locator("h1").hover()
    expect(outputs.first).to_be_empty()
    page.locator("#size-charts summary").click()


def test_a_study_is_created_watched_live_and_read(browser: Browser, tmp_path: Path) -> None:
    with ServerProcess(tmp_path, is_open=True) as server:
        page = browser.new_page(accept_downloads=True)
        watched = WatchedPage(page, server.url)
        watched.open("/")
        expect(page.get_by_text("No studies yet.")).to_be_visible()
        page.get_by_role("link", name="Create the first study").click()
        page.get_by_text("All methods").click()
        page.get_by_role("radio", name="Common items, plans reveal none").click()
        expect(page.get_by_label("Bytes per device")).to_have_value("20000")
        fill(page)
        expect(page.get_by_text("Message of a device", exact=True)).to_be_visible()
        check_faults(page)
        page.get_by_role("button", name="Create study").click()
        expect(page.get_by_role("heading", name="words <i>live</i>")).to_be_visible()
        expect(page.get_by_text("No answer yet")).to_be_visible()
        page.evaluate("window.sameAsBefore = true")  # lost if the page were loaded again
        connection_lost = page.get_by_text("Connection lost, trying again")

        server.kill()
        expect(connection_lost).to_be_visible(timeout=PATIENCE)
        server.start()
        expect(connection_lost).to_be_hidden(timeout=PATIENCE)

        study = page.url.rpartition("/")[2]
        with Analyst(server.url) as analyst:
            view = analyst.study(study).view
        fleet: list[Fleet] = []
        play(server.url, view, fleet, 0)
        rows = page.get_by_role("region", name="Table of heavy hitters").locator("tbody tr")
        expect(rows.filter(has_text="common")).to_be_visible(timeout=PATIENCE)
        expect(page.locator(".gist")).to_contain_text("1 of 2")

        stopping = monotonic()
        server.stop()
        assert monotonic() - stopping < STOP_SECONDS  # it did not wait for the page's open stream
        expect(connection_lost).to_be_visible(timeout=PATIENCE)
        server.start()
        expect(connection_lost).to_be_hidden(timeout=PATIENCE)
        play(server.url, view, fleet, 1)
        expect(page.locator(".head .state").first).to_have_text("finished", timeout=PATIENCE)
        check_cursor(page)
        assert page.evaluate("window.sameAsBefore")

        check_answer(page, server.url, study)
        page.close()
        paths = {
            "studies": "/",
            "study": f"/studies/{study}",
            "changes": f"/studies/{study}/changes",
            "round": f"/studies/{study}/rounds/2",
            "new": "/studies/new",
            "clone": f"/studies/new/from/{study}",
            "help": "/help",
            "operations": "/operations",
            "reference": "/docs",
        }
        assert photograph(browser, server.url, paths) == []
        assert watched.problems == []


def add_items(server: ServerProcess, study: str, count: int) -> None:
    rows = [(study, f"www.site-{n}.example".encode(), 500.0 - n, 4.0, 1.0) for n in range(count)]
    statement = (
        "INSERT INTO heavy_hitters (study, item, estimate, variance, probability) "
        "VALUES (?, ?, ?, ?, ?)"
    )
    with closing(connect_sqlite(server.database)) as database, database:
        database.executemany(statement, rows)


def cut_or_broken(page: Page) -> list[str]:
    """Return the tables that are wider than their place, and the values broken in a word."""
    return page.evaluate(
        """() => {
          const lines = (each) => {
            const range = document.createRange();
            range.selectNodeContents(each);
            return range.getClientRects().length;
          };
          return [
          ...[...document.querySelectorAll(".scroll")]
            .filter((each) => each.scrollWidth > each.clientWidth)
            .map((each) => each.getAttribute("aria-label")),
          ...[...document.querySelectorAll(".card .pairs dd")]
            .filter((each) => lines(each) > 1)
            .map((each) => each.textContent),
          ];
        }"""
    )


def test_a_phone_shows_all_in_few_screens_with_and_without_scripts(
    browser: Browser, tmp_path: Path
) -> None:
    name = "a-name-without-a-space-" * 8
    with ServerProcess(tmp_path, is_open=True) as server, Analyst(server.url) as analyst:
        study = analyst.create(
            name, REQUEST.question, REQUEST.terms, rounds=1, timeouts=Timeouts(idle=1)
        )
        play(server.url, study.view, [], 0)
        study.wait()
        add_items(server, study.id, 28)  # besides those that were found
        paths = [f"/studies/{study.id}{path}" for path in ("", "/changes", "/rounds/1")]
        for has_scripts in (True, False):
            size = {"width": 390, "height": 844}
            context = browser.new_context(viewport=size, java_script_enabled=has_scripts)  # type: ignore[arg-type]
            page = context.new_page()
            heights = {}
            for path in [*paths, "/studies/new"]:
                page.goto(server.url + path)
                box = page.locator("html").bounding_box()
                assert box is not None
                heights[path] = box["height"]
                if has_scripts:
                    assert page.evaluate("document.documentElement.scrollWidth") == 390, path
                    assert cut_or_broken(page) == [], path
            assert heights[paths[0]] < 2500
            assert heights["/studies/new"] < 3000
            page.goto(server.url + paths[0])
            rows = page.get_by_role("region", name="Table of heavy hitters").locator("tbody tr")
            expect(rows.nth(9)).to_be_visible()
            expect(rows.nth(10)).to_be_hidden()
            page.get_by_text(re.compile("Show all 3[0-9] rows")).click()
            expect(rows.nth(29)).to_be_visible()
            context.close()
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(server.url + paths[0])
        facts, settings = page.locator(".privacy .lists"), page.locator("#settings dl")
        for folded in (facts, settings):
            expect(folded).to_be_hidden()
        page.emulate_media(media="print")
        for folded in (facts, settings):
            expect(folded).to_be_visible()
        page.close()


def test_two_hundred_items_are_sorted_and_paged_and_stay_so(
    browser: Browser, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, is_open=True) as server, Analyst(server.url) as analyst:
        study = analyst.create("many", REQUEST.question, REQUEST.terms, rounds=2)
        add_items(server, study.id, 200)
        page = browser.new_page()
        watched = WatchedPage(page, server.url)
        watched.open(f"/studies/{study.id}")
        region = page.get_by_role("region", name="Table of heavy hitters")
        items = region.locator("tbody th bdi")
        expect(items).to_have_count(50)
        expect(items.first).to_have_text("www.site-0.example")
        page.get_by_role("link", name="Next").click()
        expect(items.first).to_have_text("www.site-50.example")
        page.get_by_role("link", name="Item", exact=True).click()
        expect(items.nth(2)).to_have_text("www.site-10.example")
        page.get_by_role("link", name="Next").click()
        last = items.last.text_content()
        page.evaluate("htmx.trigger(document.getElementById('main'), 'refresh')")
        page.wait_for_timeout(1500)  # the page has fetched its live part
        expect(items.last).to_have_text(last or "")
        page.get_by_label("Search items").fill("site-19")
        expect(items).to_have_count(11)
        assert faults(page) == []
        for width in (320, 720, 1000, 1280, 2560):
            page.set_viewport_size({"width": width, "height": 800})
            expect(region.locator("td.devices strong").first).to_be_visible()
            assert cut_or_broken(page) == [], width
        page.close()
        assert watched.problems == []


def test_a_closed_service_takes_a_key_and_follows_live(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_secret(SystemRandom(), "btk_")
    monkeypatch.setenv("BLINDTALLY_INITIAL_API_KEY", key)
    server = ServerProcess(tmp_path)
    server.key = key  # so that it creates none
    with server, Analyst(server.url, key) as analyst:
        study = analyst.create(
            "waits", REQUEST.question, REQUEST.terms, rounds=2, timeouts=Timeouts()
        )
        page = browser.new_page()
        watched = WatchedPage(page, server.url)
        watched.open(f"/studies/{study.id}")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        assert faults(page) == []
        SHOTS.mkdir(exist_ok=True)
        page.screenshot(path=SHOTS / "login-1440-light.png", full_page=True)
        page.get_by_label("API key").fill("btk_wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("not a valid API key")
        page.get_by_label("API key").fill(key)
        with page.expect_response(re.compile("/events")) as stream:
            page.get_by_role("button", name="Log in").click()
        assert stream.value.status == 200
        expect(page.get_by_role("heading", name="waits")).to_be_visible()
        assert key not in page.evaluate("document.cookie")
        page.get_by_text("Stop…").click()
        page.get_by_role("button", name="Stop permanently").click()
        expect(page.locator(".head .state").first).to_have_text("stopped")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        watched.open("/operations")
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("heading", name="Operations")).to_be_visible()
        assert faults(page) == []
        with closing(connect_sqlite(server.database)) as database, database:  # a revocation
            database.execute("UPDATE api_keys SET revoked = created")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible(timeout=PATIENCE)
        page.close()
        assert httpx.get(server.url + "/", follow_redirects=False).status_code == 303
        assert watched.problems == []


def test_a_person_is_logged_in_after_the_providers_site_has_sent_the_browser_back(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider is another site, from which a browser sends no strict cookies."""
    server = ServerProcess(tmp_path)
    server.key = "none"  # so that it creates none
    provider = FakeProvider(partial(datetime.now, UTC))
    provider.redirect_uri = f"{server.url}/login/oidc/callback"
    with on_a_port(provider):
        for name in ("oidc_client_id", "oidc_client_secret", "oidc_allowed"):
            monkeypatch.setenv(f"BLINDTALLY_{name.upper()}", OIDC_SETTINGS[name])
        monkeypatch.setenv("BLINDTALLY_OIDC_ISSUER", provider.issuer)
        monkeypatch.setenv("BLINDTALLY_PUBLIC_URL", server.url)
        with server:
            page = browser.new_page()
            page.goto(f"{server.url}/studies/new")
            assert faults(page) == []
            page.get_by_role("link", name="Log in with single sign-on").click()
            page.get_by_role("link", name="I am Anna").click()
            expect(page.get_by_text("anna@example.org")).to_be_visible()
            expect(page).to_have_url(f"{server.url}/studies/new")
            page.get_by_role("button", name="Log out").click()
            expect(page.get_by_role("heading", name="Log in")).to_be_visible()
            page.close()
