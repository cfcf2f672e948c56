"""What a path asks of whoever calls it: who that is, the doorkeeper has found out before."""

from typing import Annotated, cast

from fastapi import Depends, Request, params

from protocol.messages import ProblemType
from server.doorkeeper import address
from server.principals import Principal, Right
from server.refusals import Refusal
from server.service import Served


async def _caller(request: Request) -> Principal:
    return cast("Principal", request.state.principal)


Caller = Annotated[Principal, Depends(_caller)]


def only_itself(caller: Principal, identity: str) -> None:
    """Refuse a device that speaks for another identity.

    Raises:
        Refusal: if it does.
    """
    if caller.identity not in (None, identity):
        raise Refusal(ProblemType.FORBIDDEN, "this credential is another identity's")


def needs(*rights: Right) -> params.Depends:
    """Return the dependency of a path that whoever has one of `rights` may call."""

    async def check(caller: Caller, request: Request, service: Served) -> None:
        if caller.rights.isdisjoint(rights):
            subject = f"{caller}: {request.url.path}"
            await service.keeper.fail(address(request.scope), "forbidden", subject)
            wanted = " or ".join(rights)
            raise Refusal(ProblemType.FORBIDDEN, f"this takes the right to {wanted}")

    return cast("params.Depends", Depends(check))
