"""The store: all repositories of one database.

A repository has one method for each query, and one transaction for each method. A repeated message
has no further effect, and nothing is acknowledged before its commit. A change names the state that
it read, or its lease, and reports whether that was still valid; so any number of servers may try.
A transaction that locks several rows locks them in one order: lease, population, study, round,
cohort, and the event counter last. Only the database's clock counts.
"""

from dataclasses import dataclass
from random import Random

from server.db.database import Database
from server.db.disk_space import DiskSpace
from server.db.repositories.access import AccessRepository
from server.db.repositories.answers import AnswerRepository
from server.db.repositories.cohorts import CohortRepository
from server.db.repositories.events import EventRepository
from server.db.repositories.leases import LeaseRepository, ProcessRepository
from server.db.repositories.messages import MessageRepository
from server.db.repositories.participants import ParticipantRepository
from server.db.repositories.populations import PopulationRepository
from server.db.repositories.progress import ProgressRepository
from server.db.repositories.reports import ReportRepository
from server.db.repositories.rounds import RoundRepository
from server.db.repositories.studies import StudyRepository


@dataclass(frozen=True, slots=True)
class Store:
    """The repositories of one database."""

    database: Database
    studies: StudyRepository
    rounds: RoundRepository
    cohorts: CohortRepository
    participants: ParticipantRepository
    messages: MessageRepository
    reports: ReportRepository
    answers: AnswerRepository
    populations: PopulationRepository
    access: AccessRepository
    leases: LeaseRepository
    processes: ProcessRepository
    events: EventRepository
    progress: ProgressRepository
    disk_space: DiskSpace


def open_store(database: Database, rng: Random) -> Store:
    """Return the store of `database`; `rng` makes ids and secrets."""
    return Store(
        database,
        StudyRepository(database, rng),
        RoundRepository(database),
        CohortRepository(database),
        ParticipantRepository(database, rng),
        MessageRepository(database),
        ReportRepository(database),
        AnswerRepository(database),
        PopulationRepository(database),
        AccessRepository(database, rng),
        LeaseRepository(database),
        ProcessRepository(database),
        EventRepository(database),
        ProgressRepository(database),
        DiskSpace(database),
    )
