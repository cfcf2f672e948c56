"""Time, memory and modules until a program starts, and the size of an installation.

    python -m benchmarks.startup_and_install_size [--runs N] [--install EXTRAS ...] [--json PATH]

Each program runs once to compile its modules, and then N times. `s` is the shortest time, `CPU s`
the smallest CPU time, which other work disturbs less, and `MiB` the peak of resident
memory; the reference is `python -c pass`. `plan` counts until its first prediction, from which on
it is stopped; `serve` until it announces its address, on a new SQLite database. A second table has
the goals: a ratio above 1 is missed. `take_part, first call` includes the modules that the import
leaves to it.

`--install` makes a virtual environment without pip for each argument, installs this source into
it ("" for none of the extras, or such as "server,postgres"), and prints its megabytes on disk.
Compiled modules (`.pyc`) count, and files of the Python outside the environment do not.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.harness import BenchmarkRow, argument_parser, report

_ROOT: Final = Path(__file__).parents[1]
_CLI: Final = ("-m", "blindtally")
_PLAN: Final = "plan --devices 2000 --rounds 10 --threshold 50 --words 500 --domain alphabet"


@dataclass(frozen=True, slots=True)
class Program:
    """Arguments of Python, and the text of a line at which the program has started, if any."""

    name: str
    arguments: tuple[str, ...]
    started_line: str | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds, CPU seconds and MiB of one start."""

    seconds: float
    cpu: float
    mebibytes: float


_BARE: Final = Program("python -c pass", ("-c", "pass"))
_NUMPY: Final = Program("import numpy", ("-c", "import numpy"))
_SDK: Final = Program(
    "Analyst, Device, take_part", ("-c", "from blindtally import Analyst, Device, take_part")
)
_FIRST_CALL: Final = Program(
    "take_part, first call", ("-c", "from blindtally import take_part; take_part.__wrapped__")
)
_DEMO: Final = Program("demo, start to answer", (*_CLI, "demo", "--out", "results"), "Counted at")
_PROGRAMS: Final = (
    _NUMPY,
    Program("import blindtally", ("-c", "import blindtally")),
    _SDK,
    _FIRST_CALL,
    Program("blindtally --help", (*_CLI, "--help")),
    *(Program(f"{name} --help", (*_CLI, name, "--help")) for name in ("serve", "fleet", "demo")),
    Program("params", (*_CLI, "params", "--devices", "1000")),
    Program("plan, first prediction", (*_CLI, *_PLAN.split(), "--items", "5000"), "F1 about"),
    Program("serve, ready", (*_CLI, *["serve", "--open", "--port", "0"]), "blindtally serves"),
)


def start_once(program: Program) -> Start:
    """Start `program` in an empty folder, and stop it at its line.

    Raises:
        RuntimeError: if it fails, or ends without its line.
    """
    with TemporaryDirectory() as folder:
        began = time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - arguments of this file
            [sys.executable, *program.arguments],
            cwd=folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        line = program.started_line
        is_started = any(line in text for text in process.stdout) if line else False
        if is_started:
            process.kill()
        process.stdout.read()
        seconds = time.perf_counter() - began
        _, status, usage = os.wait4(process.pid, 0)
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    if is_started is (line is None) or not (is_started or process.returncode == 0):
        raise RuntimeError(f"{program.name} failed with {process.returncode}")
    return Start(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def count_modules(program: Program) -> int:
    """Return the number of modules that `program` imports until it ends."""
    command = [sys.executable, "-X", "importtime", *program.arguments]
    done = subprocess.run(  # noqa: S603 - arguments of this file
        command, env=_environment(), capture_output=True, check=True, text=True
    )
    return sum(line.startswith("import time:") for line in done.stderr.splitlines()) - 1


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(_ROOT)}


def start_rows(runs: int) -> Iterator[BenchmarkRow]:
    """Yield the figures of each program next to those of the bare interpreter."""
    bare = _best(_BARE, runs)
    bare_modules = count_modules(_BARE)
    for program in (_BARE, *_PROGRAMS):
        best = _best(program, runs)
        yield BenchmarkRow(program.name, best.seconds, "s", bare.seconds)
        yield BenchmarkRow(program.name, best.cpu, "CPU s", bare.cpu)
        yield BenchmarkRow(program.name, best.mebibytes, "MiB", bare.mebibytes)
        if program.started_line is None:
            yield BenchmarkRow(program.name, count_modules(program), "modules", bare_modules)


def goal_rows(runs: int, base_megabytes: float | None) -> Iterator[BenchmarkRow]:
    """Yield the figures that have a goal, next to it."""
    numpy = _best(_NUMPY, runs).cpu
    for program in (_SDK, _FIRST_CALL):
        ratio = _best(program, runs).cpu / numpy
        yield BenchmarkRow(f"{program.name} / {_NUMPY.name}", ratio, "CPU", 4.0)
    yield BenchmarkRow(_DEMO.name, start_once(_DEMO).seconds, "s", 15.0)
    if base_megabytes is not None:
        yield BenchmarkRow("installed []", base_megabytes, "MB", 130.0)


def _best(program: Program, runs: int) -> Start:
    start_once(program)  # compiles
    starts = [start_once(program) for _ in range(runs)]
    return Start(
        min(start.seconds for start in starts),
        min(start.cpu for start in starts),
        max(start.mebibytes for start in starts),
    )


def installed_megabytes(extras: str) -> float:
    """Return the size of a new environment with this source and its `extras`."""
    with TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        source = f"{_ROOT}[{extras}]" if extras else str(_ROOT)
        _run(sys.executable, "-m", "venv", "--without-pip", folder)
        _run(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", source)
        files = (path for path in Path(folder).rglob("*") if not path.is_symlink())
        return sum(path.stat().st_blocks * 512 for path in files) / 1e6


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=int, default=5, help="Number of measured starts.")
    parser.add_argument("--install", nargs="*", default=[], help="Extras to install and weigh.")
    options = parser.parse_args(arguments)
    rows = list(start_rows(options.runs))
    sizes = {extras: installed_megabytes(extras) for extras in options.install}
    rows += [BenchmarkRow(f"installed [{name}]", size, "MB") for name, size in sizes.items()]
    report(rows, "python -c pass", options.json)
    report([*goal_rows(options.runs, sizes.get(""))], "goal", None)


if __name__ == "__main__":
    main()
