"""Completion in the shell of mechanisms, data sets and files.

Nothing here may be slow or fail: the user waits for it at every press of a key.
"""

from pathlib import Path

from blindtally.datasets.reader import bundled_datasets

_DATA_SUFFIXES = (".csv", ".csv.gz", ".txt", ".txt.gz")


def complete_mechanism(incomplete: str) -> list[str]:
    from protocol.mechanisms.registry import MECHANISMS  # noqa: PLC0415 - no other command waits for them

    return [name for name in MECHANISMS if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """Return bundled data sets, data files and folders whose names begin with `incomplete`."""
    lead, slash, typed = incomplete.rpartition("/")
    lead += slash
    names = [name for name in bundled_datasets() if name.startswith(incomplete)]
    try:
        entries = sorted(Path(lead).expanduser().iterdir())
    except OSError:
        return names
    for entry in entries:
        if entry.name.startswith(typed) and (typed or not entry.name.startswith(".")):
            if entry.is_dir():
                names.append(f"{lead}{entry.name}/")
            elif entry.name.endswith(_DATA_SUFFIXES):
                names.append(f"{lead}{entry.name}")
    return names
