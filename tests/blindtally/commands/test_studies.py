"""`blindtally studies` against a real service."""

import csv
import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.commands.create_study import create_study
from blindtally.commands.studies import print_study
from blindtally.commands.watch import round_printer
from client.analyst.analyst import Analyst
from protocol.api.events import EndCause
from secagg.keys import Identity
from tests.blindtally.commands.conftest import play_one_round
from tests.server.application import ServiceOnPort

SIZES = ["--devices", "16", "--rounds", "1", "--threshold", "5", "--message-bytes", "4500"]


def run(url: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["studies", *arguments, "--url", url])
    return result.exit_code, result.output


def created(url: str, *arguments: str) -> dict[str, Any]:
    command = ["studies", "create", *SIZES, *arguments, "--json", "-", "--url", url]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


async def play(url: str, study: str) -> None:
    """Let 16 devices take part in the only round of a study."""
    with Analyst(url) as analyst:
        view = analyst.study(study).view
    await play_one_round(url, view, [{"=common": 1}] * 16)


@pytest.mark.long_cells  # names of studies that other tests made
def test_a_study_is_created_listed_started_and_stopped(url: str) -> None:
    view = created(url, "words", "--draft", "--stop-at", "0.9,0.8", "--set", "confidence=0.6")
    assert (view["state"], view["question"]["mechanism"]) == ("created", "tracked")
    assert (view["question"]["confidence"], view["stop_at"]["recall"]) == (0.6, 0.8)
    code, output = run(url, "list")
    assert code == 0
    assert any(line.split()[0] == view["id"] for line in output.splitlines())
    assert run(url, "start", view["id"]) == (0, f"{view['id']} is running\n")
    assert run(url, "stop", view["id"]) == (0, f"{view['id']} is stopped\n")
    code, output = run(url, "list", "--json", "-")
    assert {row["id"]: row["state"] for row in json.loads(output)["studies"]}[view["id"]] == (
        "stopped"
    )


def test_a_study_is_found_by_its_name(url: str, service: ServiceOnPort) -> None:
    first, second = (created(url, "two of one name", "--draft")["id"] for _ in range(2))
    code, output = run(url, "start", "two of one name")
    assert (code, first in output, second in output) == (2, True, True)
    database = ("--database", service.database_url)
    keys = ["keys", "create", "guest", *database, "--study", "two of one name"]
    assert f"use an id, {first}, {second}" in CliRunner().invoke(app, keys).output
    assert run(url, "delete", first, "--yes")[0] == 0
    code, output = run(url, "show", "two of one nam")
    assert (code, "the nearest names are 'two of one name'" in output) == (1, True)
    assert CliRunner().invoke(app, keys).exit_code == 0
    assert run(url, "start", "two of one name") == (0, f"{second} is running\n")


def test_default_devices_accept_the_studies_in_the_help(url: str) -> None:
    text = (create_study.__doc__ or "").replace("\\\n", "")
    examples = re.findall(r"blindtally studies (create .*)", text)
    for each in examples:
        line = each.replace("KEY", Identity.of(bytes(32)).public.hex())
        assert "refuse" not in run(url, *line.split())[1]
    assert len(examples) > 1


def test_a_study_that_devices_refuse_is_created_with_a_warning(url: str) -> None:
    registrar = Identity.of(bytes(32)).public.hex()
    sizes = ["--message-bytes", "4500", "--draft"]
    refused = run(url, "create", "x", *sizes, "--threshold", "4", "--devices", "16")[1]
    assert "refuse the study: it names no registrar, so its server could invent" in refused
    assert "refuse the study: it asks for items held 4 times, below 5" in refused
    assert "refuse the study: it may sum as few as 7 devices, below 50" in refused
    sizes += ["--threshold", "5", "--devices", "200", "--registrar", registrar]
    assert "refuse" not in run(url, "create", "x", *sizes)[1]


def test_a_study_of_strings_has_the_rounds_that_they_need_or_a_warning(url: str) -> None:
    domain = 'domain={"kind": "alphabet", "characters": "ab$", "pad": "$", "length": 7}'
    fields = (domain, "epsilon=1", "delta=1e-6", "mode=noise")
    options = ["x", "--draft", "--devices", "2000", "--threshold", "1", "--message-bytes", "60000"]
    options += ["--mechanism", "triehh", *(part for field in fields for part in ("--set", field))]
    code, output = run(url, "create", *options)
    assert (code, "only shorter ones" in output) == (0, False), output
    assert json.loads(run(url, "list", "--json", "-")[1])["studies"][0]["rounds"] == 7
    code, output = run(url, "create", *options, "--rounds", "5")
    assert (code, "need 7 rounds: with 5, only shorter ones are found" in output) == (0, True)


def test_a_study_names_operators_with_reserves_or_volunteers(url: str) -> None:
    keys = [Identity.of(bytes([n]) * 32).public.hex() for n in range(1, 8)]
    members = [part for key in keys for part in ("--member", key)]
    view = created(url, "words", "--draft", *members, "--committee-size", "6")
    assert view["terms"]["committee"] == {
        "members": keys,
        "corrupt": 0.2,
        "dropout": 0.2,
        "size": 6,
    }
    drawn = ["--volunteers", "14", "--committee-size", "10"]
    view = created(url, "words", "--draft", "--registrar", keys[0], *drawn)
    committee = view["terms"]["committee"]
    assert (committee["volunteers"], committee["size"]) == (14, 10)
    for wrong, reason in (
        ([*members, *drawn], "operators or volunteers"),
        (drawn[:2], "pass --committee-size"),
        (drawn[2:], "pass --committee-size"),
        (["--volunteers", "8", "--committee-size", "9"], "population of 8"),
    ):
        code, output = run(url, "create", "words", *SIZES, *wrong)
        assert code == 2
        assert reason in " ".join(output.split())


def test_a_study_is_deleted_once_it_is_confirmed_and_does_not_run(url: str) -> None:
    study = created(url, "words")["id"]
    code, output = run(url, "delete", study, "--yes")
    assert (code, "the study is running: stop it" in output) == (1, True)
    run(url, "stop", study)
    code, output = run(url, "delete", study)  # no input, so nobody confirms
    assert code == 1
    assert f"delete 'words' ({study}, stopped) for ever?" in output
    assert run(url, "delete", study, "--yes") == (0, f"{study} is deleted\n")
    code, output = run(url, "delete", study, "--yes")
    assert (code, "there is no such study" in output) == (1, True)


async def test_an_answer_is_shown_and_exported(url: str, tmp_path: Path) -> None:
    domain = 'domain={"kind": "utf8", "max_bytes": 8}'
    view = created(url, "greetings", "--mechanism", "adaptive-iblt", "--set", domain)
    code, output = run(url, "show", view["id"])
    assert code == 0
    assert "No round is over: a round needs" in output
    await play(url, view["id"])
    watched = ["watch", "greetings", "--url", url]
    output = CliRunner().invoke(app, watched).output
    assert "round 1: decoded, 16 devices\nfinished. The one round is over.\n" in output
    events = CliRunner().invoke(app, [*watched, "--json"]).stdout.splitlines()
    assert [json.loads(events[end])["kind"] for end in (0, -1)] == ["study-created", "study-ended"]
    files = {form: tmp_path / f"a.{form}" for form in ("csv", "ndjson", "parquet")}
    for file in files.values():
        asked = ["query", "greetings", "--out", str(file), "--url", url]
        assert "=common" in CliRunner().invoke(app, asked).output
    with files["csv"].open() as file:
        (row,) = csv.DictReader(file)
    assert (row["item"], float(row["estimate"])) == ("'=common", 16)
    (line,) = files["ndjson"].read_text().splitlines()
    (written,) = parquet.read_table(files["parquet"]).to_pylist()
    assert written == json.loads(line)
    assert (written["item"], written["estimate"], written["low"]) == ("=common", 16.0, 16.0)
    code, output = run(url, "show", view["id"], "--json", "-")
    document = json.loads(output)
    assert document["study"]["state"] == "finished"
    assert [each["state"] for each in document["rounds"]] == ["decoded"]
    assert document["heavy_hitters"][0]["item"] == "=common"
    for wrong, reason in (
        (["--out", "a.xls"], "end it with .csv, .ndjson, .jsonl, .parquet"),
        (["--format", "csv"], "pass --out PATH"),
        (["--out", "-", "--format", "csv", "--json", "-"], "cannot both"),
    ):
        result = CliRunner().invoke(app, ["query", view["id"], *wrong, "--url", url])
        assert (result.exit_code, reason in result.output) == (2, True), result.output


async def test_every_option_of_a_list_is_shown_and_those_below_the_threshold_without_a_number(
    url: str,
) -> None:
    domain = 'domain={"kind": "listed", "items": ["rare", "=common", "none"]}'
    view = created(url, "options", "--mechanism", "adaptive-iblt", "--set", domain)
    await play(url, view["id"])
    for command in (["studies", "show"], ["query"]):
        result = CliRunner().invoke(app, [*command, view["id"], "--url", url])
        assert result.exit_code == 0, result.output
        rows = [" ".join(line.split()) for line in result.output.splitlines()]
        ends = "0 4" if command == ["studies", "show"] else "(0 to 4)"
        assert {f"rare fewer than 5 {ends}", f"none fewer than 5 {ends}"} <= set(rows)
        assert any(row.startswith("=common 16") for row in rows)
        result = CliRunner().invoke(app, [*command, view["id"], "--url", url, "--json", "-"])
        written = json.loads(result.stdout)
        assert written["unlisted"] == {"rare": "fewer than 5", "none": "fewer than 5"}
    few = run(url, "show", view["id"], "--top", "2")[1]
    assert "1 more options: fewer than 5" in few
    asked = ["query", view["id"], "--url", url, "--out", "-", "--format"]
    lines = CliRunner().invoke(app, [*asked, "csv"]).stdout.splitlines()
    names = ("item", "estimate", "low", "high", "unlisted")
    rows = [tuple(row[name] for name in names) for row in csv.DictReader(lines)]
    assert rows[0] == ("'=common", "16.0", "16.0", "16.0", "")
    assert rows[1:] == [(item, "", "0.0", "4.0", "fewer than 5") for item in ("rare", "none")]
    table = parquet.read_table(BytesIO(CliRunner().invoke(app, [*asked, "parquet"]).stdout_bytes))
    assert table.column("unlisted").to_pylist() == [None, "fewer than 5", "fewer than 5"]


def test_a_study_without_a_sum_has_failed_for_a_reason(url: str) -> None:
    view = created(url, "empty")
    run(url, "stop", view["id"])
    code, output = run(url, "show", view["id"])
    assert code == 0, output
    assert "failure in round 1: the study was stopped" in output
    assert "No round is in the answer: a round needs 8 devices" in " ".join(output.split())


def test_a_finished_study_whose_rounds_all_failed_is_shown_as_failed(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Analyst(url) as analyst:
        study = analyst.study(created(url, "empty")["id"])
        study.stop()
        rounds = list(study.rounds())
        ended = {"state": "finished", "end_cause": EndCause.NO_ANSWER}
        finished = study.refresh().model_copy(update=ended)
    print_study(finished, [rounds[0], rounds[0].model_copy(update={"number": 2})], [], 0)
    output = capsys.readouterr().out
    assert "failed, round 1 of 1" in output
    assert "The one round is over, without an answer." in output
    assert "failure in rounds 1, 2: " in output


def test_a_link_is_printed_until_all_are_ended(url: str, tmp_path: Path) -> None:
    study = created(url, "for readers", "--webhook", "http://localhost:1/hook", "--draft")
    assert study["webhook_secret"].startswith("whsec_")
    code, output = run(url, "share", "for readers", "--days", "2")
    link = output.splitlines()[0]
    assert (code, httpx.get(link).status_code) == (0, 200)
    files = tmp_path / "link.json", tmp_path / "study.json"
    assert run(url, "share", study["id"], "--json", str(files[0]))[0] == 0
    command = ["create", "x", *SIZES, "--webhook", "http://localhost:1/", "--json", str(files[1])]
    assert run(url, *command)[0] == 0
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]
    document = json.loads(files[0].read_text())
    assert httpx.get(document["url"]).status_code == 200
    assert (
        run(url, "share", study["id"], "--revoke")[1] == f"all links to {study['id']} have ended\n"
    )
    assert [httpx.get(each).status_code for each in (link, document["url"])] == [401, 401]


def test_a_watched_round_is_printed_once_per_state(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Analyst(url) as analyst:
        (view,) = analyst.study(created(url, "watched")["id"]).rounds()
    print_round = round_printer()
    for state in ("running", "running", "failed"):
        print_round(view.model_copy(update={"state": state}))
    minimum = view.plan.terms.minimum
    begun = f"round 1: running, for {minimum} devices or more\n"
    assert capsys.readouterr().out == f"{begun}round 1: failed\n"


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["create", "x", *SIZES, "--mechanism", "traced"], 2, "did you mean tracked?"),
        (["create", "x", *SIZES, "--mechanism", "zzz"], 2, "`blindtally mechanisms` lists them"),
        (["create", "x", *SIZES, "--set", "nonsense"], 2, "--set takes NAME=VALUE"),
        (["create", "x", *SIZES, "--set", "confidense=0.6"], 2, "did you mean confidence?"),
        (["create", "x", *SIZES, "--contribution", "0"], 2, "contribution: must be from 1 to "),
        (["create", "x", *SIZES, "--committee-size", "5"], 2, "--committee-size with --volunteers"),
        (["create", "x", *SIZES, "--set", "zzz=1"], 2, "tracked has no field 'zzz': it has "),
        (["create", "x", *SIZES, "--stop-at", "2,2"], 2, "precision"),
        (["create", "x", *SIZES, "--message-bytes", "few"], 2, "neither a number"),
        (["create", "x", *SIZES, "--message-bytes", "0"], 2, "neither a number"),
        (
            ["create", "x", *SIZES, "--mechanism", "adaptive-iblt", "--message-bytes", "auto"],
            2,
            "the message_bytes of adaptive-iblt cannot be simulated",
        ),
        (["create", "x", *SIZES, "--cohorts", "300"], 2, "cohorts: 16 devices are too few for 300"),
        (["show", "nobody"], 1, "check the name or id, and --url"),
    ],
)
def test_mistakes_have_reasons(url: str, arguments: list[str], code: int, error: str) -> None:
    got, output = run(url, *arguments)
    assert got == code, output
    assert error in output


@pytest.mark.parametrize("size", [(), ("--message-bytes", "auto"), ("--set", "message_bytes=auto")])
def test_the_size_of_a_study_is_chosen(
    size: tuple[str, ...], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "blindtally.planning.recommended_size.choose_size",
        lambda _question, terms, rounds: (9000 + rounds, f"9,005 bytes for {terms.max_devices}"),
    )
    code, output = run(url, "create", "x", "--devices", "16", "--threshold", "5", "--draft", *size)
    assert code == 0, output
    choosing, choice, *_, study, _ = output.splitlines()
    assert choosing == "choosing message_bytes by simulation"
    assert choice == "chose 9,005 bytes for 16"
    with Analyst(url) as analyst:
        assert analyst.study(study).view.question.message_bytes == 9005  # type: ignore[union-attr]


def test_a_study_whose_size_cannot_be_chosen_is_not_created(url: str) -> None:
    code, output = run(url, "create", "x", "--devices", "16", "--threshold", "500")
    assert code == 2
    assert "no assumed item is held 500 times: lower the threshold; or pass a number" in output
