"""What all tests share: examples are not timed, since the machines they run on are shared.

A shell that starts its tests in the background lets them ignore Ctrl-C, and what they start as
well: some of that is to be stopped by it.
"""

import signal

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
