"""What the shell proposes where a word is to be completed: mechanisms, data sets and files.

Nothing here may be slow or fail: the user waits for it at every press of a key.
"""

from pathlib import Path

from blindtally.datasets.reader import bundled_datasets

_DATA_SUFFIXES = (".csv", ".csv.gz", ".txt", ".txt.gz")


def complete_mechanism(incomplete: str) -> list[str]:
    """Return the mechanisms whose names begin so."""
    from protocol.mechanisms.registry import MECHANISMS  # noqa: PLC0415 - no other command waits for them

    return [name for name in MECHANISMS if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """Return the data sets that come with us, data files and folders whose names begin so."""
    lead, slash, typed = incomplete.rpartition("/")
    lead += slash
    found = [name for name in bundled_datasets() if name.startswith(incomplete)]
    try:
        entries = sorted(Path(lead).expanduser().iterdir())
    except OSError:
        return found
    for entry in entries:
        if entry.name.startswith(typed) and (typed or not entry.name.startswith(".")):
            if entry.is_dir():
                found.append(f"{lead}{entry.name}/")
            elif entry.name.endswith(_DATA_SUFFIXES):
                found.append(f"{lead}{entry.name}")
    return found
