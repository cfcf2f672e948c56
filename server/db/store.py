"""The store: all repositories of one database.

A repeated message has no further effect, and nothing is acknowledged before its commit. A change
names the state that it read, or its lease, and reports whether that was still valid. A transaction
that locks several rows locks them in one order: lease, population, study, round, cohort, spending
of a device, and the event counter last.
"""

import asyncio
from random import Random
from typing import Any

from server.db.database import Database
from server.db.database_errors import BusyError
from server.db.group_commit import GroupCommit
from server.db.repositories.answers import AnswerRepository
from server.db.repositories.cohorts import CohortRepository
from server.db.repositories.committees import CommitteeRepository
from server.db.repositories.credentials_and_audit import AccessRepository
from server.db.repositories.devices.enrolments import EnrolmentRepository
from server.db.repositories.devices.joins import JoinRepository
from server.db.repositories.devices.one_shot_messages import OneShotMessageRepository
from server.db.repositories.devices.participants import ParticipantRepository
from server.db.repositories.devices.reports import ReportRepository
from server.db.repositories.devices.seatings import SeatingRepository
from server.db.repositories.devices.uploads import UploadRepository
from server.db.repositories.devices.volunteers import VolunteerRepository
from server.db.repositories.events import EventRepository
from server.db.repositories.leases import LeaseRepository, ProcessRepository
from server.db.repositories.messages import MessageRepository
from server.db.repositories.populations import PopulationRepository
from server.db.repositories.progress import ProgressRepository
from server.db.repositories.retention import RetentionRepository
from server.db.repositories.rounds import RoundRepository
from server.db.repositories.studies import StudyRepository
from server.db.write_probe import WriteProbe


class Store:
    """The repositories of one database; `rng` makes ids and secrets."""

    def __init__(self, database: Database, rng: Random) -> None:
        self.database = database
        self.studies = StudyRepository(database, rng)
        self.rounds = RoundRepository(database)
        self.cohorts = CohortRepository(database)
        self.joins = JoinRepository(database, rng)
        self.participants = ParticipantRepository(database)
        self.messages = MessageRepository(database)
        self.uploads = UploadRepository(database)
        self.reports = ReportRepository(database)
        self.one_shot_messages = OneShotMessageRepository(database)
        self.committees = CommitteeRepository(database)
        self.volunteers = VolunteerRepository(database)
        self.answers = AnswerRepository(database)
        self.populations = PopulationRepository(database)
        self.access = AccessRepository(database, rng)
        self.enrolments = EnrolmentRepository(database)
        self.leases = LeaseRepository(database)
        self.processes = ProcessRepository(database)
        self.events = EventRepository(database)
        self.seatings = SeatingRepository(database)
        self.progress = ProgressRepository(database)
        self.retention = RetentionRepository(database)
        self.write_probe = WriteProbe(database)

    @property
    def _arrivals(self) -> tuple[GroupCommit[Any, Any], ...]:
        """Writes of devices that wait for a commit."""
        repositories = self.joins, self.uploads, self.one_shot_messages, self.reports
        return tuple(repository.groups for repository in repositories)

    async def settle_arrivals(self, seconds: float) -> None:
        """Wait until what devices have sent is stored or refused.

        Raises:
            BusyError: if that takes more than `seconds` seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                for groups in self._arrivals:
                    await groups.settled()
        except TimeoutError:
            raise BusyError("the database stores no messages") from None
