"""The public names of `blindtally`: lazy, typed, and not shadowed by a user's files."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

import blindtally
from blindtally import errors

SOURCE = ast.parse(Path(blindtally.__file__).read_text())
USER_PACKAGES = ("client", "protocol", "secagg")


def run(folder: Path, *arguments: str, stdin: str = "") -> str:
    """Return the output of Python in `folder`, of both streams."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def test_each_name_is_that_of_its_module_and_of_the_type_checkers() -> None:
    (typed,) = [node for node in SOURCE.body if isinstance(node, ast.If)]
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == blindtally._SOURCES
    assert sorted(imported) == sorted(blindtally.__all__)
    for name, (_, source) in imported.items():
        assert getattr(blindtally, name).__name__ == source


def test_names_are_listed_before_their_first_use() -> None:
    assert {*blindtally.__all__, "__doc__"} <= set(dir(blindtally))
    with pytest.raises(AttributeError, match="no attribute 'Analist'"):
        blindtally.Analist  # noqa: B018 - it raises


def test_all_errors_of_clients_are_public() -> None:
    assert all(issubclass(vars(errors)[name], Exception) for name in errors.__all__)
    known = {"ServiceError"} | {each.__name__ for each in errors.ServiceError.__subclasses__()}
    assert known <= set(errors.__all__)


@pytest.mark.parametrize(
    "code", ["import blindtally", "from blindtally import Analyst, AsyncAnalyst, Device, take_part"]
)
def test_a_program_starts_without_the_modules_that_take_long(code: str, tmp_path: Path) -> None:
    slow = ["numpy", "pydantic", "httpx", "cryptography", "stamina", "rich"]
    check = f"import sys\n{code}\nprint([name for name in {slow} if name in sys.modules])"
    assert run(tmp_path, "-c", check) == "[]\n"


@pytest.mark.parametrize("name", [*USER_PACKAGES, "server"])
def test_a_program_may_have_the_name_of_a_package(name: str, tmp_path: Path) -> None:
    """Import ours next to files such as those of the quickstarts of Flower."""
    for other in (*USER_PACKAGES, "server"):
        (tmp_path / f"{other}.py").write_text("raise SystemExit('imported by mistake')")
    program = tmp_path / f"{name}.py"
    program.write_text("from blindtally import Analyst, Tracked\nprint(Tracked.__name__)")
    assert run(tmp_path, program.name) == "TrackedQuestion\n"


def test_the_command_line_starts_next_to_files_of_its_packages_names(tmp_path: Path) -> None:
    for other in (*USER_PACKAGES, "server"):
        (tmp_path / f"{other}.py").write_text("raise SystemExit('imported by mistake')")
    assert "Show the version" in run(tmp_path, "-m", "blindtally", "--help")
    assert "revoke" in run(tmp_path, "-m", "blindtally", "keys", "--help")


@pytest.mark.parametrize(
    "program",
    [
        "import client\nfrom blindtally import Analyst",
        "from blindtally import Analyst\nfrom client import helper",
        "from blindtally import Analyst\nimport client\nclient.helper",
    ],
)
def test_the_error_names_the_file_that_python_cannot_import_as_well(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "client.py").write_text("helper = 1")
    (tmp_path / "app.py").write_text(program)
    error = run(tmp_path, "app.py").splitlines()[-1]
    assert "ShadowedPackageError" in error
    assert f"{tmp_path / 'client.py'} has the name of 'client'" in error
    assert "rename that file" in error


@pytest.mark.parametrize("name", ["protocol", "server"])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_app_has_its_own_modules_and_a_local_service_or_the_error_names_the_file(
    name: str, is_first: bool, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.py").write_text("helper = 1")
    lines = [f"from {name} import helper", "from blindtally import LocalService; LocalService()"]
    (tmp_path / "app.py").write_text("\n".join(lines if is_first else lines[::-1]))
    error = run(tmp_path, "app.py").splitlines()[-1]
    assert f"ShadowedPackageError: {tmp_path / name}.py has the name of {name!r}" in error


def test_a_folder_without_modules_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "client").mkdir()
    assert (
        run(tmp_path, "-c", "from blindtally import Policy; print(Policy.__name__)") == "Policy\n"
    )


def build_wheel(source: Path, folder: Path, compiler: str = "cc") -> Path:
    """Build a wheel of the package in `source`, and return the `folder` that then has it."""
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    build = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
    subprocess.run(build, check=True, capture_output=True, env=os.environ | {"CC": compiler})
    return folder


def wheel_environment(folder: Path, compiler: str = "cc") -> Path:
    """Return the Python of a new environment, into which our wheel is installed."""
    root, source = Path(__file__).parents[2], folder / "source"
    made = shutil.ignore_patterns("__pycache__", "*.so", "*.c")
    for package in ("blindtally", "client", "protocol", "secagg", "server"):
        shutil.copytree(root / package, source / package, ignore=made, dirs_exist_ok=True)
    for file in ("README.md", "LICENSE", "pyproject.toml", "setup.py"):
        shutil.copy(root / file, source)
    build_wheel(source, folder, compiler)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (wheel,) = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, site], check=True)
    (dependencies,) = {path for path in sys.path if path.endswith("site-packages")}
    (site / "dependencies.pth").write_text(dependencies)
    return folder / "env" / "bin" / "python"


@pytest.mark.slow
def test_a_wheel_has_our_packages_as_they_are_now_with_their_types(tmp_path: Path) -> None:
    source = tmp_path / "source"
    old = source / "protocol" / "old.py"
    for place in (
        old,
        source / "blindtally-demo-1" / "results.svg",
        source / "server_backup" / "a.py",
    ):
        place.parent.mkdir(parents=True)
        place.touch()
    python = wheel_environment(tmp_path)
    check_types_and_names(tmp_path, python)
    old.unlink()
    assert list(tmp_path.glob("env/lib/*/site-packages/protocol/**/*.so"))
    (wheel,) = build_wheel(source, tmp_path / "again", "missing").glob("*.whl")
    names = ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        *("blindtally", "client", "protocol", "secagg", "server")
    }
    assert "protocol/old.py" not in names
    suffixes = {".br", ".pyi", ".html", ".mako", ".gz", ".js", ".json"}
    assert {Path(name).suffix for name in names} >= suffixes


@pytest.mark.slow
def test_an_installation_without_a_c_compiler_gives_the_same_answers_and_reports_that_it_is_slower(
    tmp_path: Path,
) -> None:
    python = wheel_environment(tmp_path, compiler="missing")
    assert not list(tmp_path.glob("env/lib/*/site-packages/protocol/**/*.so"))

    def output_of(program: str | Path, *arguments: str) -> str:
        command = [program, "-m", "blindtally", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, text=True)
        return done.stdout + " ".join(done.stderr.split())

    for mechanism in ("tracked", "ocms --epsilon 2"):
        command = f"simulate {mechanism} --data short --rounds 2 --devices 300 --json -"
        assert output_of(python, *command.split()) == output_of(sys.executable, *command.split())
    assert "read by numpy, several times slower" in output_of(python, "doctor")


@pytest.mark.slow
def test_a_study_runs_with_the_lowest_versions_of_all_dependencies(tmp_path: Path) -> None:
    # The environment of the tests has the newest ones.
    root, python = Path(__file__).parents[2], tmp_path / "env" / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run(
        [*uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "env"], check=True
    )
    lowest = ["--resolution", "lowest-direct", f"{root}[demo]"]
    install = [*uv, "pip", "install", "--quiet", "--python", python, *lowest]
    subprocess.run(install, check=True, env=os.environ | {"CC": "missing"})
    versions = "import numpy, fastapi; print(numpy.__version__, fastapi.__version__)"
    printed = subprocess.run([python, "-c", versions], check=True, capture_output=True, text=True)
    bounds = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    declared = [*bounds["dependencies"], *bounds["optional-dependencies"]["server"]]
    for name, version in zip(("numpy", "fastapi"), printed.stdout.split(), strict=True):
        assert any(version.startswith(each.removeprefix(f"{name}>=")) for each in declared)
    demo = [python, "-m", "blindtally", "demo", "--devices", "30", "--rounds", "1"]
    subprocess.run([*demo, "--out", tmp_path / "demo"], check=True, cwd=tmp_path)


USER_PROGRAM = """
from blindtally import (
    Analyst, AsyncAnalyst, Device, DeviceState, Hashed, HeavyHitter, ParticipationOutcome, Policy,
    QualityGoal, ResultTable, Terms, Tracked, TrieHH, Utf8, take_part,
)
from blindtally.errors import ServiceError

URL = "http://127.0.0.1:8000"


def items(rows: ResultTable[HeavyHitter]) -> list[str]:
    return [row.item for row in rows]


def ask() -> list[str]:
    domain = Hashed(max_bytes=200)
    question = Tracked(threshold=20, contribution=3, domain=domain, message_bytes="auto")
    with Analyst(URL) as analyst:
        goal = QualityGoal(precision=0.9, recall=0.9)
        study = analyst.create("words", question, devices=200, stop_at=goal)
        try:
            return items(study.heavy_hitters())
        except ServiceError as error:
            return [error.message]


def give() -> None:
    state = DeviceState.in_memory()
    with Device(URL, Policy(min_cohort=20), device_state=state) as device:
        for outcome in device.take_part(["hello"], on_progress=print):
            print(outcome.left_out)


async def more() -> tuple[ParticipationOutcome, ...]:
    async with AsyncAnalyst(URL) as analyst:
        reveal_type((await analyst.study("x")).view.question)
    return await take_part(URL, ["hello"])


wrong: int = Policy().min_cohort + Terms
"""


def check_types_and_names(tmp_path: Path, python: Path) -> None:
    """Check the public types and names of a wheel that is installed for `python`."""
    program = tmp_path / "client.py"
    program.write_text("import blindtally.errors as e\nprint(e.__file__)\nprint(e.PolicyError)")
    printed = subprocess.run([python, program], check=True, capture_output=True, text=True).stdout
    assert printed.splitlines() == [
        str(next((tmp_path / "env").glob("lib/python*/site-packages/blindtally/errors.py"))),
        "<class 'protocol.device_policy.policy.PolicyError'>",
    ]
    program = tmp_path / "program.py"
    program.write_text(USER_PROGRAM)
    cache = Path(__file__).parents[2] / ".mypy_cache" / "installed"  # of the dependencies
    options = ["--strict", "--python-executable", python, "--cache-dir", cache]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *options, program.name],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    lines = checked.stdout.splitlines()
    assert "client.analyst" not in checked.stdout
    assert "Question" in lines[0], checked.stdout  # also of plug-ins, and not Any
    assert "Unsupported operand types" in lines[1]
    assert lines[2:] == ["Found 1 error in 1 file (checked 1 source file)"]
