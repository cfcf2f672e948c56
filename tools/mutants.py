"""Mutation test: lists the small changes of a module that its tests do not notice.

    make mutants                                        # all modules of tools/mutants.toml: hours
    make mutants ARGS="protocol/device_policy/policy.py"         # one module
    make mutants ARGS="--sample 60"                     # 60 mutants of each module, the same ones

cosmic-ray makes the mutants: another comparison, `not` before a condition, another number, and so
on. Two operators are added, which remove a `raise` and a call whose result is not used: an inverted
check fails in every honest run, but only a test of a refusal notices that a check is missing.

Each mutant runs in its own process, forked from one that has imported the libraries. It imports the
changed text instead of the file, so nothing on disk changes. A mutant is killed if a test fails, or
takes too long. `tools/equivalent_mutants.txt` lists mutants that change nothing, with reasons; the
new line `+ another number` stands for all that differ from the old one in its numbers. These kinds
are left out everywhere:

    another size of a cache
    a `zip` that does not check that our own columns have one length
    a private field of a dataclass that its constructor takes
    `reshape(-2)`, which NumPy reads like `reshape(-1)`
    other statuses in the documentation of a route, which `make test-slow` compares with its answers
    another time that a request waits if it names none
"""

import argparse
import importlib
import os
import re
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal

import pytest
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Name

ROOT: Final = Path(__file__).parents[1]
TESTS: Final[Mapping[str, Sequence[str]]] = tomllib.loads(
    (ROOT / "tools" / "mutants.toml").read_text()
)["tests"]
EQUIVALENTS: Final = ROOT / "tools" / "equivalent_mutants.txt"
MIN_KILLED_SHARE: Final = 0.98
_PRELOADED: Final = (
    *("cryptography", "fastapi", "httpx", "hypothesis", "scipy.stats", "sqlalchemy.orm"),
)
_OPERATORS: Final = (
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in (
            *("Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_LtE", "Lt_GtE"),
            *("LtE_Lt", "LtE_Gt", "Gt_GtE", "Gt_LtE", "GtE_Gt", "GtE_Lt"),
        )
    ),
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in ("Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "BitAnd_BitOr")
    ),
    *("AddNot", "ReplaceUnaryOperator_Delete_Not", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer", "ZeroIterationForLoop"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
)
# What makes two lines the same for us: the texts that may differ without any consequence.
_HARMLESS: Final = (
    re.compile(r"cache\(maxsize=[^)]*\)"),  # of functools
    re.compile(r"strict=(True|False)\)|init=(True|False)"),  # of zip, and of a field
    re.compile(r"reshape\(- ?\d+"),
    re.compile(r"problem_responses\([\d, ]*\)|\{ ?\d+: [{_A-Z]"),
    re.compile(r"wait: WaitSeconds = -?\d+"),
)
_ANY_NUMBER: Final = "another number"  # in place of a mutant's new line
_NO_IMPORT_STATUS: Final = 99
_MAX_SLOWDOWN: Final = 5  # of the tests with a mutant, before they count as failed
_MIN_TIMEOUT: Final = 30.0  # seconds
Change = tuple[str, str, str]  # a path, the old line and the new one
Outcome = Literal["killed", "survived", "equivalent", "invalid"]


class RemoveRaise(Operator):
    """Operator that removes a raise statement."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - untyped
        if node.type == "raise_stmt":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:  # noqa: ANN401 - untyped
        del index
        return Name("pass", node.start_pos, prefix=node.get_first_leaf().prefix)

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


class RemoveCall(RemoveRaise):
    """Operator that removes a statement that is only a call."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401 - untyped
        is_statement = node.parent is not None and node.parent.type == "simple_stmt"
        if is_statement and node.type == "atom_expr" and node.get_last_leaf() == ")":
            yield node.start_pos, node.end_pos


@dataclass(frozen=True, slots=True)
class Mutant:
    """Changed text of a module; `change` is the path, the old and the new lines joined."""

    line: int
    change: Change
    source: str

    def __str__(self) -> str:
        path, old, new = self.change
        return f"{path}:{self.line}\n- {old}\n+ {new}"

    @property
    def is_harmless(self) -> bool:
        """Return whether the change is of a kind on which nothing depends, in any module."""
        _, old, new = self.change
        if old.startswith("@dataclass("):  # which guards against ourselves only
            return True
        return any(kind.sub("", old) == kind.sub("", new) for kind in _HARMLESS)

    @property
    def order(self) -> bytes:
        """Return the place in a sample, which changes of other lines leave as it is."""
        return sha256("\n".join(self.change).encode()).digest()


def mutants(path: str) -> Iterator[Mutant]:
    """Yield the mutants of the module at `path`, by line."""
    source, made = (ROOT / path).read_text(), dict[str, Mutant]()
    operators = [get_operator(f"core/{name}")() for name in _OPERATORS]
    for operator in (*operators, RemoveRaise(), RemoveCall()):
        occurrence = 0
        while (changed := mutate_code(source, operator, occurrence)) is not None:
            occurrence += 1
            made.setdefault(changed, _mutant(path, source, changed))
    for mutant in sorted(made.values(), key=lambda mutant: mutant.line):
        if not mutant.is_harmless:
            yield mutant


def _mutant(path: str, source: str, changed: str) -> Mutant:
    old, new = source.splitlines(), changed.splitlines()
    start = _common(old, new)
    end = _common(old[:start:-1], new[:start:-1])  # lines after the change
    texts = (
        " ".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (old, new)
    )
    return Mutant(start + 1, (path, *texts), changed)


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of lines with which both begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


class _MutantLoader(SourceFileLoader):
    """Loader of one module from another text than its file's."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _MutantFinder(MetaPathFinder):
    """Finder of one module, whose text is `source`."""

    def __init__(self, path: str, source: str) -> None:
        self.name = path.removesuffix(".py").replace("/", ".")
        self._path, self._source = str(ROOT / path), source

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        if fullname != self.name:
            return None
        loader = _MutantLoader(fullname, self._path, self._source)
        return spec_from_file_location(fullname, self._path, loader=loader)


def run_tests(path: str, source: str) -> int:
    """Run the tests of the module at `path` with its text replaced; return pytest's status."""
    finder = _MutantFinder(path, source)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(finder.name)
    except Exception:  # the tests would not be what notices it
        return _NO_IMPORT_STATUS
    options = ["-x", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    options += ["-m", "not slow", "--hypothesis-profile", "quick"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of libraries imported before
    return int(pytest.main([*options, *(f"tests/{name}" for name in TESTS[path])]))


def start_tests(path: str, source: str) -> int:
    """Run the tests in a forked process without output; return its id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        os.setsid()  # so that it can be stopped with its own processes
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        status = run_tests(path, source)
    finally:
        os._exit(status)


def measure(path: str) -> float:
    """Return the seconds of a module's tests; exit if they fail without a mutant."""
    started = time.monotonic()
    _, status = os.waitpid(start_tests(path, (ROOT / path).read_text()), 0)
    if status:
        sys.exit(f"{path}: its tests fail without a mutant: {' '.join(TESTS[path])}")
    return time.monotonic() - started


def play(
    path: str, waiting: Sequence[Mutant], jobs: int, timeout: float
) -> Iterator[tuple[Mutant, Outcome]]:
    """Yield each mutant with its outcome; `jobs` processes run at a time."""
    todo, running = list(reversed(waiting)), dict[int, tuple[Mutant, float]]()
    while todo or running:
        while todo and len(running) < jobs:
            mutant = todo.pop()
            running[start_tests(path, mutant.source)] = mutant, time.monotonic() + timeout
        for process, (_, deadline) in running.items():
            if time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(process, signal.SIGKILL)
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            outcome: Outcome = "killed" if status else "survived"
            if os.waitstatus_to_exitcode(status) == _NO_IMPORT_STATUS:
                outcome = "invalid"
            yield running.pop(process)[0], outcome
        else:
            time.sleep(0.02)


def read_equivalents() -> dict[Change, str]:
    """Return the reasons of the equivalent mutants, by their changes."""
    reasons = {}
    for block in EQUIVALENTS.read_text().split("\n\n"):
        lines = block.strip().splitlines()
        if lines and not lines[0].startswith("#"):
            path, old, new, reason = lines[0], lines[1], lines[2], " ".join(lines[3:])
            reasons[path, old.removeprefix("- "), new.removeprefix("+ ")] = reason
    return reasons


def without_numbers(line: str) -> str:
    return re.sub(r"[ -]*\b\d[\d_.]*", "", line)


def listed_as(mutant: Mutant, equivalents: Mapping[Change, str]) -> Change | None:
    """Return the entry of `equivalents` that lists the mutant, None if there is none."""
    path, old, new = mutant.change
    if mutant.change in equivalents:
        return mutant.change
    any_number = path, old, _ANY_NUMBER
    is_listed = any_number in equivalents and without_numbers(old) == without_numbers(new)
    return any_number if is_listed else None


def report(path: str, jobs: int, sample: int | None) -> bool:
    """Run the mutants of a module and print the survivors; return whether enough were killed.

    With a `sample`, run that many mutants at most, the same ones in every run: those of lines that
    did not change stay in it.
    """
    equivalents = read_equivalents()
    made, seconds = list(mutants(path)), measure(path)
    print(f"{path}: {len(made)} mutants; the tests take {seconds:.0f} s", flush=True)
    listed = {mutant: listed_as(mutant, equivalents) for mutant in made}
    unknown = sorted({each for each in equivalents if each[0] == path} - set(listed.values()))
    waiting = [mutant for mutant in made if listed[mutant] is None]
    equivalent = len(made) - len(waiting)
    if sample is not None:
        waiting = sorted(waiting, key=lambda mutant: mutant.order)[:sample]
    counts = dict.fromkeys(("killed", "survived", "invalid"), 0)
    for mutant, outcome in play(path, waiting, jobs, max(_MIN_TIMEOUT, _MAX_SLOWDOWN * seconds)):
        counts[outcome] += 1
        if outcome == "survived":
            print(f"\nsurvived: {mutant}", flush=True)
    counted = counts["killed"] + counts["survived"]
    share = counts["killed"] / counted if counted else 1.0
    print(
        f"\n{path}: {share:.1%} killed of {counted}; {equivalent} equivalent, "
        f"{counts['invalid']} cannot be imported"
    )
    for change in unknown:
        print(f"{EQUIVALENTS.name} lists a mutant that does not exist: {' | '.join(change)}")
    return share >= MIN_KILLED_SHARE and not unknown


def main() -> None:
    parser = argparse.ArgumentParser(description="List the changes that no test notices.")
    parser.add_argument("modules", nargs="*", help="Modules of tools/mutants.toml. [default: all]")
    parser.add_argument("--sample", type=int, metavar="N", help="Mutants of a module at most.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="Processes at a time.")
    options = parser.parse_args()
    for path in options.modules:
        if path not in TESTS:
            parser.error(f"{path} is not in tools/mutants.toml")
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder  # not the one of other test runs
        for name in _PRELOADED:
            importlib.import_module(name)
        are_enough = [
            report(path, options.jobs, options.sample) for path in options.modules or TESTS
        ]
    sys.exit(not all(are_enough))


if __name__ == "__main__":
    main()
