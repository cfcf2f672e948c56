"""Registration of a device's identity at a closed service, with an enrolment token.

The operator gives the same token to many devices, so that the token does not link a device's
studies. The device chooses its credential, which stands for one identity.
"""

from client.transport import Transport
from protocol.api.credentials import possession_statement, secret_digest
from protocol.api.messages import EnrolmentRequest
from secagg.keys import Identity


async def enrol_device(
    transport: Transport, identity: Identity, token: str, credential: str
) -> None:
    """Register `identity` with an enrolment token; repeating the call changes nothing.

    Raises:
        NotAuthorisedError: if the token is not valid.
        ForbiddenError: if the token has no enrolments left, or the identity was revoked.
        ConflictError: if the identity has another credential.
        httpx.TransportError: if the service is out of reach for too long.
    """
    digest = secret_digest(credential)
    request = EnrolmentRequest(
        identity=identity.public.hex(),
        credential=digest.hex(),
        signature=identity.sign(possession_statement(digest)).hex(),
    )
    content = request.model_dump_json().encode()
    await transport.send("POST", "/devices", content=content, ticket=token)
