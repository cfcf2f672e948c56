"""Upload of locally private reports: one per device and study, which may be repeated."""

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Path, Request

from protocol.api.messages import ProblemType
from protocol.api.messages_outside_sums import SignedReport, packed_report_bytes
from protocol.mechanisms.registry import REPORT_MECHANISMS
from secagg.keys import check_identity
from server.api.dependencies import (
    OCTET_STREAM_BODY,
    Caller,
    RoundNumber,
    StudyId,
    as_malformed,
    problem_responses,
    require,
    require_own_identity,
)
from server.db.repositories.messages.device_spending import ReportCost
from server.db.repositories.messages.reports import Report
from server.errors import ProblemError, malformed
from server.http.request_limits import read_body
from server.principals import Permission
from server.service import ServiceDep
from server.settings import MAX_DEVICE_DELTA

router = APIRouter(prefix="/v1/studies/{study}/rounds/{number}/reports", tags=["devices"])
IdentityPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The device's identity.")]


@router.put(
    "/{identity}",
    status_code=204,
    dependencies=[require(Permission.TAKE_PART)],
    responses=problem_responses(400, 404, 409, 413, 415, 422),
    openapi_extra=OCTET_STREAM_BODY,
)
async def put_report(
    study: StudyId,
    number: RoundNumber,
    identity: IdentityPath,
    request: Request,
    service: ServiceDep,
    caller: Caller,
) -> None:
    """Send the device's report; its privacy cost is added to the device's spending."""
    require_own_identity(caller, identity)
    plan = await service.round_cache.plan((study, number))
    mechanism = REPORT_MECHANISMS.get(plan.mechanism)
    if mechanism is None:
        detail = "this round sums vectors and accepts no reports"
        raise ProblemError(ProblemType.WRONG_STATE, detail)
    facts = await service.round_cache.signed_facts((study, number))
    nbytes, has_registrar = mechanism.nbytes(plan), facts.registry is not None
    size = packed_report_bytes(nbytes, has_registrar)
    packed = await read_body(request, size, size)
    report = SignedReport.unpack(bytes.fromhex(identity), packed, nbytes, has_registrar)
    if report.plan_digest != facts.plan_digest:
        detail = "the report was made for a different plan: read the open round again"
        raise ProblemError(ProblemType.PLAN_MISMATCH, detail)
    with as_malformed():
        check_identity(report.identity)
    if not report.has_valid_signature:
        raise malformed("the signature is not this identity's signature of the plan and report")
    facts.check_enrolment(report.identity, report.registrar_signature)
    with as_malformed():
        mechanism.check(plan, np.frombuffer(report.body, np.uint8).reshape(1, nbytes))
    limits = service.settings.max_device_epsilon, MAX_DEVICE_DELTA
    cost = ReportCost(mechanism.epsilon(plan), mechanism.delta(plan), *limits)
    cohort = await service.round_cache.report_cohort((study, number))
    checked = Report(
        cohort,
        report.content_digest,
        study,
        number,
        identity,
        report.body,
        cost,
        max_messages=plan.terms.max_devices,
    )
    await service.receive(checked)
