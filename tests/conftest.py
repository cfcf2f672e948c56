"""What all tests share: examples are not timed, since the machines they run on are shared.

A shell that starts its tests in the background lets them ignore Ctrl-C, and what they start as
well: some of that is to be stopped by it.

Many tests wait, for phases, servers and browsers: there is one worker more than cores.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers() -> int:
    """Return how many workers `--numprocesses auto` starts."""
    return (os.cpu_count() or 1) + 1
