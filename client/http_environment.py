"""Settings of HTTP in the environment of a program; an error about one names its variable.

    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY   the proxy; never for this machine itself
    SSL_CERT_FILE, SSL_CERT_DIR                    the trusted certificates, instead of certifi's
    SSLKEYLOGFILE                                  a file for the keys of TLS, for debugging

httpx would read them itself. Its errors do not name the variable, it sends requests to this machine
through a proxy too, and an entry such as [::1] in NO_PROXY is an error.
"""

import os
import ssl
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx

from client.credentials import remember_basic_auth

_CERTIFICATE_VARIABLES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # the first one counts


def proxy_of(url: httpx.URL) -> httpx.Proxy | None:
    """Return the proxy of the environment for a request to `url`; none for this machine.

    Raises:
        ValueError: if the variable is not the address of a proxy; the error names it.
    """
    if is_loopback(url.host):
        return None
    proxies = getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or any(map(proxy_bypass, (url.host, url.netloc.decode()))):
        return None
    place = proxy_variable(url)
    try:
        proxy = httpx.Proxy(address if "://" in address else f"http://{address}")
        rest = (proxy.url.raw_path.removeprefix(b"/"), proxy.url.fragment)
        is_proxy = bool(proxy.url.host) and not any(rest)
    except (ValueError, httpx.InvalidURL):
        is_proxy = False
    if not is_proxy:  # outside of `except`: the error of httpx may have a password
        raise ValueError(f"{place} is not the address of a proxy, such as http://proxy.test:3128")
    if proxy.auth is not None:
        remember_basic_auth(*proxy.auth)
    if proxy.url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise ValueError(f"{place} is a SOCKS proxy: `pip install httpx[socks]` adds these")
    if proxy.url.scheme == "https":
        proxy.ssl_context = tls_context()
    return proxy


def proxy_variable(url: httpx.URL) -> str:
    """Return the name of the variable that sets the proxy for `url`."""
    names = [f"{scheme}_proxy" for scheme in (url.scheme, "all")]
    given = (name for each in names for name in (each, each.upper()) if os.environ.get(name))
    return next(given, "the proxy in the settings of this machine")


@cache
def tls_context() -> ssl.SSLContext:
    """Return the trusted certificates, which all clients share: reading them takes 20 ms.

    Raises:
        ValueError: if a variable of the environment has no certificates; the error names it.
    """
    variable = certificate_variable()
    path = Path(os.environ.get(variable, ""))
    try:
        if log := os.environ.get("SSLKEYLOGFILE"):
            Path(log).open("ab").close()
    except OSError as error:
        raise ValueError(f"SSLKEYLOGFILE={log!r} cannot be used: {error.strerror}") from None
    try:
        if variable == "SSL_CERT_DIR":
            next(path.iterdir(), None)  # a missing folder is like an empty one to OpenSSL
        return httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one
        if not variable:
            raise
        reason = "has no certificates" if isinstance(error, ssl.SSLError) else error.strerror
        raise ValueError(f"{variable}={str(path)!r} cannot be used: {reason}") from None


@cache
def no_tls_context() -> ssl.SSLContext:
    """Return a context that trusts no certificate, for addresses without TLS."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def certificate_variable() -> str:
    """Return the name of the variable that sets the trusted certificates; empty if none does."""
    return next((name for name in _CERTIFICATE_VARIABLES if os.environ.get(name)), "")


def is_loopback(host: str) -> bool:
    """Return whether `host` is an address or a name of this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    with suppress(ValueError):
        address = ip_address(host)
        return address.is_loopback or address.is_unspecified
    return False
