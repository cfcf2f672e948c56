"""Address of a service, and repetition of requests that fail for the moment.

Repetitions are quiet: stamina would show each of them on the terminal of the user's program. They
are in the log of this module, at the level DEBUG. The first one of a call for which a person waits
is a warning, which Python shows on standard error unless the program configures its logs.
"""

import logging
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from http.cookiejar import CookieJar
from typing import Any, Final, ParamSpec, TypeVar
from urllib.parse import quote

import httpx
import stamina
from stamina.instrumentation import RetryDetails, RetryHook, get_on_retry_hooks, set_on_retry_hooks

from client.credentials import remember_basic_auth
from client.errors import ServiceError, is_retryable, is_wrong_address, short_text
from client.http_environment import no_tls_context, proxy_of, tls_context
from protocol.api.messages import MAX_RETRY_SECONDS

_LOG: Final = logging.getLogger(__name__)
_MAX_PORT: Final = 2**16 - 1
_MIN_ANNOUNCED_SECONDS: Final = 2.0  # nobody needs to know of a shorter wait

P = ParamSpec("P")
T = TypeVar("T")


def service_url(url: str) -> str:
    """Return `url` in one form, because one service has one identity of the device.

    Raises:
        ValueError: if it is not the address of a service.
    """
    if not isinstance(url, str):
        kind = type(url).__name__
        raise ValueError(f"{kind}: not the address of a service, such as http://127.0.0.1:8000")  # noqa: TRY004
    # Only the scheme and the host are shown: any character may stand in a password, and a password
    # that no @ and host follow looks like a port.
    start = re.match(r"(\w+://)(?:.*@)?([^/?#:@]*)", url, re.DOTALL)
    shown = repr(f"{start[1]}{start[2]}...") if start else "a text without ://"
    parsed = None
    with suppress(httpx.InvalidURL):  # which quotes what is not a port
        parsed = httpx.URL(url)
    if parsed is None:
        raise ValueError(f"{shown} is not an address, such as http://127.0.0.1:8000")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{shown} is not an http or https address, such as http://127.0.0.1:8000")
    if "%" in parsed.host or not 0 < (parsed.port or 1) <= _MAX_PORT:
        raise ValueError(f"{shown} has a host or a port that cannot exist")
    if {"?", "#"} & set(str(url)):
        raise ValueError(f"{shown} is not the address of a service: leave out '?' and '#'")
    return str(parsed).rstrip("/")


class _NoCookies(CookieJar):
    """A jar that stores nothing: a service could fill it, and recognise a device by it."""

    def extract_cookies(self, response: object, request: object) -> None:
        """Ignore the cookies of a response."""


def http_options(url: str) -> dict[str, Any]:
    """Return the options of a client of httpx for the service at `url`.

    A user and a password in the address become the option `auth`: httpx logs addresses. Answers
    have no content encoding, which could hide their size.

    Raises:
        ValueError: if `url` is not an http or https address, or if a variable of the environment
            has no proxy or no certificates.
    """
    address = httpx.URL(service_url(url) + "/v1")
    proxy = proxy_of(address)
    if address.userinfo:
        remember_basic_auth(address.username, address.password)
    # Reading the trusted certificates takes 20 ms. Without TLS, a client trusts none.
    is_tls = address.scheme == "https" or (proxy is not None and proxy.url.scheme == "https")
    return {
        "base_url": address.copy_with(userinfo=b""),
        "auth": (address.username, address.password) if address.userinfo else None,
        "headers": {"user-agent": "blindtally", "accept-encoding": "identity"},
        "cookies": _NoCookies(),
        "trust_env": False,
        "proxy": proxy,
        "verify": tls_context() if is_tls else no_tls_context(),
    }


def check_patience(seconds: float) -> float:
    """Return `seconds`; raises ValueError if they are not the duration of repetitions."""
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ValueError(f"patience: must be a number of seconds, not {seconds!r}")
    return seconds


def shown_url(url: str) -> str:
    """Return a service's address without the user and password that it may have."""
    return str(httpx.URL(url).copy_with(userinfo=b"")).rstrip("/")


def repeated(
    function: Callable[P, T],
    patience: float,
    jitter: float = 1.0,
    announced: str = "",
    is_known: Callable[[], bool] = lambda: True,
) -> Callable[P, T]:
    """Return `function` with repetitions for `patience` seconds, as `is_retryable` allows.

    `function` may be asynchronous. The waits between repetitions differ by up to `jitter` seconds.
    If the address of the service is `announced`, a warning states that it is not available. Until
    the address `is_known`, the error of a wrong one is raised at once.
    """
    is_announced = not announced or patience < _MIN_ANNOUNCED_SECONDS

    def retry_delay(error: Exception) -> bool | float:
        nonlocal is_announced
        delay = is_retryable(error)
        if is_wrong_address(error) and not is_known():
            return False
        if delay is not False:
            _silence_hooks()
            if not is_announced:
                reason = (
                    error.message if isinstance(error, ServiceError) else short_text(str(error))
                )
                text = "%s is not available; trying again for %.0f s (%s)"
                _LOG.warning(text, announced, patience, reason or type(error).__name__)
            is_announced = True
        return delay if isinstance(delay, bool) else min(delay, patience)

    retry = stamina.retry(
        on=retry_delay,
        attempts=None,
        timeout=patience,
        wait_max=MAX_RETRY_SECONDS,
        wait_jitter=jitter,
    )
    return retry(function)


class _QuietHook:
    """Hook of stamina that logs our repetitions, and passes those of others on to `hook`."""

    def __init__(self, hook: RetryHook) -> None:
        self._hook = hook

    def __call__(self, details: RetryDetails) -> AbstractContextManager[None] | None:
        if not details.name.startswith("client."):
            return self._hook(details)
        reason = short_text(str(details.caused_by))
        _LOG.debug(
            "request %d failed, next in %.1f s: %s", details.retry_num, details.wait_for, reason
        )
        return None


def _silence_hooks() -> None:
    """Wrap the hooks of stamina; not at import, because its defaults import logging libraries."""
    hooks = get_on_retry_hooks()
    if not all(isinstance(hook, _QuietHook) for hook in hooks):
        set_on_retry_hooks(
            hook if isinstance(hook, _QuietHook) else _QuietHook(hook) for hook in hooks
        )


def url_path(*parts: object) -> str:
    """Return the path with these parts.

    Raises:
        ValueError: if a part would lead to another path, because it is empty, "." or "..", or if it
            is not Unicode text.
    """
    for part in parts:
        if str(part) in ("", ".", ".."):
            reason = "is empty" if str(part) == "" else f"cannot be {str(part)!r}"
            raise ValueError(f"an id or a name {reason}: `Analyst.studies()` lists all studies")
    try:
        return "".join(f"/{quote(str(part), safe='')}" for part in parts)
    except UnicodeEncodeError:
        raise ValueError(f"an id or a name in {parts} is not text") from None
