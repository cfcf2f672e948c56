"""Locally private reports: a device sends one to a study, and may send it again."""

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path, Request

from protocol.mechanisms import REPORTING
from protocol.messages import ProblemType
from protocol.report import Report, packed_bytes
from secagg.keys import check_identity
from server.api.parts import OCTETS_IN, RoundNumber, StudyId, problems
from server.api.placed import blame
from server.api.rights import Caller, needs, only_itself
from server.limits import read_body
from server.principals import Right
from server.refusals import Refusal, malformed
from server.service import Served
from server.store.reports import Charge

router = APIRouter(prefix="/v1/studies/{study}/rounds/{number}/reports", tags=["devices"])
Reporter = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The device's identity.")]


@router.put(
    "/{identity}",
    status_code=204,
    dependencies=[needs(Right.TAKE_PART)],
    responses=problems(400, 404, 409, 413, 415, 422),
    openapi_extra=OCTETS_IN,
)
async def put_report(
    study: StudyId,
    number: RoundNumber,
    identity: Reporter,
    request: Request,
    service: Served,
    caller: Caller,
) -> None:
    """Send a report, once a study: what it costs is added to what the device spent before."""
    only_itself(caller, identity)
    plan = await service.frozen.plan((study, number))
    mechanism = REPORTING.get(plan.mechanism)
    if mechanism is None:
        raise Refusal(ProblemType.WRONG_STATE, "this round sums vectors: it takes no reports")
    nbytes, has_registrar = mechanism.nbytes(plan), plan.registry is not None
    size = packed_bytes(nbytes, has_registrar)
    packed = await read_body(request, size, size)
    report = Report.unpack(bytes.fromhex(identity), packed, nbytes, has_registrar)
    if report.digest != await service.frozen.digest((study, number)):
        detail = "the report was made for another plan: take part in the round as it is shown"
        raise Refusal(ProblemType.OTHER_PLAN, detail)
    with blame():
        check_identity(report.identity)
    if not report.is_signed:
        raise malformed("the signature is not that of the identity under plan and report")
    if plan.registry and not plan.registry.admits(report.identity, report.enrolment):
        detail = "the registrar of this study has not signed this identity for reports"
        raise Refusal(ProblemType.NOT_ENROLLED, detail)
    with blame():
        mechanism.check(plan, np.frombuffer(report.body, np.uint8).reshape(1, nbytes))
    limits = service.settings.most_epsilon, service.settings.most_delta
    charge = Charge(mechanism.epsilon(plan), mechanism.delta(plan), *limits)
    await service.store.reports.accept(study, number, report, charge)
    service.orchestrator.wake()
