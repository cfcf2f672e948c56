"""What a study will find and take, for the page that creates studies: by the commands that tell.

`blindtally plan` simulates for seconds and `blindtally params` measures, so each is a process of
its own, at a low priority, of bounded memory, and killed when it takes too long: the service goes
on meanwhile. This
module is what it runs: it reads nothing, and ends when its input does, which is when the service
dies, in whatever way.
"""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from protocol.hashed import Hashed
from protocol.mechanisms import REPORTING, SUMMING, AnyPlan
from server.pages.advising import Line, planned
from server.pages.words import nbytes, short

_DEVICES: Final = range(10, 10**6 + 1)  # that `blindtally plan` simulates
_ROUNDS: Final = range(1, 1000 + 1)
_RUNS: Final = 2
_PATIENCE: Final = 50.0  # seconds for both: the page waits 60
_NICE: Final = 10
_MOST_MEMORY: Final = 2**31  # bytes: it takes some 300 MB
_WORD: Final = 4  # bytes


async def predict(plan: AnyPlan) -> Sequence[Line]:
    """Return what is predicted of the study that `plan` begins.

    Raises:
        RuntimeError: if a command fails; says what it said.
        TimeoutError: if one takes too long.
    """
    async with asyncio.timeout(_PATIENCE):
        return await _predict(plan)


async def _predict(plan: AnyPlan) -> list[Line]:
    lines, study = list[Line](), _study(plan)
    if study and plan.terms.devices in _DEVICES and plan.rounds in _ROUNDS:
        lines += _found(plan, await _ask("plan", *study))
    elif study:
        most = f"{_DEVICES[0]} to {_DEVICES[-1]:,} devices and {_ROUNDS[-1]:,} rounds at most"
        lines.append(Line("F1", "not simulated", f"studies of {most} are"))
    if plan.mechanism not in REPORTING:
        lines += _taken(await _ask("params", *_words(_cohort(plan))))
    return lines


def _study(plan: AnyPlan) -> list[str]:
    """Return what `blindtally plan` is asked; nothing if it cannot tell."""
    options = planned(plan)
    if options is None:
        return []
    if isinstance(plan.question.domain, Hashed):
        options["max-bytes"] = plan.question.domain.max_bytes
    return _words(options | {"runs": _RUNS})


def _cohort(plan: AnyPlan) -> dict[str, Any]:
    terms, words = plan.terms, SUMMING[plan.mechanism].ring(plan).nbytes // _WORD
    return {
        "clients": terms.cohort_size,
        "corrupt": terms.corrupt,
        "dropout": terms.dropout,
        "mode": terms.mode,
        "words": words,
    }


def _words(options: dict[str, Any]) -> list[str]:
    """Return options as a command line has them: numbers in full, whatever their size."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _found(plan: AnyPlan, told: dict[str, Any]) -> list[Line]:
    lines = []
    for one in told["predictions"]:
        who = "" if one["mechanism"] == plan.mechanism else f" by {one['mechanism']}"
        f1 = f"{one['f1']:.2f} ± {one['deviation']:.2f}"
        lines += [
            Line(f"F1{who}", f1, "of simulated studies: 100,000 items, shares as 1 / rank"),
            Line(f"Rounds read{who}", short(one["rounds_read"]), f"of {plan.rounds}"),
            Line(f"A device hears{who}", nbytes(one["download"]), "a plan, at most"),
        ]
    for goal, words in told["words"].items():
        enough = "more than 200,000" if words is None else f"about {words:,.0f}"
        lines.append(Line(f"Words for an F1 of {goal}", enough, "by tracked"))
    return lines


def _taken(told: dict[str, Any]) -> list[Line]:
    spent = {who: sum(told[f"seconds_of_{who}"].values()) for who in ("device", "server")}
    lossy = sum(told["seconds_of_server_with_losses"].values())
    return [
        Line("A device computes", _seconds(spent["device"]), "a round, on a core like ours"),
        Line(
            "The server computes",
            _seconds(spent["server"]),
            f"a cohort; {_seconds(lossy)} with {told['dropout']:.0%} lost",
        ),
    ]


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


async def _ask(command: str, *options: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", __name__, command, *options, "--json", "-"),
        stdin=asyncio.subprocess.PIPE,  # held open, and nothing said: see `_end_with_service`
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with suppress(ProcessLookupError):  # it has failed already
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    try:
        told, complaint = await _read(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise RuntimeError(f"blindtally {command}: {complaint.decode(errors='replace').strip()}")
    answer: dict[str, Any] = json.loads(told)
    return answer


async def _read(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Return all that a process says; `communicate` would end its input at once."""
    if process.stdout is None or process.stderr is None:
        raise RuntimeError("a process without pipes")
    told, complaint = await asyncio.gather(process.stdout.read(), process.stderr.read())
    await process.wait()
    return told, complaint


def _end_with_service() -> None:
    while os.read(0, 1):  # not by `sys.stdin`, whose lock would outlast the program
        pass
    os._exit(1)


def bound_memory(most: int) -> None:
    """Let this process have so many bytes of its own; for more, a MemoryError. No-op on Windows."""
    with suppress(ImportError):
        import resource  # noqa: PLC0415 (not everywhere)

        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


if __name__ == "__main__":
    from blindtally.cli import app

    bound_memory(_MOST_MEMORY)
    Thread(target=_end_with_service, daemon=True).start()
    app(prog_name="blindtally")
