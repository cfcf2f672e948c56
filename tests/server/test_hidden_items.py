"""No answer of the service shows that one device holds an item that the rule of five hides.

Two services run the same study, with the same seeds, clock and devices; in one of them a device
also holds a rare item. The sums are put into the database, and the rest is the shipped service. All
that an analyst can read is compared byte by byte, after each round.
"""

import importlib
import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from protocol.api.phases import Phase
from protocol.mechanisms.registry import SUM_MECHANISMS
from server import pages
from server.app import create_app
from server.db.repositories.messages.sum_messages import MessageRepository
from server.db.schema import CohortRow
from server.settings import Settings
from tests.protocol.chance import seeded
from tests.protocol.test_hidden_items import RELATED
from tests.server import application
from tests.server.harness import Clock, Served, serving

ROUNDS, DEVICES = 3, 60
COMMON_ITEMS = [
    f"{segment}:{word}" for segment in ("north", "south") for word in ("aa", "ab", "ba")
]
RARE_ITEMS = ("north:cc", "west:aa")  # in a shown segment, and in one without other items
DOMAIN = {
    "kind": "product",
    "segments": ["north", "south", "west"],
    "inner": {"kind": "alphabet", "characters": "abc", "length": 2},
}
# All mechanisms that promise the rule of five, with words for everything or for a sample, and the
# round in which a device holds hidden items.
STUDIES = [
    *((mechanism, 10_000, 2) for mechanism in RELATED),
    ("adaptive-iblt", 4684, 2),
    ("subsampled-iblt", 4684, 2),
    ("tracked", 10_000, ROUNDS),
]
PAIR = "item=north:aa&item=south:ab"
# What an analyst reads, by route. A new route fails the test until it is here or in `NO_ANSWERS`.
READ = {
    "/v1/studies": [""],
    "/v1/studies/{study}": [""],
    "/v1/studies/{study}/rounds": [""],
    "/v1/studies/{study}/rounds/{number}": [""],
    "/v1/studies/{study}/events": [""],
    "/v1/studies/{study}/privacy": [""],
    "/v1/studies/{study}/heavy-hitters": [
        "", "?limit=2", "?format=csv", "?threshold=30", "?top=3", "?threshold=25&top=2",
    ],
    "/v1/studies/{study}/quantiles": ["?q=0.5"],
    "/v1/studies/{study}/ranks": ["?x=aa"],
    "/v1/studies/{study}/masses": ["?low=aa&high=bb"],
    "/v1/studies/{study}/frequencies": ["?prefix=a"],
    "/v1/studies/{study}/cdf": [""],
    "/v1/studies/{study}/numbers": [""],
    "/v1/studies/{study}/series": [f"?{PAIR}", "?item=north:cc", "?item=west:aa"],
    "/v1/studies/{study}/changes": ["", "?before=1-1&after=2-3&false_discovery_rate=0.9"],
    "/v1/studies/{study}/compare/{other}": ["?false_discovery_rate=0.9"],
    "/v1/studies/{study}/segments": ["", "?limit=1"],
    "/": [""],
    "/studies": [""],
    "/studies/{study}": [""],
    "/studies/{study}/changes": [""],
    "/studies/{study}/rounds/{number}": [""],
    "/studies/{study}/heavy-hitters.{file_format}": [""],
    "/studies/{study}/charts/{chart}.svg": [""],
}  # fmt: skip
NO_ANSWERS = {
    "messages of devices, members and registrars": (
        "/v1/participants/", "/v1/registrars/", "/v1/members/", "/v1/studies/{study}/rounds/open",
        "/join/",  # states a round's plan, which devices read
        *(f"/v1/studies/{{study}}/rounds/{{number}}/{each}" for each in (
            "seating", "joiners", "members/", "message-set", "set-signatures", "committee",
            "volunteers",
        )),
    ),
    "for operators, who may read sums": (
        "/v1/studies/{study}/rounds/{number}/cohorts/", "/v1/audit", "/operations",
    ),
    "of no answer": (
        "/v1/populations", "/healthz", "/readyz", "/studies/new", "/docs", "/openapi.json",
        "/login", "/logout", "/help", "/static",
    ),
    "for readers of a link, who get pages and files of `READ`": ("/shared/",),
}  # fmt: skip


def routes() -> Iterator[str]:
    """Yield the paths of all routes that are read, of the API and of pages."""
    app = create_app(Settings(database_url="sqlite:///unused.db"), None, Random(0))
    document = app.openapi()["paths"]
    yield from (path for path, operations in document.items() if "get" in operations)
    for module in pkgutil.walk_packages(pages.__path__, "server.pages."):
        router = getattr(importlib.import_module(module.name), "router", None)
        for route in [] if router is None else router.routes:
            if "GET" in route.methods:
                yield route.path


def test_every_route_that_is_read_is_compared_or_has_no_answers() -> None:
    others = tuple(prefix for prefixes in NO_ANSWERS.values() for prefix in prefixes)
    unknown = [path for path in routes() if path not in READ and not path.startswith(others)]
    assert not unknown
    assert set(READ) <= set(routes())


class PutSums:
    """Sums that are put into the database of a service, by study and round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sums: dict[tuple[int, str, int], tuple[bytes, int]] = {}
        sums = self._sums

        async def of_round(
            messages: MessageRepository, study: str, number: int
        ) -> dict[int, tuple[bytes, int]]:
            return {0: sums[id(messages.database), study, number]}

        monkeypatch.setattr(MessageRepository, "sums", of_round)

    async def put(self, served: Served, study: str, number: int, held: list[Any]) -> None:
        """Let a round close with the sum of devices, whose coins depend on the round only."""
        plan = (await served.open_round(study, number - 1)).plan
        mechanism = SUM_MECHANISMS[plan.mechanism]
        total = mechanism.encode_sum(plan, held, seeded(number))
        packed = mechanism.ring(plan).pack(total)
        database = served.store.database
        self._sums[id(database), study, number] = packed, len(held)
        cohort = (CohortRow.study == study, CohortRow.round == number)
        summed = update(CohortRow).where(*cohort).values(phase=Phase.SUMMED, sum=packed)
        await database.write(lambda session: session.execute(summed))
        served.service.orchestrator.closing_rounds.add((study, number))
        await served.until_closed(study, number)


def holdings() -> list[list[dict[str, int]]]:
    """Return the items of the devices of each round; the last device of a round holds nothing."""
    rng = np.random.default_rng(5)
    rounds = rng.choice(COMMON_ITEMS, (ROUNDS, DEVICES, 2))
    return [[*(dict.fromkeys(pair, 1) for pair in held), {}] for held in rounds.tolist()]


def request(mechanism: str, size: int) -> dict[str, Any]:
    question = {"mechanism": mechanism, "threshold": 20, "contribution": 3, "message_bytes": size}
    terms = {"cohort_size": 100, "minimum": 50, "corrupt": 0.1, "dropout": 0.2}
    return {
        "name": "words",
        "question": question | {"domain": DOMAIN},
        "terms": terms,
        "rounds": ROUNDS,
    }


@asynccontextmanager
async def service(file: Path) -> AsyncIterator[Served]:
    """Run a service whose randomness and clock are those of every other one."""
    url, clock = f"sqlite:///{file}", Clock()
    settings = Settings(database_url=url, open=True)
    async with serving(application.create(settings, clock, Random(3)), clock) as served:
        yield served


def paths(study: str, other: str, number: int) -> Iterator[str]:
    names = {"study": study, "other": other, "number": number, "file_format": "csv"}
    for path, queries in READ.items():
        for chart in ("items", "capacity", "bytes"):
            for query in queries if "{chart}" in path or chart == "items" else ():
                yield path.format(**names, chart=chart) + query


async def readings(served: Served, study: str, other: str, number: int) -> dict[str, bytes]:
    """Return all that an analyst reads after round `number`, with its headers."""
    read = {}
    for path in paths(study, other, number):
        if path.endswith("/events"):
            events = await served.store.events.after(study, 0)
            read[path] = b"".join(each.model_dump_json().encode() for each in events)
            continue
        response = await served.client.get(path)
        assert response.status_code in (200, 307, 404, 409, 422), (path, response.text)
        headers = {"etag", "content-length", "content-type", "link"}
        kept = sorted((name, text) for name, text in response.headers.items() if name in headers)
        read[path] = repr((response.status_code, kept)).encode() + response.content
    return read


def shows_plan(path: str) -> bool:
    """Return whether a route shows plans; those of `tracked` list what is counted next."""
    return "/rounds" in path or (
        not path.startswith("/v1/") and not path.endswith((".csv", ".svg"))
    )


@pytest.mark.parametrize(("mechanism", "size", "with_item"), STUDIES)
async def test_one_device_with_hidden_items_changes_no_byte_that_an_analyst_reads(
    mechanism: str, size: int, with_item: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums, held = PutSums(monkeypatch), holdings()
    answers = []
    for name in ("without", "with"):
        async with service(tmp_path / f"{name}.db") as served:
            other = await served.create(**request(mechanism, 10_000), start=True)
            study = await served.create(**request(mechanism, size), start=True)
            await sums.put(served, other, 1, held[0])
            read = []
            for number in range(1, ROUNDS + 1):
                devices = [dict(items) for items in held[number - 1]]
                if name == "with" and number == with_item:
                    devices[-1] = dict.fromkeys(RARE_ITEMS, 1)
                await sums.put(served, study, number, devices)
                if number >= with_item:  # the services are the same before
                    read.append(await readings(served, study, other, number))
            state = await served.store.answers.study_state(study)
            answers.append((study, read, len({*RARE_ITEMS} & {*state.items})))
    assert answers[0][0] == answers[1][0]
    assert (answers[0][2], answers[1][2]) == (0, 2)
    for before, after in zip(answers[0][1], answers[1][1], strict=True):
        changed = [path for path in before if before[path] != after[path]]
        if mechanism == "tracked" and with_item < ROUNDS:
            changed = [path for path in changed if not shows_plan(path)]
        assert changed == []
    assert b"north:aa" in before[f"/v1/studies/{answers[0][0]}/heavy-hitters"]
