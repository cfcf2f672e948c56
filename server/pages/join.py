"""The page of a study on which a browser becomes a device, for people who have its link.

It needs no login: who knows the id of a study, 64 random bits, may read what the study asks. The
enrolment token of a closed service stands in the fragment of the link, as in
`/join/5f3a…#token=bte_…`, which browsers send to no server.

The page states what a device with default settings would refuse. A person who agrees raises these
limits, and the browser checks the plan of the round against them as every device does. All
addresses in the page are relative, so it works below any prefix.
"""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final, Self

from fastapi import Request, Response

from protocol.api.messages import ProblemType, StudyView
from protocol.committee_terms import CommitteeTerms
from protocol.device_policy.plan_check import default_refusals
from protocol.device_policy.policy import Policy, PolicyError
from protocol.device_policy.sizes_and_losses import upload_bytes
from protocol.domains.base import segments_of
from protocol.domains.strings import Listed
from protocol.mechanisms.registry import AnyPlan, mechanism_of
from protocol.privacy.events import DpEvent, SkellamNoiseEvent
from server.api.answers.question_differences import domain_in_words
from server.api.dependencies import read_study
from server.errors import ProblemError
from server.http.auth import JOIN_PREFIX
from server.pages.answer_summary import question_in_words
from server.pages.page_requests import page_router
from server.pages.privacy_summary import privacy_summary
from server.pages.rendering import assets, render
from server.service import ServiceDep

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
_MAX_SHOWN_OPTIONS: Final = 60  # more are typed
_SCRIPTS: Final = ("blindtally-device.js", "join.js")
_UNKNOWN: Final = "There is no such study: check the link, or ask who sent it for a new one."
router = page_router()


class CannotJoinError(ValueError):
    """No browser can take part in a study; the text says why."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script of the page, with its SHA-256 as people compare it, and as browsers check it."""

    name: str
    digest: str
    integrity: str

    @classmethod
    def of(cls, name: str) -> Self:
        digest = assets()[name].digest
        return cls(name, digest.hex(), f"sha256-{b64encode(digest).decode()}")


@dataclass(frozen=True, slots=True)
class Invitation:
    """Message of `sent_bytes` that a person agrees to send, and the `objections` of other devices.

    `policy` has the limits to raise, in JSON. `options` are ticked; without them items are typed,
    which are in the domain described by `items`.
    """

    sent_bytes: int
    members: int
    objections: tuple[str, ...]
    policy: str
    items: str
    options: tuple[str, ...]

    @classmethod
    def of(cls, plan: AnyPlan) -> Self:
        """Return the invitation to a round; raises CannotJoinError if no consent can be enough."""
        committee, domain = plan.terms.committee, plan.question.domain
        assert isinstance(committee, CommitteeTerms)  # otherwise the study has a registrar
        refusals = [*default_refusals(plan)]
        limits = dict(map(_raised_limit, refusals))
        options = domain.items if isinstance(domain, Listed) else ()
        return cls(
            upload_bytes(plan),
            committee.largest,
            tuple(each.reason.partition(":")[0] for each in refusals),
            json.dumps({"committee": committee.members, **limits}),
            domain_in_words(domain),
            options if len(options) <= _MAX_SHOWN_OPTIONS else (),
        )


def _raised_limit(refusal: PolicyError) -> tuple[str, Any]:
    """Return the limit of a policy that accepts what a device with default settings refuses."""
    usual = getattr(Policy(), refusal.limit, None)
    value = True if isinstance(usual, bool) else refusal.needed
    if usual is None or value is None:
        raise CannotJoinError(f"Every device refuses this study: it {refusal.reason}.")
    return refusal.limit, value


def check_browser(study: StudyView, event: DpEvent) -> None:
    """Raise CannotJoinError if a study does not run, or asks for what browsers do not do.

    `event` is the study's privacy loss in the ledger.
    """
    if study.state != "running":
        begun = "has not begun: come back later" if study.state == "created" else "is over"
        raise CannotJoinError(f"This study {begun}.")
    asks_coin = getattr(event, "join_probability", 1.0) != 1
    reasons = {
        "has no sum that one message is enough for": not study.terms.is_one_shot,
        "is of a kind for which no browser makes messages": not mechanism_of(
            study.question
        ).is_in_javascript,
        "counts by segment, which browsers do not": segments_of(study.question.domain),
        "lets devices add noise, which browsers do not make": isinstance(event, SkellamNoiseEvent),
        "asks devices to join by a coin, which browsers do not flip": asks_coin,
        "asks for a registrar's signature, which only an app gets": study.terms.registrar,
    }
    for reason, applies in reasons.items():
        if applies:
            raise CannotJoinError(f"This study {reason}. It is for devices with an app.")


def accepts_browsers(study: StudyView, event: DpEvent) -> bool:
    """Return whether the page of a study offers that the reader's browser takes part."""
    try:
        check_browser(study, event)
    except CannotJoinError:
        return False
    return True


@router.get(JOIN_PREFIX + "{study}")
async def show(study: str, request: Request, service: ServiceDep) -> Response:
    """Show what a study asks of a browser, or why no browser can take part now."""
    store, invitation, reason = service.store, None, ""
    try:
        view = await store.studies.show(await read_study(study))
    except ProblemError as error:
        if error.kind is not ProblemType.NOT_FOUND:
            raise
        return render(
            request, "join.html", status=404, headers=HEADERS, study=None, reason=_UNKNOWN
        )
    entry = await store.populations.ledger_entry(view.id)
    try:
        check_browser(view, entry.event)
        invitation = Invitation.of((await store.rounds.show(view.id, view.round)).plan)
    except CannotJoinError as error:
        reason = str(error)
    return render(
        request,
        "join.html",
        headers=HEADERS,
        study=view,
        reason=reason,
        failed=await store.rounds.failed(view.id),
        invitation=invitation,
        asked=question_in_words(view),
        privacy=privacy_summary(view, entry),
        is_closed=not service.settings.open,
        scripts=[Script.of(name) for name in _SCRIPTS],
    )
