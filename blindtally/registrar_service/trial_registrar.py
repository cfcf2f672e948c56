"""Registrar for trials, which signs for all devices and all studies, and keeps nothing."""

from blindtally.registrar_service.app import RegistrarService
from blindtally.registrar_service.enrolment_record import EnrolmentRecord, Person, person_of
from blindtally.status_page import page_server
from secagg.keys import Identity


class _NoRecord(EnrolmentRecord):
    """The record of a registrar that refuses nobody."""

    def __init__(self) -> None:
        """Open no file."""

    def check(self) -> None:
        pass

    def enrol(self, person: Person, scope: bytes, identity: bytes, now: float) -> bool:  # noqa: ARG002
        return True


async def _prove(proof: str) -> Person:
    return person_of(proof)


async def serve(identity: Identity, port: int) -> None:
    """Serve devices on a port of this machine until cancelled."""
    service = RegistrarService(identity, _NoRecord(), _prove)
    await page_server(service.app(), "127.0.0.1", port, lifespan="off")
