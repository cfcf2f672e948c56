"""Entries of a device's journal, as the device records them."""

import time
from dataclasses import replace

from client.device.device import DEFAULT_COLLECTION
from client.device.journal import JournalEntry
from protocol.api.phases import MessageKind


def vector_entry(
    study: str, number: int = 1, cohort: int = 0, body: bytes = b"vector"
) -> JournalEntry:
    """Return the entry of a vector that is given now, of the default collection."""
    kind, now = MessageKind.MASKED_INPUT, int(time.time())
    entry = JournalEntry.of(study, number, cohort, kind, body, now)
    return replace(entry, collection=DEFAULT_COLLECTION)
