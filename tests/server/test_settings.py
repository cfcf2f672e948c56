"""Settings: from the environment, checked, and silent about passwords."""

import json

import pytest
from pydantic import ValidationError

from blindtally.console.errors import setting_faults
from server.principals import Permission
from server.settings import Settings
from tests.server.fake_provider import CLIENT_SECRET, oidc_settings


def test_the_environment_sets_what_no_argument_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLINDTALLY_PORT", "1234")
    monkeypatch.setenv("BLINDTALLY_KEEP_AUDIT_DAYS", "2.5")
    assert (Settings().port, Settings().keep_audit_days) == (1234, 2.5)
    assert Settings(port=5).port == 5


@pytest.mark.parametrize(
    "fault", [{"port": 65536}, {"database_url": "mysql://x"}, {"database_timeout_seconds": 0}]
)
def test_a_setting_outside_its_range_is_refused(fault: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings(**fault)  # type: ignore[arg-type]


def test_a_proxy_is_an_address_or_a_network() -> None:
    """Any other text would be compared with addresses, and the proxy not be trusted."""
    for proxies in ("", "*", "10.0.0.7", "10.0.0.0/8, ::1,fd00::/8"):
        assert Settings(forwarded_allow_ips=proxies).forwarded_allow_ips == proxies
    for fault in ("proxy", "10.0.0.7/8", "10.0.0.0/33", "10.0.0.7,", "*,10.0.0.7", "10.0.0.7:80"):
        with pytest.raises(ValidationError, match="forwarded_allow_ips"):
            Settings(forwarded_allow_ips=fault)


def test_a_password_is_not_shown() -> None:
    settings = oidc_settings(database_url=f"postgresql://u:{CLIENT_SECRET}@h/x")
    assert CLIENT_SECRET not in repr(settings)


@pytest.mark.parametrize(
    "changes",
    [
        *({name: None} for name in ("public_url", "oidc_client_id", "oidc_client_secret")),
        {"oidc_allowed": "{}"},
        {"oidc_allowed": "anna@example.org"},
        {"oidc_allowed": '{"anna@example.org": "read"}'},
        {"oidc_allowed": '{"anna@example.org": [], "Anna@example.org": ["read"]}'},
        {"oidc_allowed": '{"anna@example.org": ["seat"]}'},
        {"oidc_allowed": '{"anna@example.org": ["take-part"]}'},
        *(
            {"oidc_allowed": json.dumps({name: ["read"]})}
            for name in ("", "@", "anna@", "example.org", "*", " @example.org", "a@b@c", "@é.org")
        ),
        *(
            {name: url}
            for name in ("public_url", "oidc_issuer")
            for url in (
                "",
                "stats.example.org",
                "http://stats.example.org",
                "http://localhost.example.org",
                "ftp://localhost",
                "https://",
                "https://user@stats.example.org",
                "https://stats.example.org?a=b",
                "https://stats.example.org#a",
                "https://stats.example.org:port",
                "https://[stats",
                "https://stats.example.org\n",
            )
        ),
        {"public_url": "https://stats.example.org/path?query"},
    ],
)
def test_a_login_at_a_provider_needs_all_its_settings_and_tls(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        oidc_settings(**changes)
    assert CLIENT_SECRET not in "".join(setting_faults(caught.value, Settings))


def test_a_provider_on_this_machine_needs_no_tls() -> None:
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080"):
        settings = oidc_settings(oidc_issuer=f"http://{host}/a/", public_url=f"http://{host}/")
        assert (settings.oidc_issuer, settings.public_url) == (
            f"http://{host}/a/",
            f"http://{host}",
        )


def test_the_people_who_may_log_in_are_set_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLINDTALLY_OIDC_ALLOWED", '{"Anna@Example.org": ["read", "operate"]}')
    assert Settings().oidc_allowed == {"anna@example.org": {Permission.READ, Permission.OPERATE}}
