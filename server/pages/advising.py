"""What a study will ask of a device, and what it will find, told while its form is filled.

Bytes, parameters and errors follow from the first plan. How many items a study will find takes a
simulation of seconds, so it is told when it is asked for, by whoever serves (`create_app`): one
at a time, in another process.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from typing import Any, Final

import structlog
from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from protocol.mechanisms import REPORTING, AnyPlan
from protocol.mechanisms.local import LocalPlan
from protocol.mechanisms.releasing import ReleasePlan
from secagg.parameters import parameters
from server.api.creation import all_faults, limits_of
from server.api.rights import needs
from server.pages.faulting import in_words, sorted_out
from server.pages.guarding import Page, form_of
from server.pages.history import Load
from server.pages.kinds import NAME, document_of, kind_of
from server.pages.view import view
from server.pages.words import items_of, nbytes, number, percent, short
from server.principals import Right
from server.refusals import Refusal
from server.service import Served, Service
from server.store.asking import Asked, first_plan
from server.watch import Watch

router = APIRouter(
    prefix="/studies/new",
    route_class=Page,
    include_in_schema=False,
    dependencies=[needs(Right.WRITE)],
)
_BUSY: Final = "another prediction is being worked out: ask again in a moment"
_STOPPING: Final = "the service is stopping: ask again in a moment"
_FAILED: Final = "it could not be worked out: the log of the service says why"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of advice."""

    what: str
    value: str
    note: str = ""


Predict = Callable[[AnyPlan], Awaitable[Sequence[Line]]]


class Predictor:
    """Asks `predict` what the study of a plan will find, once at a time; None: nobody can tell."""

    def __init__(self, predict: Predict | None) -> None:
        self._predict = predict
        self._turn = asyncio.Lock()

    @property
    def is_there(self) -> bool:
        """Return whether it can be asked."""
        return self._predict is not None

    async def ask(self, plan: AnyPlan, watch: Watch) -> tuple[Sequence[Line], str]:
        """Return what is predicted, or why nothing is; a service that stops does not wait for it.

        Whatever predicts is over when this returns.
        """
        if self._predict is None or self._turn.locked():
            return (), _BUSY
        async with self._turn:
            work = asyncio.ensure_future(self._predict(plan))
            stop = asyncio.create_task(watch.released())
            try:
                await asyncio.wait((work, stop), return_when=asyncio.FIRST_COMPLETED)
                return (await work, "") if work.done() else ((), _STOPPING)
            except Exception:
                _log.exception("no prediction", mechanism=plan.mechanism)
                return (), _FAILED
            finally:
                work.cancel()
                stop.cancel()
                await asyncio.gather(work, stop, return_exceptions=True)


@router.post("/advice")
async def advise(request: Request, service: Served) -> Response:
    """Say what a study would ask of a device, as far as the form is filled."""
    plan, why = await _asked(await form_of(request), service)
    if plan is None:
        return view(request, "advice.html", why=why)
    lines = await asyncio.to_thread(_advice, plan)
    predicts = request.app.state.predictor.is_there
    command = _command(plan)
    return view(request, "advice.html", lines=lines, why="", command=command, predicts=predicts)


@router.post("/prediction")
async def predict(request: Request, service: Served) -> Response:
    """Say what the study that the form asks for would find, and what it would take."""
    plan, why = await _asked(await form_of(request), service)
    lines: Sequence[Line] = ()
    if plan is not None:
        lines, why = await request.app.state.predictor.ask(plan, service.watch)
    return view(request, "prediction.html", lines=lines, why=why)


async def _asked(form: Mapping[str, str], service: Service) -> tuple[AnyPlan | None, str]:
    """Return the first plan of the study that `form` asks for, or why there is none yet."""
    kind = kind_of(form.get("kind", ""))
    document, limits = document_of(kind, form), limits_of(service.settings)
    try:
        asked = Asked.model_validate(document)
        return await asyncio.to_thread(first_plan, asked, "none", limits, Random(0)), ""
    except ValidationError:
        found = sorted_out(kind, await all_faults(document, limits))
        found.at.pop(NAME.at, None)  # no device hears it
        return None, found.said(kind)
    except Refusal as refusal:
        return None, in_words(kind, refusal.detail)


def _advice(plan: AnyPlan) -> list[Line]:
    load = Load.of(plan)
    lines = [Line("A device sends", nbytes(load.nbytes), "its vector or report, a round")]
    if plan.mechanism in REPORTING:
        lines.append(Line("Reports taken", number(plan.terms.devices), "a round, at most"))
        if isinstance(plan, LocalPlan):
            error = sqrt(plan.oracle.spread[0] * plan.terms.devices)
            what = "of an item's count, one deviation"
            lines.append(Line("Expected error", f"± {short(error)}", what))
        return lines
    return [*lines, *_sum_advice(plan, load.room), *_release_advice(plan)]


def _sum_advice(plan: AnyPlan, room: int | None) -> list[Line]:
    terms = plan.terms
    settled = parameters(terms.cohort_size, terms.assumptions)
    lines = [
        Line("Shares held by", number(settled.holders), "other devices, for each"),
        Line("Of which needed", number(settled.threshold), "to take a mask off"),
        Line("Still exact after", number(terms.assumptions.lost(terms.cohort_size)), "are lost"),
    ]
    if room is not None:
        what = items_of(plan.mechanism).lower()
        lines.append(Line("Room for", number(room), f"{what} in a round's sum"))
        lines.append(Line("First sampling t", short(plan.t), "then the data decides"))
    return lines


def _release_advice(plan: AnyPlan) -> list[Line]:
    """Return what is shown of counts that leave with differential privacy."""
    if not isinstance(plan, ReleasePlan):
        return []
    release, devices = plan.release, plan.terms.devices
    shown = release.threshold / release.probability
    share = f"of {number(devices)}: {percent(shown, devices)}, where half of the cells are shown"
    lines = [Line("A cell shows from", f"{short(shown)} devices", share)]
    if release.variance:
        deviation = sqrt(plan.variance(plan.terms.minimum))
        lines.append(Line("Noise in a count", f"± {short(deviation)}", "one deviation, a cohort"))
    return lines


def planned(plan: AnyPlan) -> dict[str, Any] | None:
    """Return the options by which `blindtally plan` predicts a study; None if it cannot."""
    question: Any = plan.question
    if plan.mechanism not in ("tracked", "adaptive-iblt"):
        return None
    return {
        "devices": plan.terms.devices,
        "rounds": plan.rounds,
        "threshold": question.threshold,
        "words": question.words,
        "contribution": question.contribution,
    }


def _command(plan: AnyPlan) -> str | None:
    """Return how to have the command line predict what a study will find; None if it cannot."""
    options = planned(plan)
    if options is None:
        return None
    said = options | {"threshold": f"{options['threshold']:g}"}
    return " ".join(["blindtally plan", *(f"--{name} {value}" for name, value in said.items())])
