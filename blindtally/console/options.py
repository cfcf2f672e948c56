"""Options that several commands have, and their completion in the shell.

No completion may be slow or fail: the user waits for it at every press of a key. A command imports
what it needs when it runs, so that --help and completion do not wait for it.
"""

from pathlib import Path
from typing import Annotated, Final

from typer import BadParameter, Context, Option

# Population that a plan assumes.
DEFAULT_ITEMS: Final = 100_000
DEFAULT_ZIPF: Final = 1.0
# Simulated fleets, and the demo.
DEFAULT_DEVICES: Final = 100
DEFAULT_ROUNDS: Final = 4
DEFAULT_DROPOUT: Final = 0.1
DEFAULT_CONTRIBUTION: Final = 2
DEFAULT_IDLE_SECONDS: Final = 0.5  # without a message; then a phase with a quorum ends
_DATA_SUFFIXES = tuple(
    form + packed
    for form in (".csv", ".tsv", ".txt", ".jsonl", ".parquet")
    for packed in ("", ".gz", ".bz2", ".xz", ".zst")
)


def parse_size(text: str) -> int:
    """Return a number of bytes, 0 for "auto".

    Raises:
        BadParameter: if the text is neither.
    """
    size = 0 if text == "auto" else int(text) if text.isdecimal() else -1
    if size < 0 or (size == 0 and text != "auto"):
        raise BadParameter(f"{text!r} is neither a number from 1 nor auto")
    return size


def check_url(url: str) -> str:
    """Return `url`; raises BadParameter if it is not the address of a service."""
    from client.http.address_and_retries import service_url

    try:
        service_url(url)
    except ValueError as error:
        raise BadParameter(str(error)) from None
    return url


def choose_url(context: Context, value: str) -> str:
    """Return the address in `value`, or of the profile that it names; the default is a profile too.

    The profile's key is the default of `ApiKeyOption`, which is read later.

    Raises:
        BadParameter: if it is neither.
    """
    from blindtally.console.profiles import DEFAULT_PROFILE, find_profile

    source = context.get_parameter_source("url")
    if source is not None and source.name == "DEFAULT":
        profile = find_profile(DEFAULT_PROFILE)
    else:
        profile = find_profile(url=check_url(value)) if "://" in value else find_profile(value)
    if profile is None and "://" not in value:
        raise BadParameter(
            "there is no profile of this name, and it is not an http or https address: `blindtally "
            "login URL --profile NAME` saves a profile"
        )
    context.meta[_PROFILE_KEY] = profile and profile.key
    return check_url(value) if profile is None else profile.url


def choose_key(context: Context, value: str | None) -> str | None:
    """Return a given key, or that of the profile in use."""
    return value or context.meta.get(_PROFILE_KEY)


def complete_mechanism(incomplete: str) -> list[str]:
    from protocol.mechanisms.registry import MECHANISMS

    return [name for name in MECHANISMS if name.startswith(incomplete)]


def complete_data(incomplete: str) -> list[str]:
    """Return bundled data sets, data files and folders whose names begin with `incomplete`."""
    from blindtally.datasets.file_formats import bundled_datasets

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


_PROFILE_KEY: Final = "blindtally.profile_key"
DEFAULT_URL: Final = "http://127.0.0.1:8000"
ApiKeyOption = Annotated[
    str | None,
    Option(
        "--key",
        envvar="BLINDTALLY_API_KEY",
        help="API key, unless the service is open.",
        show_default="that of the profile",
        callback=choose_key,
    ),
]
ColumnOption = Annotated[
    str | None,
    Option(
        metavar="NAME", help="Column of the items in a file, or columns: item=A,user=B,count=C."
    ),
]
FleetDataOption = Annotated[
    Path | None,
    Option(
        help="Items of the devices: columns user,item or item,count, or baskets; or a bundled "
        "data set: link_user_domains, words, short, ages.",
        show_default="link_user_domains",
        autocompletion=complete_data,
    ),
]
SeedOption = Annotated[int, Option(min=0, help="Seed of all random choices.")]
UrlOption = Annotated[
    str,
    Option(
        "--url",
        "--profile",
        envvar="BLINDTALLY_URL",
        help="URL of the service, or the profile that `blindtally login` saved.",
        show_default="the profile default, or this machine, port 8000",
        is_eager=True,  # its profile has the default of the key
        callback=choose_url,
    ),
]
