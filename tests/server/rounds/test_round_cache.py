"""Facts of a plan that take long to compute, and are computed once for all devices of a round."""

import sys

import pytest

from protocol.question_and_plan import Plan
from secagg.keys import Identity
from secagg.session import Registry
from tests.server.harness import Served, study_request

REGISTRAR = Identity.of(b"r" * 32)


async def test_the_server_hashes_a_question_once_for_all_devices_that_join(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = study_request()["terms"] | {"registrar": REGISTRAR.public.hex()}
    study, modules = await served.create(terms=terms), list[str]()

    def registry(plan: Plan) -> Registry | None:
        modules.append(sys._getframe(1).f_globals["__name__"])
        return plan.question.registry(plan.study, plan.terms, plan.rounds)

    monkeypatch.setattr(Plan, "registry", property(registry))
    await served.join(study, 5, registrar=REGISTRAR)
    assert [name for name in modules if name.startswith("server.")] == ["server.rounds.caches"]
