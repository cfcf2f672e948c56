"""A local service has all parties of a study, in a program and inside an event loop."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from blindtally import Device, DeviceState, LocalService, Tracked, Utf8, take_part
from client.device.driver import EndState

QUESTION = Tracked(threshold=3, contribution=2, domain=Utf8(max_bytes=16), message_bytes=5784)


def an_app_takes_part_among_a_crowd(service: LocalService) -> None:
    registrar = service.registrar_key.hex()
    study = service.analyst.create("words", QUESTION, devices=10, rounds=1, registrar=registrar)
    crowd = service.crowd(study, [["hello"], ["hello", "rare"], *[["world"]] * 7])
    with Device(
        service.url,
        service.policy,
        device_state=DeviceState.in_memory(),
        registrar=service.registrar,
        registrar_token=service.registrar_token,
    ) as device:
        (outcome,) = device.take_part(["hello"], study=study.id, wait=60)
    assert outcome.state is EndState.FINISHED, outcome.error
    assert crowd.result(60) == Counter({EndState.FINISHED: 9})
    assert study.wait().state == "finished"
    assert {row.item: row.estimate for row in study.heavy_hitters()} == {"hello": 3, "world": 7}


async def a_crowd_takes_part_inside_a_running_event_loop(service: LocalService) -> None:
    registrar = service.registrar_key.hex()
    study = service.analyst.create("loop", QUESTION, devices=5, rounds=2, registrar=registrar)
    crowd = service.crowd(study, [["hello"]] * 9)  # five in a round, and one seat is left
    (outcome,) = await take_part(
        service.url,
        ["hello"],
        service.policy,
        study=study.id,
        device_state=DeviceState.in_memory(),
        registrar=service.registrar,
        registrar_token="trial",
        wait=60,
    )
    assert outcome.state is EndState.FINISHED, outcome.error
    assert crowd.result(60)[EndState.FINISHED] == 9


def the_example_of_an_open_service_is_answered_by_its_own_devices(service: LocalService) -> None:
    page, headers = f"{service.url}/studies/new/example", {"Origin": service.url}
    made = httpx.post(page, data={"key": "1"}, headers=headers, timeout=60)
    study = service.analyst.study(made.headers["location"].rsplit("/", 1)[-1])
    try:
        while (first := study.rounds()[0]).state == "running":
            time.sleep(0.2)
    finally:
        study.stop()
    assert (first.state, first.participants) == ("decoded", 100)


def test_all_parties_of_a_study_are_there_until_the_block_ends() -> None:
    before = threading.active_count()
    with LocalService() as service:
        an_app_takes_part_among_a_crowd(service)
        asyncio.run(a_crowd_takes_part_inside_a_running_event_loop(service))
        the_example_of_an_open_service_is_answered_by_its_own_devices(service)
        assert httpx.get(f"{service.registrar}/healthz").text == "ok\n"
        folder = service._folder.name
        with pytest.raises(RuntimeError, match="make another one"):
            service.start()
    for url in (service.url, service.registrar):
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
    assert threading.active_count() == before
    assert not Path(folder).exists()
    with pytest.raises(RuntimeError, match="make another one"):
        service.start()


def test_the_server_ends_with_a_program_that_is_killed() -> None:
    program = "import blindtally, time; print(blindtally.LocalService().start().url, flush=True)"
    program += "; time.sleep(99)"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        url = started.stdout.readline().strip()
        assert httpx.get(f"{url}/readyz").is_success
        started.kill()
    for _ in range(200):
        try:
            httpx.get(f"{url}/readyz")
        except httpx.ConnectError:
            return
        except httpx.TransportError:  # it ends just now
            pass
        time.sleep(0.1)
    pytest.fail("the server goes on without its parent")


def test_the_error_names_a_missing_extra() -> None:
    program = "import blindtally, sys; sys.modules['sqlalchemy'] = None; blindtally.LocalService()"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert re.search(r"ModuleNotFoundError: LocalService needs sqlalchemy.*\[server\]", done.stderr)
