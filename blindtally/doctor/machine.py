"""What a machine must have: Python, packages, AES, compiled kernels, room and a clock."""

import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import import_module, metadata
from pathlib import Path
from random import Random, SystemRandom
from typing import Final

import numpy as np
from numba.core.dispatcher import Dispatcher
from packaging.requirements import InvalidRequirement, Requirement

from blindtally.doctor.checks import Check, fault, ok, warning
from client.extras import install
from protocol.domain import Alphabet
from protocol.mechanism import Terms
from protocol.mechanisms import SUMMING
from protocol.mechanisms.tracked import TrackedQuestion
from protocol.simulation import run_study
from secagg.keys import Purpose

_LEAST_PYTHON: Final = (3, 11)
_KERNELS: Final = "protocol.sketches.kernel protocol.sketches.tight_kernel protocol.oracles.kernel"
_EXTRAS: Final = {"demo": "pictures", "postgres": "PostgreSQL", "traces": "traces"}
_SLOW: Final = 1.0  # gigabytes of keystream a second; without instructions for it, 0.2
_LITTLE, _NEXT_TO_NOTHING = 2 * 10**9, 2 * 10**8  # bytes of a disk
_CPU: Final = Path("/proc/cpuinfo")
_CONNECTIONS: Final = 4096  # open files: each device that waits has a connection
_DEVICES: Final = 20


def python() -> Check:
    """Tell the version of Python."""
    found = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if sys.version_info < _LEAST_PYTHON:
        return fault("python", found, "install Python 3.11 or later, and blindtally with it")
    return ok("python", found)


def system() -> Check:
    """Tell the platform."""
    return ok("platform", f"{platform.platform(terse=True)}, {os.cpu_count()} processors")


def packages(required: Iterable[str] | None = None) -> Iterator[Check]:
    """Tell whether what blindtally requires is there, and which of its extras are.

    `required` are requirements, those of the installed blindtally if None.
    """
    try:
        wanted = (metadata.requires("blindtally") or []) if required is None else required
        parsed = [Requirement(text) for text in wanted]
    except (metadata.PackageNotFoundError, InvalidRequirement):
        yield warning("packages", "blindtally is not installed", "pip install blindtally")
        return
    own = [one for one in parsed if one.marker is None or one.marker.evaluate({"extra": ""})]
    wrong = [told for one in own if (told := _lacks(one))]
    if wrong:
        mend = "pip install --upgrade blindtally, or make setup in a checkout"
        yield fault("packages", "; ".join(wrong), mend)
    else:
        yield ok("packages", f"blindtally {_version('blindtally')} and {len(own)} that it needs")
    for extra, what in _EXTRAS.items():
        more = [one for one in parsed if one not in own and _is_of(extra, one)]
        lacking = [told for one in more if (told := _lacks(one))]
        if lacking:
            yield ok(f"[{extra}]", f"no {what}: {', '.join(lacking)} ({install(extra)})")
        elif more:
            yield ok(f"[{extra}]", ", ".join(f"{one.name} {_version(one.name)}" for one in more))


def _is_of(extra: str, wanted: Requirement) -> bool:
    return wanted.marker is not None and wanted.marker.evaluate({"extra": extra})


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "?"


def _lacks(wanted: Requirement) -> str:
    """Return what is wrong about a package, nothing if it is as it is wanted."""
    try:
        found = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted.name} is missing"
    if wanted.specifier.contains(found, prereleases=True):
        return ""
    return f"{wanted.name} is {found}, {wanted.specifier} is wanted"


def aes(cpuinfo: Path = _CPU) -> Check:
    """Tell how fast masks are made, and whether the processor has instructions for it."""
    block, stream = np.empty(2**20, np.uint32), Purpose(bytes(32), "mask", 0, 1).stream(bytes(32))
    times = []
    for _ in range(5):
        began = time.perf_counter()
        stream.fill(block)
        times.append(time.perf_counter() - began)
    speed = block.nbytes / min(times) / 1e9
    try:
        words = set(cpuinfo.read_text(encoding="ascii", errors="replace").split())
        flag = "with AES instructions" if "aes" in words else "no AES instructions"
    except OSError:
        flag = "the processor's flags cannot be read here"
    found = f"{speed:.1f} GB of masks a second and thread, {flag}"
    if speed >= _SLOW:
        return ok("AES", found)
    mend = "masks are slow: give a virtual machine its host's processor type, or take another one"
    return warning("AES", found, mend)


def kernels() -> Check:
    """Tell where the compiled kernels are kept, and whether they can be."""
    compiled = [
        one
        for name in _KERNELS.split()
        for one in vars(import_module(name)).values()
        if isinstance(one, Dispatcher)
    ]
    told = {one.stats.cache_path for one in compiled}
    places = sorted(Path(place) for place in told if place is not None)
    mend = "each process compiles them again: set NUMBA_CACHE_DIR to a folder that it may write to"
    if None in told:
        return warning("kernels", "compiled kernels are kept nowhere", mend)
    for place in places:
        there = next(one for one in (place, *place.parents) if one.exists())
        if not os.access(there, os.W_OK):
            return warning("kernels", f"{place} cannot be written", mend)
    kept = sum(len([*place.glob("*.nbc")]) for place in places)
    state = f"{kept} compiled" if kept else "not compiled yet, which takes half a minute once"
    return ok("kernels", f"{state}, in {', '.join(map(str, places))}")


def secure_sum() -> Check:
    """Tell whether devices in memory are summed securely, and the sum is read."""
    question = TrackedQuestion(
        threshold=2, contribution=1, domain=Alphabet(characters="abcdefgh", length=3), words=400
    )
    terms = Terms(cohort_size=_DEVICES, minimum=_DEVICES // 2)
    people = [[[{"abc": 1} if number % 2 else {"fed": 1} for number in range(_DEVICES)]]]
    began = time.perf_counter()
    study = run_study(
        SUMMING["tracked"],
        question,
        terms,
        people,
        Random(SystemRandom().getrandbits(64)),
        planned=1,
        secure=True,
    )
    (outcome,) = study
    found = {one.item: one.count for one in SUMMING["tracked"].conclude(question, outcome.tally)}
    told = f"{_DEVICES} devices in memory, {time.perf_counter() - began:.1f} s"
    if found != {"abc": _DEVICES / 2, "fed": _DEVICES / 2}:
        mend = "report it, with the output of blindtally doctor --json -"
        return fault("secure sum", f"wrong, among {told}: {found}", mend)
    return ok("secure sum", f"exact, among {told}")


def disk(folder: Path, what: str) -> Check:
    """Tell the room that is left in `folder`, which is there for `what`."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return fault("disk", f"{folder}: {error.strerror}", f"name another folder for {what}")
    found = f"{free / 1e9:,.1f} GB free in {folder}, for {what}"
    if free < _NEXT_TO_NOTHING:
        return fault("disk", found, "make room: a round of 1,000 devices may take 1 GB")
    if free < _LITTLE:
        return warning("disk", found, "make room: a round of 1,000 devices may take 1 GB")
    return ok("disk", found)


def open_files() -> Check:
    """Tell how many connections a process may have."""
    try:
        import resource  # noqa: PLC0415 - not on every platform
    except ImportError:
        return ok("open files", "not limited here")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} a process, {hard:,} if asked for"
    if soft < _CONNECTIONS:
        mend = f"for more devices than that at a time: ulimit -n {_CONNECTIONS}"
        return warning("open files", found, mend)
    return ok("open files", found)


def clock(now: datetime | None = None) -> Check:
    """Tell the time, and whether it is before this program was installed."""
    now = now or datetime.now(UTC)
    made = datetime.fromtimestamp(Path(__file__).stat().st_mtime, UTC)
    found = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < made:
        what = f"{found}, before this program was installed ({made:%Y-%m-%d %H:%M})"
        return fault("clock", what, "set the clock: timedatectl set-ntp true, or chronyd")
    return ok("clock", found)
