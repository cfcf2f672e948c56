"""`blindtally fleet` in front of a real server process."""

import asyncio
import io
import json
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from rich.console import Console
from typer.testing import CliRunner

from blindtally.cli import app
from blindtally.commands.fleet import DEFAULT_KEY_FILE
from blindtally.fleet_run.registrar_key_files import create_key_file, load_key_file
from blindtally.fleet_run.results import left_out_notes
from blindtally.fleet_run.run_on_terminal import heavy_hitter_table, suggest_options
from client.analyst.analyst import Analyst
from client.committee.member import CommitteeMember, MemberPolicy
from client.committee.member_journal import MemberJournal
from client.committee.round_poller import polling
from client.device.encoding import make_contribution
from client.http.transport import http_client
from protocol.api.messages import HeavyHitter, StudyView, Timeouts
from protocol.device_policy.policy import PolicyError
from protocol.domains.strings import Utf8
from protocol.mechanisms.iblt.adaptive import AdaptiveIbltQuestion
from protocol.mechanisms.registry import parse_question
from protocol.question_and_plan import Terms
from protocol.randomness import system_words
from secagg.keys import Identity
from tests.server.application import ServiceOnPort
from tests.support.views import study_document

if TYPE_CHECKING:
    from client.fleet.config_and_results import FleetRound

SMALL_FLEET = ("--create", "--devices", "12", "--rounds", "1", "--min-cohort", "5")
QUESTION = AdaptiveIbltQuestion(
    threshold=5, contribution=2, domain=Utf8(max_bytes=6), message_bytes=4784
)


@pytest.fixture(autouse=True)
def registrar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the public key of the registrar that a fleet uses by default."""
    monkeypatch.chdir(tmp_path)
    return create_key_file(DEFAULT_KEY_FILE).public.hex()


def fleet(*arguments: str) -> tuple[int, str]:
    run = CliRunner().invoke(app, ["fleet", *arguments])
    return run.exit_code, run.output


def test_a_fleet_makes_a_registrar_and_uses_it_again(service: ServiceOnPort) -> None:
    DEFAULT_KEY_FILE.unlink()
    code, output = fleet("--url", service.url, *SMALL_FLEET)
    assert code == 0, output
    for text in ("made registrar.key, ", "round 1/1", "sum exact", "Held 5 times or more"):
        assert text in output
    public = load_key_file(DEFAULT_KEY_FILE).public.hex()
    with Analyst(service.url) as analyst:
        assert next(analyst.studies()).view.terms.registrar == public
        study = analyst.create("again", QUESTION, devices=10, rounds=1, registrar=public)
    code, output = fleet("--url", service.url, "--study", study.id, "--min-cohort", "4")
    assert code == 0, output
    assert "sum exact" in output


def test_a_fleet_ends_with_a_study_that_reaches_its_goal_and_counts_as_simulated_devices(
    service: ServiceOnPort, tmp_path: Path
) -> None:
    """All devices hold the same item, which is counted exactly, and once, in the first round."""
    data, out = tmp_path / "data.csv", tmp_path / "out.json"
    data.write_text("user,item,count\n" + "".join(f"{user},abc,4\n" for user in range(36)))
    options = ("--create", "--devices", "12", "--rounds", "3", "--min-cohort", "5")
    options += ("--dropout", "0", "--data", str(data), "--json", str(out))
    code, output = fleet("--url", service.url, *options, "--stop-at", "0.9,0.9")
    assert code == 0, output
    reason = "The expected precision and recall of the list reached the goal in round 1 of at most"
    assert f"{reason} 3." in output
    document = json.loads(out.read_text())
    assert (len(document["rounds"]), document["end_cause"]) == (1, "goal")
    assert document["reading"]["columns"] == {"item": "item", "user": "user", "count": "count"}
    with Analyst(service.url) as analyst:
        view = analyst.study(document["study"]).wait()
    assert (view.state, view.round, view.rounds, view.end_cause) == ("finished", 1, 3, "goal")
    asked = [
        f"--threshold={view.question.threshold}",
        f"--message-bytes={view.question.message_bytes}",
    ]
    asked += [f"--set=contribution={view.question.contribution}", "--rounds=1", "--devices=12"]
    run = CliRunner().invoke(app, ["simulate", "tracked", f"--data={data}", *asked])
    simulated = " ".join(run.stdout.split())
    assert document["heavy_hitters"][0]["estimate"] == 12
    assert "'abc' 12 0 12" in simulated  # estimate, its error, and the truth
    assert "left out 36 items: more copies of an item than the policy allows (1 by" in simulated


def test_a_fleet_refuses_a_goal_that_is_malformed_or_of_an_existing_study(
    service: ServiceOnPort,
) -> None:
    code, output = fleet("--url", service.url, *SMALL_FLEET, "--stop-at", "good")
    assert code == 2
    assert "such as 0.95,0.9: got 'good'" in " ".join(output.split())
    code, output = fleet("--url", service.url, "--study", "s1", "--stop-at", "0.9,0.9")
    assert code == 2
    assert "--stop-at needs --create" in output


def test_a_fleet_refuses_a_study_of_another_registrar_or_of_none(
    service: ServiceOnPort, registrar: str
) -> None:
    theirs = create_key_file(Path("theirs")).public.hex()
    with Analyst(service.url) as analyst:
        study = analyst.create("elsewhere", QUESTION, devices=10, rounds=1, registrar=theirs)
        anonymous = analyst.create("nowhere", QUESTION, devices=10, rounds=1)
    options = ["--url", service.url, "--min-cohort", "4"]
    code, output = fleet(*options, "--study", study.id)
    assert code == 2
    assert f"registrar.key has the key of {registrar}; study {study.id} names" in output
    assert "pass its key file with --registrar" in output
    code, output = fleet(*options, "--study", study.id, "--registrar", "none")
    assert code == 2
    assert f"cannot read none: No such file or directory; study {study.id} names" in output
    assert "--no-registrar" in fleet("--help")[1]
    code, output = fleet(*options, "--study", study.id, "--no-registrar")
    assert code == 1
    assert "did not enrol this device" in output
    assert "--registrar FILE" in output
    code, output = fleet(*options, "--study", anonymous.id)
    assert code == 2
    assert "names no registrar, so its server may have invented the other devices" in output
    code, output = fleet(*options, "--study", anonymous.id, "--no-registrar")
    assert code == 0
    assert "sum exact" in output


def test_a_fleet_that_refuses_names_the_limits(service: ServiceOnPort) -> None:
    options = ["--create", "--devices", "12", "--min-cohort", "13", "--max-contribution", "1"]
    code, output = fleet("--url", service.url, *options)
    assert code == 1
    assert "(min_cohort)" in output
    assert "(max_contribution)" in output
    assert output.rstrip().endswith(
        "To take part all the same: --min-cohort 5 --max-contribution 2"
    )


def test_items_that_are_keys_or_differ_between_cohorts_are_explained() -> None:
    fields = {"mechanism": "tracked", "threshold": 5, "contribution": 1, "message_bytes": 13_924}
    question = parse_question(fields | {"domain": {"kind": "hashed", "max_bytes": 9}})
    terms = Terms(cohort_size=20, minimum=10)
    study = StudyView.model_validate(study_document(question, terms))

    def table_of(*items: str, cohort_p_value: float | None = None) -> str:
        screen = Console(record=True, width=120, file=io.StringIO())
        numbers = {"estimate": 9.0, "standard_error": 0.0, "low": 9.0, "high": 9.0}
        hitters = [HeavyHitter(item=item, **numbers) for item in items]
        hitters[0] = hitters[0].model_copy(update={"cohort_p_value": cohort_p_value})
        screen.print(heavy_hitter_table(study, [], hitters))
        return screen.export_text()

    assert "whose string was not fetched" in table_of("cat", "#e2d6ceb8ec")
    assert "not fetched" not in table_of("cat")
    assert "common in some cohorts" not in table_of("cat", "dog")
    assert "as by lying devices: cat\n" in table_of("cat", "dog", cohort_p_value=1e-9)


def test_a_fleet_states_what_its_devices_left_out() -> None:
    fields = {"mechanism": "tracked", "threshold": 5, "contribution": 2, "message_bytes": 13_924}
    question = parse_question(fields | {"domain": {"kind": "utf8", "max_bytes": 3}})
    held = {"a": 4, "\x1blong": 3}
    entry = SimpleNamespace(contribution=make_contribution(question, held, system_words))
    played = cast("FleetRound", SimpleNamespace(results=[entry] * 10))
    outside, over = left_out_notes([played], question)
    assert outside == (
        "The devices left out 30 items, such as \\x1blong: outside the domain of kind utf8, at "
        "most 3 bytes."
    )
    assert over == (
        "The devices left out 20 items, such as a: a device sends at most 2 items in a round, "
        "chosen at random; all counts, the true ones too, are of items that were sent."
    )


def test_the_answer_of_sums_of_numbers_is_a_number_of_devices() -> None:
    domain = {"kind": "interval", "low": 0, "high": 100, "alpha": 10, "length": 2}
    question = parse_question(
        {"mechanism": "number-sums", "domain": domain, "message_bytes": 12_124}
    )
    study = StudyView.model_validate(study_document(question, Terms(cohort_size=20, minimum=10)))
    numbers = {"estimate": 20.0, "standard_error": 0.0, "low": 20.0, "high": 20.0}
    screen = Console(record=True, width=120, file=io.StringIO())
    screen.print(heavy_hitter_table(study, [], [HeavyHitter(item="all", **numbers)]))
    lines = [line.split() for line in screen.export_text().splitlines()]
    assert lines == [["Devices", "with", "a", "number"], ["segment", "devices"], ["all", "20"]]


def test_what_no_option_changes_is_named_as_such() -> None:
    refusals = [PolicyError("max_epsilon", "asks", 9.0), PolicyError("terms", "lets")]
    advice = suggest_options(refusals)
    assert "all the same: --max-epsilon 9.0" in advice
    assert "No option here changes terms" in advice
    assert suggest_options([]) == ""


def test_a_waiting_fleet_shows_the_missing_devices_and_at_the_end_the_page(
    service: ServiceOnPort, registrar: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blindtally.fleet_run.study_status.POLL_SECONDS", 0.2)
    with Analyst(service.url) as analyst:
        study = analyst.create(
            "waits",
            QUESTION,
            Terms(cohort_size=20, minimum=15, registrar=registrar),
            rounds=1,
            timeouts=Timeouts(enrolling=3),
        )
    options = ["--study", study.id, "--devices", "12", "--min-cohort", "4"]
    run = CliRunner().invoke(app, ["fleet", "--url", service.url, *options])
    assert run.exit_code == 0, run.output
    assert "round 1: 12 of 20 devices in cohort 0; waiting for 8 more, until" in run.stderr
    assert "it fails with fewer than 15" in run.stderr
    assert "failed: 12 of 20 enrolled in time, where 15 are needed" in " ".join(run.stdout.split())
    assert f"its page: {service.url}/studies/{study.id}\n" in run.stdout
    code, output = fleet("--url", service.url, "--study", study.id)
    assert code == 0
    assert "no device of this fleet took part: the study is finished" in output


def test_a_fleet_sends_reports(service: ServiceOnPort) -> None:
    """They have no sum that could be compared with vectors."""
    domain = {"kind": "listed", "items": ["com", "org"]}
    fields = {"mechanism": "krr", "threshold": 5, "contribution": 1, "epsilon": 3, "domain": domain}
    with Analyst(service.url) as analyst:
        study = analyst.create("reports", parse_question(fields), devices=12, rounds=1)
    code, output = fleet("--url", service.url, "--study", study.id)
    assert code == 0, output
    assert "round 1/1  12 of 12 devices, decoded" in output  # without a sampling threshold
    assert "sum exact" not in output
    assert "no sum" not in output


def test_too_few_devices_in_the_data_are_wrong_use(service: ServiceOnPort) -> None:
    code, output = fleet("--url", service.url, "--create", "--devices", "9000")
    assert code == 2
    assert "the data has 8,812: use fewer rounds or devices" in " ".join(output.split())


def test_an_unknown_study_is_reported(service: ServiceOnPort) -> None:
    code, output = fleet("--url", service.url, "--study", "nobody-knows")
    assert code == 1
    assert "lists the studies" in output
    assert "Analyst" not in output  # advice for programs


@pytest.mark.parametrize("arguments", [[], ["--create", "--study", "one"]])
def test_a_fleet_needs_one_study(arguments: list[str]) -> None:
    code, output = fleet(*arguments)
    assert code == 2
    assert "--create" in output


def test_devices_arrive_over_time_are_slow_and_drop_out_in_the_given_phases(
    service: ServiceOnPort, tmp_path: Path
) -> None:
    out = tmp_path / "rounds.json"
    slow = ["--arrivals", "poisson", "--over", "0.5", "--slow", "0.2", "--pause", "0.1"]
    dropouts = ["--dropout-in", "masking=0.1", "--dropout-in", "unmasking=0.1", "--idle", "1"]
    code, output = fleet("--url", service.url, *SMALL_FLEET, *slow, *dropouts, "--json", str(out))
    assert code == 0, output
    assert "sum exact" in output
    assert json.loads(out.read_text())["rounds"][0]["dropouts"] == {"masking": 1, "unmasking": 1}


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--dropout-in", "masking"], "dropout_in: masking: must be a number"),
        (["--dropout-in", "lunch=0.1"], "dropout_in: lunch: must be 'convening', "),
        (["--set", "drpout=0.1"], "a fleet has no field 'drpout': did you mean dropout?"),
        (["--set", "zzz=0.1"], "a fleet has no field 'zzz': it has dropout, dropout_in, "),
        (["--drpout", "2"], "Possible options: --dropout, "),
        (["--slow", "2"], "slow: must be from 0 to 0.9, not 2"),
        (["--min-cohort", "few"], "min_cohort: must be a whole number"),
        (["--max-epsilon=nan"], "max_epsilon is a number from 0 up, got nan"),
        (["--repeat-exact=maybe"], "repeat_exact: must be true or false"),
        (["--dropout-in", "enrolling=0.1"], "devices drop out in sharing, checking, masking"),
        (["--dropout-in", "masking=0.95"], "from 0 to 0.9"),
        (["--arrivals", "bursts"], "bursts arrivals need a span"),
        (["--member", "zz"], "--member takes the 64 hexadecimal digits of a public key"),
    ],
)
def test_impossible_options_are_reported(options: list[str], fault: str) -> None:
    code, output = fleet("--create", *options)
    assert code == 2
    assert fault in output


def test_members_of_other_processes_open_the_sums_of_a_new_study(service: ServiceOnPort) -> None:
    """Two of seven members are away: each phase ends without them."""
    members = [Identity.generate(Random(number)) for number in range(7)]
    named = [word for member in members for word in ("--member", member.public.hex())]

    async def serve() -> tuple[int, str]:
        policy = MemberPolicy(min_devices=6)
        present = [(CommitteeMember(each, MemberJournal(), policy), None) for each in members[:5]]
        async with polling(lambda: http_client(service.url), present):
            return await asyncio.to_thread(
                fleet, "--url", service.url, *SMALL_FLEET, "--idle", "0.3", *named
            )

    code, output = asyncio.run(serve())
    assert code == 0, output
    assert "sum exact" in output
    with Analyst(service.url) as analyst:
        committee = next(analyst.studies()).view.terms.committee
    assert committee is not None
    assert committee.members == tuple(member.public.hex() for member in members)
    assert committee.parameters.dropouts == 2
