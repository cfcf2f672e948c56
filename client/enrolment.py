"""How a device is let in where a service is closed: an identity, a token, a credential.

The token comes from the operator, for many devices alike, so that nobody can tell by it who takes
part in two studies. The credential is the device's own choice, and stands for one identity.
"""

from client.transport import Transport
from protocol.credentials import digest, possession
from protocol.messages import Enrolment
from secagg.keys import Identity


async def enrol(transport: Transport, identity: Identity, token: str, credential: str) -> None:
    """Let `identity` in by an enrolment token; to say it again changes nothing.

    Raises:
        NotAuthorisedError: if the token is not good.
        ForbiddenError: if it has let in as many as it may, or the identity was revoked.
        ConflictError: if the identity has another credential.
        httpx.TransportError: if the service is out of reach for too long.
    """
    kept = digest(credential)
    asked = Enrolment(
        identity=identity.public.hex(),
        credential=kept.hex(),
        signature=identity.sign(possession(kept)).hex(),
    )
    content = asked.model_dump_json().encode()
    await transport.send("POST", "/devices", content=content, ticket=token)
