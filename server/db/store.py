"""The store: all repositories of one database.

A repeated message has no further effect, and nothing is acknowledged before its commit. A change
names the state that it read, or its lease, and reports whether that was still valid. A transaction
that locks several rows locks them in one order: lease, population, study, round, cohort, spending
of a device, and the event counter last.
"""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

from server.db.database import Database
from server.db.database_errors import BusyError
from server.db.readiness import Readiness
from server.db.repositories.access.committees import (
    CommitteeRepository,
    MemberMessage,
    MemberMessageGroup,
    VolunteerRepository,
)
from server.db.repositories.access.credentials_and_audit import AccessRepository
from server.db.repositories.access.enrolments import EnrolmentRepository
from server.db.repositories.access.seatings import SeatingRepository
from server.db.repositories.access.shared_links import SharedLinkRepository
from server.db.repositories.arrivals import Arrival, Arrivals
from server.db.repositories.events import EventRepository
from server.db.repositories.leases import LeaseRepository, ProcessRepository
from server.db.repositories.messages.joins import JoinRepository
from server.db.repositories.messages.one_shot_messages import (
    OneShotMessage,
    OneShotMessageGroup,
    OneShotMessageRepository,
)
from server.db.repositories.messages.participants import ParticipantRepository, Upload, UploadGroup
from server.db.repositories.messages.reports import Report, ReportGroup, ReportRepository
from server.db.repositories.messages.sum_messages import MessageRepository
from server.db.repositories.rounds.cohorts import CohortRepository
from server.db.repositories.rounds.retention import RetentionRepository
from server.db.repositories.rounds.rounds import RoundRepository
from server.db.repositories.studies.answers import AnswerRepository
from server.db.repositories.studies.populations import PopulationRepository
from server.db.repositories.studies.progress import ProgressRepository
from server.db.repositories.studies.studies import StudyRepository
from server.db.repositories.studies.webhooks import WebhookRepository


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
        self.arrivals: Mapping[type[Arrival], Arrivals[Any]] = {
            Upload: Arrivals(database, UploadGroup),
            OneShotMessage: Arrivals(database, OneShotMessageGroup),
            Report: Arrivals(database, ReportGroup),
            MemberMessage: Arrivals(database, MemberMessageGroup),
        }
        self.reports = ReportRepository(database)
        self.one_shot_messages = OneShotMessageRepository(database)
        self.committees = CommitteeRepository(database)
        self.volunteers = VolunteerRepository(database)
        self.answers = AnswerRepository(database)
        self.populations = PopulationRepository(database)
        self.webhooks = WebhookRepository(database)
        self.access = AccessRepository(database, rng)
        self.links = SharedLinkRepository(database, rng)
        self.enrolments = EnrolmentRepository(database)
        self.leases = LeaseRepository(database)
        self.processes = ProcessRepository(database)
        self.events = EventRepository(database)
        self.seatings = SeatingRepository(database)
        self.progress = ProgressRepository(database)
        self.retention = RetentionRepository(database)
        self.readiness = Readiness(database)

    async def receive(self, message: Arrival) -> int:
        """Store a message; return the number of messages in the phase of its cohort.

        Raises:
            ProblemError: if it is refused.
        """
        return await self.arrivals[type(message)].accept(message)

    async def settle_arrivals(self, seconds: float) -> None:
        """Wait until what devices have sent is stored or refused.

        Raises:
            BusyError: if that takes more than `seconds` seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.joins.groups.settled()
                for kind in self.arrivals.values():
                    await kind.groups.settled()
        except TimeoutError:
            raise BusyError("the database stores no messages") from None
