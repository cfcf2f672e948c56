"""Every exception of the five packages passes between processes, with its text and attributes."""

import copy
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import SimpleNamespace

import pytest

from blindtally.datasets.cells import DataError
from blindtally.datasets.file_formats import NotUtf8Error
from blindtally.demo.server_process import StoppedBySignalError
from client.errors import AnalystClosedError, NotFoundError, ServiceError
from client.fleet.fleet import NobodyEnteredError
from protocol.api.messages import Problem, ProblemType
from protocol.arguments import ArgumentsError
from protocol.device_policy.policy import PolicyError
from protocol.privacy.ledger import BudgetError
from secagg.errors import FaultyParticipantError, RecoveryError, UnsafeRequestError
from secagg.oneshot.opening import OpeningError
from server.api.dependencies import PendingError
from server.errors import ProblemError
from server.rounds.cohort_sums import PoisonedSumError

PACKAGES = ("blindtally", "client", "protocol", "secagg", "server")
PROBLEM = Problem(type="about:blank", title="t", status=404, detail="there is no such population")
# Those that are not made of one text.
MAKERS: dict[type[Exception], Callable[[], Exception]] = {
    AnalystClosedError: AnalystClosedError,
    ArgumentsError: lambda: ArgumentsError.of("Utf8", [("missing", "is missing", {}, ("a",))], "a"),
    BudgetError: lambda: BudgetError("too much", ()),
    DataError: lambda: DataError(Path("a.csv"), "is empty", 3),
    NotUtf8Error: lambda: NotUtf8Error(Path("a.csv"), "is empty", 3),
    FaultyParticipantError: lambda: FaultyParticipantError(3, "lies"),
    NobodyEnteredError: lambda: NobodyEnteredError(2, "late", [PolicyError("modes", "asks", 3)]),
    OpeningError: lambda: OpeningError("too few", [1, 2]),
    PendingError: lambda: PendingError(SimpleNamespace(phase="sharing")),  # type: ignore[arg-type]
    PoisonedSumError: lambda: PoisonedSumError("too large", {2: "lied"}),
    PolicyError: lambda: PolicyError("min_cohort", "asks for less", 20),
    ProblemError: lambda: ProblemError(ProblemType.NOT_FOUND, "gone", status=404),
    RecoveryError: lambda: RecoveryError(4, "too few", {1: "lied"}),
    StoppedBySignalError: lambda: StoppedBySignalError(15),
    UnsafeRequestError: lambda: UnsafeRequestError("asks for too much"),
}


def exceptions() -> Iterator[type[Exception]]:
    """Yield the exception classes that our modules define."""
    for name in PACKAGES:
        package = import_module(name)
        for module in walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith(("__main__", "migrations.env")):  # which are programs
                import_module(module.name)
    pending = [Exception]
    while pending:
        for each in pending.pop().__subclasses__():
            pending.append(each)
            if each.__module__.partition(".")[0] in PACKAGES:
                yield each


def made(kind: type[Exception]) -> Exception:
    """Return an error with an attribute and a note, as a program may add them."""
    if kind in MAKERS:
        error = MAKERS[kind]()
    else:
        error = kind(PROBLEM, 2.5) if issubclass(kind, ServiceError) else kind("a text")
    error.add_note("in round 3")
    return error


def shown(error: BaseException) -> tuple[object, ...]:
    return type(error), str(error), error.args, repr(vars(error)), repr(error)


def test_every_exception_survives_copies_with_its_text_and_attributes() -> None:
    kinds = set(exceptions())
    assert len(kinds) > 40
    for kind in kinds:
        error = made(kind)
        copies = [pickle.loads(pickle.dumps(error, number)) for number in range(2, 6)]  # noqa: S301
        for each in (*copies, copy.copy(error), copy.deepcopy(error)):
            assert shown(each) == shown(error)


def _fail(kind: type[Exception]) -> None:
    raise made(kind)


def test_a_pool_of_processes_receives_the_error_of_a_worker() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        for kind in (NotFoundError, DataError, AnalystClosedError, UnsafeRequestError):
            with pytest.raises(kind) as failure:
                pool.submit(_fail, kind).result(timeout=60)
            assert str(failure.value) == str(made(kind))
