"""`blindtally login` and `logout`: the service and the key that commands use without options."""

import re
import sys
from contextlib import suppress
from typing import Annotated

from typer import Argument, BadParameter, Option

from blindtally.console.errors import exit_with_error
from blindtally.console.options import check_url
from blindtally.console.terminal import ask_text, print_line

_DEFAULT = "default"
_NAME = re.compile(r"[\w.-]{1,64}")


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BadParameter("a name has 1 to 64 letters, digits, '_', '-' and '.', such as trial")
    return name


ProfileOption = Annotated[
    str,
    Option(
        metavar="NAME",
        help="Name of the profile, which --profile of commands names.",
        callback=_check_name,
    ),
]


def login(
    url: Annotated[str, Argument(help="URL of the service.", callback=check_url)],
    profile: ProfileOption = _DEFAULT,
) -> None:
    """Save a service and its API key, which other commands then use without options.

    The key is asked for, or read from standard input, and saved once the service accepts it. An
    option has precedence over a variable (BLINDTALLY_URL, BLINDTALLY_API_KEY), and this over the
    profile.

    Example:
      blindtally login https://counts.example.org
      blindtally login http://127.0.0.1:8000 --profile trial
    """
    from blindtally.console.profiles import Profile, save_profile
    from blindtally.console.service_connection import open_analyst
    from client.credentials import checked_secret
    from client.errors import ForbiddenError
    from client.http.address_and_retries import service_url

    if "@" in url:
        raise exit_with_error(
            "a profile saves no password of an address: leave out what stands before '@', or use "
            "the variable BLINDTALLY_URL instead of a profile"
        )
    if sys.stdin is not None and sys.stdin.isatty():
        typed = ask_text("API key (none if the service is open)", is_secret=True)
    else:
        typed = sys.stdin.readline() if sys.stdin is not None else ""
    try:
        key = checked_secret(typed.strip(), "API key")
    except ValueError as error:
        raise exit_with_error(error) from None
    # A key without the right to read is valid, too.
    with open_analyst(url, key) as analyst, suppress(ForbiddenError):
        next(analyst.studies(), None)
    place = save_profile(profile, Profile(service_url(url), key))
    print_line(f"saved the profile {profile!r}" + (f"; its key is in {place}" if key else ""))


def logout(profile: ProfileOption = _DEFAULT) -> None:
    """Remove a profile, with its key, from this machine.

    The key stays valid until `blindtally keys revoke`.

    Example:
      blindtally logout
    """
    from blindtally.console.profiles import remove_profile

    if not remove_profile(profile):
        raise exit_with_error(f"there is no profile {profile!r}: `blindtally login` makes one", 1)
    print_line(f"removed the profile {profile!r}")
