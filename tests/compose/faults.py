"""Faults in the middle of rounds, each of which must cost no sum.

    a replica frozen      the proxy uses the other one
    the database frozen   requests wait
    a read-only database  no replica is ready; devices wait
    a full disk           the same
    connections held      6,000 of one address that send nothing, one with a slow head, and one that
                          reads no responses: the proxy closes them
    a flood               of strangers with wrong keys

The proof waits until a cohort has received some masked inputs but not all, starts the fault, ends
it, and goes on with a later round. At the end of the study it checks every sum.
"""

import http.client
import resource
import secrets
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from statistics import median
from threading import Event

from tests.compose.project import PROJECT, Compose, Unproved, say

_FROZEN_SECONDS = 5
_REFUSED_SECONDS = 5  # after no replica is ready
_READY_SECONDS = 60
_ROUND_SECONDS = 240
_STRANGERS = 20
_IDLE_CONNECTIONS, _MAX_OF_ONE_ADDRESS = 6_000, 5_000  # the limit is the proxy's
_HEAD_SECONDS, _UNREAD_SECONDS = 10, 120  # limits of the proxy
_UNREAD_REQUESTS = 300
_VOLUME = "/volume"
# From the database and not through the API, which needs a key.
_MID_ROUND = (
    "FROM cohorts c WHERE c.phase = 'masking' AND c.round >= {number} AND c.enrolled >"
    " (SELECT count(*) FROM messages m WHERE m.cohort = c.id AND m.kind = 'masked-input')"
    " AND EXISTS (SELECT 1 FROM messages m WHERE m.cohort = c.id AND m.kind = 'masked-input')"
)


def play_faults(compose: Compose, replica: str) -> int:
    """Play each fault in its own round, after the first; return the number of the last round."""
    number = 1
    for play in (freeze_replica, freeze_database, refuse_writes, fill_disk, hold, flood):
        await_mid_round(compose, number + 1)
        number, phase = compose.latest_phase()
        result = play(compose, replica) if play is freeze_replica else play(compose)
        say(f"round {number}, {phase}: {result}")
        number, _ = compose.latest_phase()
    return number


def await_mid_round(compose: Compose, number: int) -> None:
    """Wait until vectors arrive in round `number` or a later one."""
    compose.wait_for(_MID_ROUND.format(number=number), _ROUND_SECONDS)


def freeze_replica(compose: Compose, replica: str) -> str:
    """Freeze `replica` for a time: the proxy must send it no requests after four seconds."""
    compose.docker("pause", replica)
    time.sleep(_FROZEN_SECONDS)
    for _ in range(20):
        if (status := _get(compose.port, "/readyz", timeout=5)) != 200:
            raise Unproved(f"the proxy answers {status} with one of two replicas")
    compose.docker("unpause", replica)
    return f"froze {replica} for {_FROZEN_SECONDS} s, after which the proxy did not use it"


def freeze_database(compose: Compose) -> str:
    """Freeze the database for a time."""
    (database,) = compose.containers("database")
    compose.docker("pause", database)
    time.sleep(_FROZEN_SECONDS)
    compose.docker("unpause", database)
    return f"froze the database for {_FROZEN_SECONDS} s, ready after {_await_ready(compose, 200)} s"


def refuse_writes(compose: Compose) -> str:
    """Make the database read-only until no replica is ready, and a time after that."""
    compose.query("ALTER SYSTEM SET default_transaction_read_only = on")
    compose.query("SELECT pg_reload_conf()")
    unready = _await_ready(compose, 503)
    time.sleep(_REFUSED_SECONDS)
    if (status := _get(compose.port, "/v1/studies", compose.api_key)) != 200:
        raise Unproved(f"a reader got {status} while the database refuses writes")
    compose.query("ALTER SYSTEM RESET default_transaction_read_only")
    compose.query("SELECT pg_reload_conf()")
    ready = _await_ready(compose, 200)
    return f"read-only database: not ready after {unready} s, ready {ready} s after its end"


def fill_disk(compose: Compose) -> str:
    """Fill the database's volume until no replica is ready, and a time after that."""
    with _open_volume(compose) as container:
        fill = f"dd if=/dev/zero of={_VOLUME}/filler bs=64k 2>/dev/null || true"
        compose.docker("exec", container, "sh", "-c", fill)
        unready = _await_ready(compose, 503)
        time.sleep(_REFUSED_SECONDS)
        compose.docker("exec", container, "rm", f"{_VOLUME}/filler")
        ready = _await_ready(compose, 200)
    return f"full disk: not ready after {unready} s, ready {ready} s after there was room"


@contextmanager
def _open_volume(compose: Compose) -> Iterator[str]:
    """Yield a container with the database's volume, which it keeps if the database restarts."""
    (database,) = compose.containers("database")
    image = compose.docker("inspect", "--format={{.Image}}", database).strip()
    name = f"{PROJECT}-volume"
    volume = f"--volume={PROJECT}_database:{_VOLUME}"
    options = ("--detach", "--rm", "--init", "--user=root", f"--name={name}", volume)
    compose.docker("run", *options, "--entrypoint=sleep", image, "600")
    try:
        yield name
    finally:
        compose.docker("kill", name)


def hold(compose: Compose) -> str:
    """Hold connections in each way that the proxy limits, while good requests are answered."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    address = (_proxy_address(compose, "outside"), 8000)
    other = (_proxy_address(compose, "inside"), 8000)  # where this machine has another address
    with ThreadPoolExecutor(3) as clients:
        held = [clients.submit(each, address) for each in (_stay_idle, _send_slowly, _read_nothing)]
        seconds = list[float]()
        while not all(each.done() for each in held):
            seconds.append(_time_good_request(compose, other))
            time.sleep(0.2)
    refused, slow, unread = (each.result() for each in held)
    return (
        f"{refused} of {_IDLE_CONNECTIONS} idle connections of one address refused, the others "
        f"closed; a slow head ended after {slow:.0f} s, unread responses after {unread:.0f} s; "
        f"good requests took {median(seconds):.2f} s, at most {max(seconds):.2f} s"
    )


def _stay_idle(address: tuple[str, int]) -> int:
    """Open connections that send nothing; return how many are refused at once."""
    with ExitStack() as idle:
        opened = list[socket.socket]()
        for _ in range(_IDLE_CONNECTIONS):
            with suppress(ConnectionResetError):  # refused before this side had noticed
                opened.append(idle.enter_context(socket.create_connection(address, timeout=30)))
        time.sleep(1)
        refused = _IDLE_CONNECTIONS - sum(not _is_closed(each) for each in opened)
        if refused < _IDLE_CONNECTIONS - _MAX_OF_ONE_ADDRESS:
            raise Unproved(f"the proxy refused only {refused} of {_IDLE_CONNECTIONS} connections")
        time.sleep(_HEAD_SECONDS + 5)
        if open_now := sum(not _is_closed(each) for each in opened):
            raise Unproved(f"{open_now} idle connections are open after {_HEAD_SECONDS + 5} s")
    return refused


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the other side has closed a connection, perhaps after a response."""
    connection.setblocking(False)
    try:
        while connection.recv(2**16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _send_slowly(address: tuple[str, int]) -> float:
    """Send a head that does not end; return the seconds until the proxy refuses it."""
    start = time.monotonic()
    with socket.create_connection(address, timeout=1) as connection:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nX-Slow: ")
        while time.monotonic() < start + _HEAD_SECONDS + 20:
            with suppress(TimeoutError):
                if not (answer := connection.recv(2**16)).startswith(b"HTTP/1.1 408"):
                    raise Unproved(f"a slow head got {answer[:100]!r}")
                return time.monotonic() - start
            connection.sendall(b"a")
    raise Unproved("a slow head was not refused")


def _read_nothing(address: tuple[str, int]) -> float:
    """Request more than the buffers hold and read nothing; return the seconds to the end."""
    start = time.monotonic()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(address)
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * _UNREAD_REQUESTS)
        while time.monotonic() < start + _UNREAD_SECONDS + 60:
            time.sleep(1)
            # A client that reads nothing learns of the end only when it sends something.
            try:
                connection.sendall(b"\r\n")
            except OSError:
                return time.monotonic() - start
    raise Unproved("a client that reads nothing is still connected")


def flood(compose: Compose) -> str:
    """Send requests with wrong keys until the round has ended."""
    number, _ = compose.latest_phase()
    stop, seconds = Event(), list[float]()
    with ThreadPoolExecutor(_STRANGERS) as strangers:
        floods = [strangers.submit(_send_wrong_keys, compose.port, stop) for _ in range(_STRANGERS)]
        try:
            last = time.monotonic() + _ROUND_SECONDS
            while compose.latest_phase()[0] == number and time.monotonic() < last:
                seconds.append(_time_good_request(compose))
                time.sleep(0.2)
        finally:
            stop.set()
    refused = sum((each.result() for each in floods), Counter[int]())
    if set(refused) - {401, 429}:
        raise Unproved(f"a flood of wrong keys got other answers: {refused}")
    return (
        f"{refused.total()} wrong keys were refused ({dict(refused)}); {len(seconds)} good "
        f"requests took {median(seconds):.2f} s, at most {max(seconds):.2f} s"
    )


def _proxy_address(compose: Compose, network: str) -> str:
    """Return the proxy's address in a network: the published port has a limit of open files."""
    (proxy,) = compose.containers("proxy")
    path = f'index .NetworkSettings.Networks "{PROJECT}_{network}" "IPAddress"'
    return compose.docker("inspect", f"--format={{{{{path}}}}}", proxy).strip()


def _send_wrong_keys(port: int, stop: Event) -> Counter[int]:
    """Send requests with wrong keys until `stop`; return the number of each status."""
    statuses = Counter[int]()
    while not stop.is_set():
        with suppress(OSError, http.client.HTTPException):  # closed by the service: try again
            statuses[_get(port, "/v1/studies", f"btk_{secrets.token_urlsafe(32)}")] += 1
    return statuses


def _time_good_request(compose: Compose, address: tuple[str, int] | None = None) -> float:
    """Return the seconds of a request with the operator's key, which must succeed."""
    start, (host, port) = time.monotonic(), address or ("127.0.0.1", compose.port)
    if (status := _get(port, "/v1/studies", compose.api_key, host=host)) != 200:
        raise Unproved(f"the operator's key got {status} during a flood of strangers")
    return time.monotonic() - start


def _await_ready(compose: Compose, expected: int) -> int:
    """Wait until the proxy answers `expected` at /readyz; return the seconds that it took."""
    start, status = time.monotonic(), None
    while time.monotonic() < start + _READY_SECONDS:
        with suppress(OSError, http.client.HTTPException):
            status = _get(compose.port, "/readyz", timeout=10)
        if status == expected:
            return round(time.monotonic() - start)
        time.sleep(0.5)
    raise Unproved(f"/readyz answers {status}, and not {expected} after {_READY_SECONDS} s")


def _get(
    port: int, path: str, key: str | None = None, timeout: float = 60, host: str = "127.0.0.1"
) -> int:
    """Return the status of a request through the proxy."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    return response.status
