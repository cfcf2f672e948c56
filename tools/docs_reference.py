"""Reference pages of the documentation's site, made from the program itself.

The commands are those of `blindtally`, with their help. The HTTP API is the service's OpenAPI
document, in the words of the page `/docs` that every service has. Metrics have the texts of
`/metrics`. The page of Python names has directives for mkdocstrings, which reads signatures and
docstrings.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Final

import typer
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from typer.cli import get_docs_for_click

import blindtally
from blindtally.cli import COMMANDS, app, load_command
from blindtally.fleet_run.scenario import FleetScenario
from blindtally.planning.sum_plan import AssumedItems
from blindtally.simulate.scenario import Scenario
from server.app import create_app
from server.pages.help import Operation, fields_of, operations_of
from server.settings import Settings
from server.telemetry.metrics import Metrics

FORMS: Final[Mapping[str, type[BaseModel]]] = {
    "fleet": FleetScenario,
    "plan sum": AssumedItems,
    "simulate": Scenario,
}
_EXAMPLE: Final = re.compile(r"^Example:\n((?:.+\n?)+)", re.MULTILINE)


def reference_pages() -> dict[str, str]:
    """Return the Markdown of each page, by its name."""
    return {
        "reference-commands.md": _commands_page(),
        "reference-http.md": _http_page(),
        "reference-metrics.md": _metrics_page(),
        "reference-python.md": _python_page(),
    }


def _commands_page() -> str:
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="blindtally")
    parts = [
        "# All commands and options\n",
        "[The page on commands](cli.md) has examples and advice.\n",
    ]
    for name in COMMANDS:
        command = load_command(name)
        docs = get_docs_for_click(
            obj=command, ctx=context, indent=1, name=name, call_prefix="blindtally"
        )
        parts.append(_with_examples_as_code(docs))
    parts.append("## Fields of `--set`\n")
    for user, form in FORMS.items():
        text = inspect.getdoc(form)
        parts.append(f"### Of `{user}`\n\n{text}\n\n" + "\n".join(_fields_table(form)) + "\n")
    parts.append("## Variables of `serve`\n\n" + "\n".join(_settings_table()) + "\n")
    return "\n".join(parts)


def _fields_table(form: type[BaseModel]) -> Iterator[str]:
    rows = [(name, _default_text(each.default)) for name, each in form.model_fields.items()]
    return _table(("field", "default"), rows)


def _settings_table() -> Iterator[str]:
    rows = [
        (f"BLINDTALLY_{name.upper()}", _default_text(field.default), field.description or "")
        for name, field in Settings.model_fields.items()
    ]
    return _table(("variable", "default", "meaning"), rows)


def _default_text(value: object) -> str:
    return "" if value in (None, "", {}) else f"`{value}`"


def _with_examples_as_code(docs: str) -> str:
    """Return the help of a command with its examples, which are indented, as code."""
    return _EXAMPLE.sub(r"Example:\n\n```sh\n\1\n```\n", docs)


def _http_page() -> str:
    document = create_app(Settings(), None, Random()).openapi()
    subjects = dict[str, list[Operation]]()
    for subject, operation in operations_of(document["paths"]):
        subjects.setdefault(subject, []).append(operation)
    parts = ["# All requests and documents", document["info"]["description"]]
    for subject, operations in subjects.items():
        parts.append(f"## {subject.capitalize()}")
        for each in operations:
            parts += [f"### `{each.method} {each.path}`", each.description]
            parts += _table(("parameter", "type", "meaning"), each.parameters)
            parts += [f"Body: `{each.body}`"] if each.body else []
            parts += _table(("response", "type", "meaning"), each.responses)
    parts.append("## Documents")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += [f"### `{name}`", schema.get("description", "")]
        parts += _table(("field", "type", "meaning"), fields_of(schema))
    return "\n\n".join(parts) + "\n"


def _metrics_page() -> str:
    metrics = [each for each in vars(Metrics()).values() if isinstance(each, MetricWrapperBase)]
    rows = [
        (
            family.name + "_total" * (family.type == "counter"),
            family.type,
            labels,
            family.documentation,
        )
        for metric in metrics
        for family in metric.describe()
        for labels in [", ".join(metric._labelnames)]
    ]
    parts = ["# All metrics", "[The page on watching a service](observability.md) has alerts.\n"]
    return "\n\n".join([*parts, *_table(("metric", "type", "labels", "meaning"), rows)]) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield a table, unless it has no rows; without the last column, if nothing is in it."""
    lines = [head, ("---",) * len(head), *((f"`{name}`", *rest) for name, *rest in rows)]
    if not any(line[-1] for line in lines[2:]):
        lines = [line[:-1] for line in lines]
    if len(lines) > 2:
        cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
        yield "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _python_page() -> str:
    parts = ["# All names of Python", "[The page on Python](sdk.md) has a tutorial.\n"]
    for name in blindtally.__all__:
        target = getattr(blindtally, name)
        is_document = isinstance(target, type) and issubclass(target, BaseModel)
        options = {"heading": name, "toc_label": name} | (
            {"members": "false"} if is_document else {}
        )
        lines = [f"::: {target.__module__}.{target.__qualname__}", "    options:"]
        parts.append("\n".join(lines + [f"      {key}: {value}" for key, value in options.items()]))
        if is_document:
            parts += _table(("field", "type", "meaning"), fields_of(target.model_json_schema()))
    return "\n\n".join(parts) + "\n"
