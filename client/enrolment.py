"""How a device is let in where a service is closed: an identity, a token, a credential.

The token comes from the operator, for many devices alike, so that nobody can tell by it who takes
part in two studies. The credential is the device's own choice, and stands for one identity.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from random import Random
from typing import Final

from client.transport import Transport
from protocol.messages import Enrolment, possession
from secagg.keys import Identity

CREDENTIAL_BYTES: Final = 32


def make_credential(secrets: Random) -> str:
    """Return a new credential, to be kept with the identity; pass the system's randomness."""
    return urlsafe_b64encode(secrets.randbytes(CREDENTIAL_BYTES)).rstrip(b"=").decode()


async def enrol(transport: Transport, identity: Identity, token: str, credential: str) -> None:
    """Let `identity` in by an enrolment token; to say it again changes nothing.

    Raises:
        NotAuthorisedError: if the token is not good.
        ForbiddenError: if it has let in as many as it may, or the identity was revoked.
        ConflictError: if the identity has another credential.
        httpx.TransportError: if the service is out of reach for too long.
    """
    raw = urlsafe_b64decode(credential + "=")
    digest = sha256(raw).digest()
    asked = Enrolment(
        identity=identity.public.hex(),
        credential=digest.hex(),
        signature=identity.sign(possession(digest)).hex(),
    )
    content = asked.model_dump_json().encode()
    await transport.send("POST", "/devices", content=content, ticket=token)
