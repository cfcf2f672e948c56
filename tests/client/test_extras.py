"""What to type for an extra fits how blindtally was installed."""

import json
import sys
from types import SimpleNamespace

import pytest

from client.extras import install

FOLDER = {"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}}


@pytest.mark.parametrize(
    ("direct", "what"),
    [
        (None, "'blindtally[demo]'"),
        (FOLDER, "-e '/home/me/my clone[demo]'"),
        (FOLDER | {"dir_info": {}}, "'/home/me/my clone[demo]'"),
        ({"url": "https://example.org/x.whl", "archive_info": {}}, "'blindtally[demo]'"),
    ],
)
def test_an_extra_is_installed_from_where_we_were(
    direct: dict[str, object] | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = SimpleNamespace(read_text=lambda _: direct and json.dumps(direct))
    monkeypatch.setattr("client.extras.distribution", lambda _: told)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    assert install("demo") == f"pip install {what}"


def test_the_pip_is_that_of_this_python_where_the_shell_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/me/.venv")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert install("demo").startswith(f"{sys.executable} -m pip install ")
