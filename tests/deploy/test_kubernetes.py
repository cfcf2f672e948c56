"""The manifests name probes, variables and ports that the service has, and hold no rights."""

import re
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from blindtally.cli import load_command
from blindtally.console.environment import KNOWN_VARIABLES
from server.app import create_app
from server.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
LOGIN_SETTINGS = [
    name for name in Settings.model_fields if name == "public_url" or name.startswith("oidc_")
]
FILES = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yml")}
POD: dict[str, Any] = FILES["deployment"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
CONFIG = dict(
    pair.split("=", 1)
    for generator in FILES["kustomization"]["configMapGenerator"]
    for pair in generator["literals"]
)


def test_the_base_names_each_file() -> None:
    assert {Path(name).stem for name in FILES["kustomization"]["resources"]} == {*FILES} - {
        "kustomization"
    }


def test_each_variable_is_known_and_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*CONFIG, *(variable["name"] for variable in CONTAINER["env"])}
    assert names <= KNOWN_VARIABLES
    for name, value in CONFIG.items():
        monkeypatch.setenv(name, value)
    assert (Settings().host, Settings().port) == ("0.0.0.0", CONTAINER["ports"][0]["containerPort"])  # noqa: S104
    assert POD["enableServiceLinks"] is False  # or the Service replaces BLINDTALLY_PORT


def test_a_login_at_a_provider_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The config map has these variables as comments, and the secret has the client secret."""
    text = (FOLDER / "kustomization.yml").read_text()
    literals = yaml.safe_load("\n".join(re.findall(r"^ +# (- .*=.*)$", text, re.MULTILINE)))
    variables = dict(literal.split("=", 1) for literal in literals)
    monkeypatch.setenv("BLINDTALLY_OIDC_CLIENT_SECRET", "secret")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Settings().oidc_allowed
    named = {*variables, *(variable["name"] for variable in CONTAINER["env"])}
    assert {f"BLINDTALLY_{name.upper()}" for name in LOGIN_SETTINGS} <= named


def test_secrets_are_references() -> None:
    for variable in CONTAINER["env"]:
        assert variable["valueFrom"]["secretKeyRef"]["name"] == "blindtally"
    assert not any(re.search("KEY|TOKEN|SECRET", name) for name in CONFIG)


def test_the_command_line_accepts_the_arguments() -> None:
    command, *arguments = CONTAINER["args"]
    assert load_command(command).make_context(command, arguments).params


def test_probes_ask_routes_of_the_service() -> None:
    app = create_app(Settings(database_url="sqlite:///unused.db"), None, Random(0))
    probes = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {probe["httpGet"]["path"] for probe in probes.values()} <= {*app.openapi()["paths"]}
    assert probes["readiness"]["httpGet"]["path"] == "/readyz"
    assert probes["liveness"]["httpGet"]["path"] == "/healthz"  # an outage needs no restart
    assert all(probe["httpGet"]["port"] == "http" for probe in probes.values())


def test_the_container_holds_no_rights() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert POD["securityContext"]["runAsUser"] == 10001
    assert POD["automountServiceAccountToken"] is False
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert CONTAINER["resources"]["limits"]["memory"]
    assert [mount["mountPath"] for mount in CONTAINER["volumeMounts"]] == ["/tmp"]  # noqa: S108


def test_all_parts_select_the_same_pods() -> None:
    labels = FILES["deployment"]["spec"]["template"]["metadata"]["labels"]
    assert FILES["deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert FILES["disruption-budget"]["spec"]["selector"]["matchLabels"] == labels
    assert FILES["service"]["spec"]["selector"] == labels
    assert (
        FILES["deployment"]["spec"]["replicas"]
        > FILES["disruption-budget"]["spec"]["maxUnavailable"]
    )


def test_kustomize_accepts_the_base() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    command = ["kubectl", "kustomize", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kinds = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert sorted(kinds) == ["ConfigMap", "Deployment", "PodDisruptionBudget", "Service"]
