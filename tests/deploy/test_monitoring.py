"""Alert rules and the dashboard of Grafana read metrics, labels and values that the service has."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
import yaml

from protocol.api.events import FailureCause
from protocol.api.messages import RoundState
from protocol.api.phases import Phase
from server.app import create_app
from server.settings import Settings
from server.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "grafana" / "blindtally.json"
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
SCRAPED_LABELS = {"job", "instance", "le"}
SELECTOR = re.compile(r"\b((?:blindtally|process|python)_\w+|up)\b(?:\{([^}]*)\})?")
VALUES = {
    "phase": {phase.value for phase in Phase},
    "cause": {cause.value for cause in FailureCause},
    "state": {*get_args(RoundState), "waiting"},
    "method": {"GET", "PUT", "POST"},
    "reason": {"timeout"},
    "job": {"blindtally", "sum-cohort"},
    "mode": {"read", "write"},
    "outcome": {"failed", "completed", "done"},
    "error": {"IntegrityError", "OperationalError"},
}


def series() -> dict[str, set[str]]:
    """Return the labels of each series that the service may have, and of Prometheus' own `up`."""
    labels = {
        metric._name: set(metric._labelnames)
        for metric in vars(Metrics()).values()
        if hasattr(metric, "_labelnames")
    }
    names = {"up": SCRAPED_LABELS}
    for family in Metrics().registry.collect():
        for suffix in SUFFIXES.get(family.type, ("",)):
            names[family.name + suffix] = labels.get(family.name, set()) | SCRAPED_LABELS
    return names


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return listed


def expressions() -> Iterator[tuple[str, str]]:
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def paths() -> set[str]:
    app = create_app(Settings(database_url="sqlite:///unused.db"), None, Random(0))
    return {*app.openapi()["paths"]}


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_an_expression_names_series_labels_and_values_that_exist(
    name: str, expression: str
) -> None:
    known = series()
    selectors = SELECTOR.findall(expression)
    assert selectors, name
    for metric, matchers in selectors:
        assert metric in known, name
        for label, operator, text in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in known[metric], name
            if label == "status":
                assert re.fullmatch(r"[1-5](\d\d|\.\.)", text), name
            elif label == "route":
                assert text in paths(), name
            elif label != "instance":
                values = text.split("|") if "~" in operator else [text]
                assert {*values} <= VALUES[label], name


def test_alerts_have_a_severity_and_a_sentence() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len({*names}) == len(names)
    for alert in alerts():
        assert alert["labels"]["severity"] in {"critical", "warning"}
        assert alert["annotations"]["summary"].endswith(".")


def test_panels_have_different_places_and_titles() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len({*places}) == len(places)
    assert len({panel["title"] for panel in panels()}) == len(places)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels())


@pytest.mark.parametrize(
    "arguments",
    [["check", "rules", str(RULES)], ["test", "rules", "alerts_test.yml"]],
    ids=" ".join,
)
def test_promtool_accepts_the_rules(arguments: list[str]) -> None:
    """`alerts_test.yml` has series with the alerts that must fire and those that must not."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        ["promtool", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
