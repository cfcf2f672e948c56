"""`blindtally serve`: the service, on one address and one database, until Ctrl-C."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Option


def serve(
    host: Annotated[
        str | None,
        Option(envvar="BLINDTALLY_HOST", help="Address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        Option(envvar="BLINDTALLY_PORT", help="Port; 0 selects a free one.", show_default="8000"),
    ] = None,
    database_url: Annotated[
        str | None,
        Option(
            "--database",
            envvar="BLINDTALLY_DATABASE_URL",
            help="Database: sqlite:///FILE, or postgresql:// and USER:PASSWORD@HOST/NAME. "
            "Missing tables are made, and old ones are upgraded.",
            show_default="sqlite:///blindtally.db",
        ),
    ] = None,
    is_open: Annotated[
        bool,
        Option(
            "--open",
            envvar="BLINDTALLY_OPEN",
            help="Serve without credentials. For trials: only on an address of this machine.",
        ),
    ] = False,
    tls_certificate: Annotated[
        Path | None,
        Option(envvar="BLINDTALLY_TLS_CERTIFICATE", help="Certificate chain (PEM): serve HTTPS."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        Option(envvar="BLINDTALLY_TLS_KEY", help="Private key of the certificate (PEM)."),
    ] = None,
    forwarded_allow_ips: Annotated[
        str | None,
        Option(
            envvar="BLINDTALLY_FORWARDED_ALLOW_IPS",
            show_envvar=False,
            help="Proxies, by address or network, whose X-Forwarded-For and -Proto are trusted.",
            show_default="none",
        ),
    ] = None,
    behind_proxy: Annotated[
        bool,
        Option(
            "--behind-proxy",
            envvar="BLINDTALLY_BEHIND_PROXY",
            help="Serve other machines: a proxy in front limits their connections.",
        ),
    ] = False,
    accept_unlimited_connections: Annotated[
        bool,
        Option(
            "--accept-unlimited-connections",
            envvar="BLINDTALLY_ACCEPT_UNLIMITED_CONNECTIONS",
            show_envvar=False,
            rich_help_panel="Without a proxy",  # its name needs a wider column
            help="Serve other machines without a proxy: one client can take all connections.",
        ),
    ] = False,
    log: Annotated[
        Literal["text", "json"], Option(help="Format of the log, on standard error.")
    ] = "text",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Option(metavar="LEVEL", help="Lowest level to log: debug, info, warning or error."),
    ] = "info",
) -> None:
    """Serve studies to analysts and devices, until Ctrl-C.

    Prints one line, `blindtally serves URL`, when it is ready; --log json logs it. Everything that
    was acknowledged is in the database: after a kill and a new start, running studies go on.

    Example:
      blindtally serve --open
      blindtally serve --database postgresql://me:secret@localhost/blindtally

    Flags have the environment variables shown. docs/cli.md has all other settings, among them
    BLINDTALLY_DATABASE_TIMEOUT_SECONDS, BLINDTALLY_MAX_UPLOAD_BYTES, BLINDTALLY_HSTS_SECONDS,
    BLINDTALLY_KEEP_STUDIES_DAYS. Traces go to OTEL_EXPORTER_OTLP_ENDPOINT, if that is set.
    """
    from blindtally.service_process import run_service

    flags: dict[str, str | int | Path | None] = {
        "host": host,
        "port": port,
        "database_url": database_url,
        "open": is_open,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "forwarded_allow_ips": forwarded_allow_ips,
        "behind_proxy": behind_proxy,
        "accept_unlimited_connections": accept_unlimited_connections,
    }
    run_service(flags, as_json=log == "json", log_level=log_level)
