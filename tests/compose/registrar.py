"""Proves the profile `registrar`: it enrols a device, survives SIGKILL, refuses an older copy."""

import json
import time
from datetime import UTC, datetime

from protocol.api.messages import SignatureRequest, StudyView, Timeouts
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.question_and_plan import Terms
from tests.compose.project import Compose, Unproved, say

PROFILE = "--profile=registrar"
_START_SECONDS = 60
_QUESTION = AdaptiveIbltQuestion(
    threshold=9, contribution=2, domain=Utf8(max_bytes=6), message_bytes=4264
)
_POST = """
import sys, urllib.request
request = urllib.request.Request(
    "http://registrar:8100/v1/enrolments", sys.argv[1].encode(),
    {"Authorization": "Bearer " + sys.argv[2], "Content-Type": "application/json"},
)
print(urllib.request.urlopen(request, timeout=9).read().decode())
"""


def check_enrolment(compose: Compose) -> None:
    """Check that a device is enrolled, with the same answer after the registrar was killed.

    Raises:
        Unproved: if it is not, or if the registrar serves an older copy of its record.
    """
    (container,) = compose.containers("registrar")

    def run(script: str, *words: str) -> str:
        return compose.docker("exec", container, "sh", "-c", script, "-", *words)

    await_health(compose, container)
    public = run("blindtally registrar show registrar.key").strip()
    run("cp registrar.key.enrolments older")
    token = run("blindtally registrar tokens registrar.key").strip()
    terms = Terms(cohort_size=9, minimum=8, registrar=public)
    study = StudyView(
        id="s",
        name="words",
        state="running",
        question=_QUESTION,
        terms=terms,
        rounds=1,
        timeouts=Timeouts(),
        round=1,
        created=datetime.now(UTC),
    )
    run('echo "$1" | blindtally registrar allow registrar.key -', study.model_dump_json())
    request = SignatureRequest(
        study="s", question=_QUESTION, terms=terms, rounds=1, identity="ab" * 32
    )
    post = "exec", container, "python", "-c", _POST, request.model_dump_json(), token
    first = json.loads(compose.docker(*post))
    registry = study.registry
    assert registry is not None
    if not registry.admits(bytes.fromhex(request.identity), bytes.fromhex(first["signature"])):
        raise Unproved(f"the registrar's answer does not enrol the device: {first}")
    compose.docker("kill", container)
    compose.docker("start", container)
    await_health(compose, container)
    if json.loads(compose.docker(*post)) != first:
        raise Unproved("the registrar has another answer after it was killed")
    say("the registrar enrolled a device, with the same answer after it was killed")
    run("cp older registrar.key.enrolments")
    compose.docker("kill", container)
    compose.docker("start", container)
    time.sleep(5)
    if "is an older copy" not in compose.docker("logs", container):
        raise Unproved("the registrar serves an older copy of its record")
    say("the registrar refused an older copy of its record")


def await_health(compose: Compose, container: str) -> None:
    """Wait until the engine finds the container healthy."""
    late = time.monotonic() + _START_SECONDS
    while compose.state(container).get("Health", {}).get("Status") != "healthy":
        if time.monotonic() > late:
            raise Unproved(f"{container} is not healthy")
        time.sleep(0.5)
