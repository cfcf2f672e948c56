"""The command `try`: a study of a user's own file, and a page that stays on a terminal."""

import json
import os
import pty
import re
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.guesses import guess_dataset
from blindtally.demo.own_file import Trial
from blindtally.demo.run import _own_command
from protocol.printable import check_name


def write(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    (folder / "my.csv").write_bytes(text.encode(encoding))
    return folder / "my.csv"


def rows(header: str, values: list[str], users: int = 80) -> str:
    return f"{header}\n" + "".join(f"u{n},{values[n % len(values)]}\n" for n in range(users))


ANSWERS, NUMBERS = ["yes", "no", "maybe"], [str(n) for n in range(40)]
TEXTS = [f"a long {letter * 2}" for letter in "abcdefghijklmnop"]


@pytest.mark.parametrize(
    ("column", "values", "epsilon", "mechanism", "domain"),
    [
        ("found", ANSWERS, None, "tracked", "listed"),
        ("found", TEXTS, None, "tracked", "utf8"),
        ("found", [text * 9 for text in TEXTS], None, "tracked", "hashed"),
        ("found_id", NUMBERS, None, "tracked", "utf8"),
        ("found", NUMBERS, None, "number-sums", "interval"),
        ("found", [f"1.{'0' * n}" for n in range(1, 41)], None, "tracked", "hashed"),  # equal
        ("found", ["0" + number for number in NUMBERS], None, "tracked", "utf8"),
        ("found", ANSWERS, 1.0, "count-median", "listed"),
        ("found", TEXTS, 1.0, "count-median", "listed"),
        ("found", NUMBERS, 1.0, "hierarchical-histogram", "interval"),
    ],
)
def test_the_question_follows_from_the_data(
    column: str, values: list[str], epsilon: float, mechanism: str, domain: str, tmp_path: Path
) -> None:
    path = write(tmp_path, rows(f"user,{column}", values))
    setup = Trial(path=path, epsilon=epsilon, kind="one-shot").setup()
    assert (setup.question.mechanism, setup.question.domain.kind) == (mechanism, domain)
    assert setup.terms.sum == "one-shot"
    assert setup.rounds * setup.fleet_config.devices == 80
    assert column in setup.name


@pytest.mark.parametrize(
    ("text", "encoding", "fault"),
    [
        (
            rows("user,age", [*NUMBERS, "123456789"]),
            "utf-8",
            "most numbers are from 2 to 38, and all",
        ),
        (rows("user,answer", ANSWERS, users=12), "utf-8", "12 users: at least 20 are needed"),
        ("query\nripe pear\nfig\n", "utf-8", "one column only: add --column query"),
        ("who,what,fruit\na,x,fig\na,x,fig\n", "utf-8", "--column what or --column fruit"),
        (rows("user,preis", NUMBERS).replace(",", ";").replace("3\n", "3,5\n"), "utf-8", "comma"),
        ("имя,товар\nаня,чай\n", "cp1251", "is not UTF-8"),
    ],
)
def test_an_error_states_what_would_have_sufficed(
    text: str, encoding: str, fault: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=fault):
        Trial(path=write(tmp_path, text, encoding)).setup()


def test_a_value_that_is_no_number_among_numbers_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, rows("user,ms", [*NUMBERS, "1e400"]))
    assert Trial(path=path).setup().question.mechanism == "tracked"
    assert "'1e400' in ms is no number" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ['"Favourite\nfruit"', "fruit\u200b", "fruit\x1b[2J", "fruit " * 60]
)
def test_any_name_of_a_column_can_be_in_the_name_of_a_study(name: str, tmp_path: Path) -> None:
    study = Trial(path=write(tmp_path, rows(f"user,{name}", ANSWERS))).setup().name
    assert "fruit" in check_name(study)
    assert len(study) <= 200


def test_users_are_guessed_and_spreadsheets_have_their_encoding(tmp_path: Path) -> None:
    path = write(tmp_path, "date;wer;was\n1;a;café\n2;a;thé\n2;b;thé\n", "cp1252")
    for column in (None, "was"):
        dataset, report = guess_dataset(path, column)
        assert isinstance(dataset, DeviceHistograms)
        assert [dict(each) for each in dataset] == [{"café": 1, "thé": 1}, {"thé": 1}]
        assert report.columns["user"] == "wer"
        assert report.notes == ["is not UTF-8, so it was read as Windows-1252, as in 'café'"]


def test_on_a_terminal_the_page_stays_until_ctrl_c_and_nothing_is_left(tmp_path: Path) -> None:
    path, answer = write(tmp_path, rows("user,answer", ANSWERS, 30)), tmp_path / "answer.json"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "CI": ""}
    process, terminal = pty.fork()
    if process == 0:
        program = [sys.executable, "-m", "blindtally", "try", str(path), "--json", str(answer)]
        os.execve(program[0], program, environment)  # noqa: S606 - our own program
    shown = ""
    while not (stays := re.search(r"stays until you press Ctrl-C: (http://\S+)\s", shown)):
        shown += os.read(terminal, 9999).decode(errors="ignore")
    with urlopen(stays[1], timeout=30) as page:  # noqa: S310 - of this machine
        assert "yes" in page.read().decode()
    os.write(terminal, b"\x03")
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert {each.name for each in tmp_path.iterdir()} == {"my.csv", "answer.json"}
    first, second = json.loads(answer.read_text())["answer"]
    assert first == "3 options were counted at 5 or more of 30 devices; maybe at 10 of them (33%)."
    assert second.startswith("The server saw one sum, of 30 devices;")


def test_the_command_that_opens_the_page_again_is_found_without_the_path_of_uv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "blindtally"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert _own_command() == "blindtally"
    monkeypatch.setenv("UV", "uv")
    assert _own_command() == "bin/blindtally"
    monkeypatch.setattr(sys, "argv", ["/x/blindtally/__main__.py"])
    assert _own_command() == f"{sys.executable} -m blindtally"
