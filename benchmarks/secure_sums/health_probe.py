"""A process that asks a server for its health, and measures the longest waits for an answer.

    python -m benchmarks.secure_sums.health_probe PORT

The server answers `/healthz` in its event loop without a query. So its longest answer is the time
for which one piece of work held the event loop, and with it all devices. `/readyz` may also
wait for a query. The probe prints the seconds of both once its standard input ends. It is another
process than the load generator, whose threads wait for each other.
"""

import http.client
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from typing import Final

PATHS: Final = ("/healthz", "/readyz")
_PAUSE_SECONDS = 0.02  # between two requests
_TIMEOUT_SECONDS = 120


def main() -> None:
    """Ask until the standard input ends; print the seconds of the longest answer at each path."""
    over = Event()
    Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=_TIMEOUT_SECONDS)
    longest = dict.fromkeys(PATHS, 0.0)
    while not over.wait(_PAUSE_SECONDS):
        for path in PATHS:
            start = time.perf_counter()
            connection.request("GET", path)
            connection.getresponse().read()
            longest[path] = max(longest[path], time.perf_counter() - start)
    sys.stdout.write(" ".join(map(str, longest.values())))


@contextmanager
def probing(ports: Sequence[int]) -> Iterator[dict[str, float]]:
    """Probe the servers on `ports`; yield the longest seconds by path, which are set at the end."""
    command = [sys.executable, "-m", __name__]
    probes = [
        subprocess.Popen(  # noqa: S603 - this module
            [*command, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for port in ports
    ]
    seconds = dict.fromkeys(PATHS, 0.0)
    try:
        yield seconds
    finally:
        for probe in probes:
            for path, longest in zip(PATHS, probe.communicate()[0].split(), strict=True):
                seconds[path] = max(seconds[path], float(longest))


if __name__ == "__main__":
    main()
