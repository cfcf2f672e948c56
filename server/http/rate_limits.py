"""Limits of what happens in a minute, by key: an address, a credential or a token.

A limit counts the events of each clock minute. Those of the minute before count in proportion to
the part of it that was less than a minute ago, so a client gains nothing by waiting for the next
minute. Source: C. Desgats, "How we built rate limiting capable of scaling to millions of domains"
(Cloudflare, 2017). Counts of two minutes are kept, and older ones forgotten all at once: looking
for old ones among those of 10,000 devices takes longer than their requests.
"""

from time import monotonic

_SECONDS = 60.0


class RateLimit:
    """At most `maximum` events per minute and key."""

    __slots__ = ("_before", "_counts", "_maximum", "_minute")

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._minute = 0
        self._counts, self._before = dict[str, int](), dict[str, int]()  # of it, of the one before

    def hit(self, key: str = "") -> bool:
        """Count an event and return True, unless there were too many."""
        if not self.allows(key):
            return False
        self._counts[key] = self._counts.get(key, 0) + 1
        return True

    def allows(self, key: str = "") -> bool:
        """Return whether `hit` would return True."""
        minute, seconds = divmod(monotonic(), _SECONDS)
        if minute != self._minute:
            self._before = self._counts if minute == self._minute + 1 else {}
            self._counts, self._minute = {}, int(minute)
        before = int(self._before.get(key, 0) * (1 - seconds / _SECONDS))
        return before + self._counts.get(key, 0) < self._maximum
