"""Secrets of analysts and devices: the one place where a text becomes a header of a request.

A secret that comes from a file or a shell often has a line end or a blank at its end, which is
removed. Any other character that no secret has is refused, in words that do not repeat the secret:
an error of the HTTP library would.

A service or a proxy may repeat a secret in its answer, as one that shows the headers of a request
does. So this module keeps the secrets that requests had, and `hide_secrets` removes them from every
text of an error or a log that an answer can influence.
"""

import re
from base64 import b64encode
from collections import OrderedDict
from threading import Lock
from traceback import format_exception
from typing import Final

_SECRET: Final = re.compile("[!-~]+")  # printable ASCII characters, without the blank
_MIN_PART: Final = 8  # characters of a secret, or of a part that shows it
_MAX_SECRETS: Final = 2**12  # a fleet has more devices, whose secrets protect nothing
_secrets: Final[OrderedDict[str, None]] = OrderedDict()  # the latest at the end
_lock: Final = Lock()


def checked_secret(secret: str | None, name: str) -> str | None:
    """Return `secret` without blanks and line ends around it; None if it is None or empty.

    Raises:
        ValueError: if it cannot be a secret. The error has its `name`, and nothing of its text.
    """
    if secret is None or secret == "":
        return None
    if not isinstance(secret, str):
        raise ValueError(f"the {name} must be text, not {type(secret).__name__}")  # noqa: TRY004
    text = secret.strip()
    if not _SECRET.fullmatch(text):
        raise ValueError(
            f"the {name} has characters that no key has, such as a blank: copy it again"
        )
    remember_secret(text)
    return text


def remember_secret(secret: str) -> None:
    """Remove `secret` from texts from now on, unless it is short enough to be a part of words."""
    if len(secret) < _MIN_PART:
        return
    with _lock:
        _secrets[secret] = None
        _secrets.move_to_end(secret)
        if len(_secrets) > _MAX_SECRETS:
            _secrets.popitem(last=False)


def remember_basic_auth(user: str, password: str) -> None:
    """Remove a password, and the header that shows it, from texts from now on."""
    remember_secret(password)
    remember_secret(b64encode(f"{user}:{password}".encode()).decode())


def hide_secrets(text: str) -> str:
    """Return `text` without the secrets of requests."""
    with _lock:
        present = [secret for secret in _secrets if secret in text]
    for secret in sorted(present, key=len, reverse=True):  # one may be a part of another
        text = text.replace(secret, "(secret)")
    return text


def cause_without_secrets(error: Exception) -> Exception | None:
    """Return `error` as the cause of another one, None if its traceback shows a part of a secret.

    Errors of pydantic show the start and the end of a value.
    """
    text = "".join(format_exception(error))
    with _lock:
        parts = [part for each in _secrets for part in (each[:_MIN_PART], each[-_MIN_PART:])]
    return None if any(part in text for part in parts) else error


def bearer_headers(secret: str | None, name: str = "credential") -> dict[str, str]:
    """Return the header that shows a secret; none without one.

    Raises:
        ValueError: as `checked_secret`.
    """
    text = checked_secret(secret, name)
    return {} if text is None else {"authorization": f"Bearer {text}"}
