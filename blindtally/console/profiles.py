"""Profiles of services: their addresses and API keys, which `blindtally login` saves.

The addresses are in a file that only its owner may read. A key is in the keyring of the system, by
the library `keyring`, or in the same file if there is none. A key is used for the address that it
was saved with, and for no other.
"""

import json
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from filelock import FileLock
from platformdirs import user_config_path
from pydantic import TypeAdapter

from blindtally.console.errors import exit_with_error
from blindtally.console.output_files import atomic_write
from client.http.address_and_retries import service_url

DEFAULT_PROFILE: Final = "default"
_KEYRING_SERVICE: Final = "blindtally"
_SAVED: Final = TypeAdapter(dict[str, dict[str, str]])


@dataclass(frozen=True, slots=True)
class Profile:
    """A service at `url`, and the API key that opens it, None if it is open."""

    url: str
    key: str | None = field(repr=False)


def profiles_path() -> Path:
    return user_config_path("blindtally") / "profiles.json"


def find_profile(name: str | None = None, url: str | None = None) -> Profile | None:
    """Return the profile with this `name`, or the first one with this `url`; None without one.

    Raises:
        typer.Exit: if the file of the profiles cannot be read.
    """
    address = None if url is None else service_url(url)
    for each, saved in _read().items():
        if name == each or address == saved["url"]:
            ring = None if "key" in saved else _keyring()
            key = ring.get_password(_KEYRING_SERVICE, _entry(each, saved)) if ring else None
            return Profile(saved["url"], saved.get("key") or key)
    return None


def _locked() -> FileLock:
    """Return the lock under which one process at a time changes the profiles."""
    path = profiles_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_suffix(".lock"), mode=0o600)


def save_profile(name: str, profile: Profile) -> str:
    """Save a profile, in place of one with its name; return where its key is.

    Raises:
        typer.Exit: if the file cannot be written.
    """
    remove_profile(name)
    saved: dict[str, str] = {"url": profile.url}
    place, ring = str(profiles_path()), _keyring() if profile.key else None
    try:
        if ring is not None:
            ring.set_password(_KEYRING_SERVICE, _entry(name, saved), profile.key)
            place = "the keyring of this system"
    except Exception:  # each backend has its own, for a keyring that is locked
        ring = None
    if profile.key and ring is None:
        saved["key"] = profile.key
    with _locked():
        _write(_read() | {name: saved})
    return place


def remove_profile(name: str) -> bool:
    """Remove a profile and its key; return whether it existed."""
    with _locked():
        profiles = _read()
        saved = profiles.pop(name, None)
        if saved is None:
            return False
        _write(profiles)
    if "key" not in saved and (ring := _keyring()) is not None:
        entry = _entry(name, saved)
        if ring.get_password(_KEYRING_SERVICE, entry) is not None:
            ring.delete_password(_KEYRING_SERVICE, entry)
    return True


def _entry(name: str, saved: dict[str, str]) -> str:
    """Return the name of a key in the keyring, which has the address that the key is for."""
    return f"{name} {saved['url']}"


def _keyring() -> Any:  # noqa: ANN401 - the module of an optional library
    """Return the library of keyrings, None without it or without a keyring."""
    if find_spec("keyring") is None:
        return None
    ring: Any = import_module("keyring")
    return ring if ring.get_keyring().priority > 0 else None


def _read() -> dict[str, dict[str, str]]:
    path = profiles_path()
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else "{}"
        return _SAVED.validate_json(text, strict=True)
    except (OSError, ValueError):
        raise exit_with_error(f"{path} cannot be read: remove it, and log in again") from None


def _write(profiles: dict[str, dict[str, str]]) -> None:
    path = profiles_path()
    with atomic_write(path, is_secret=True) as file:
        file.write_text(json.dumps(profiles, indent=2) + "\n", encoding="utf-8")
