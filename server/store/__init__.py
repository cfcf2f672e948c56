"""What was said, asked and answered: one method per question, one transaction per method.

Saying a thing twice is the same as saying it once. Nothing is acknowledged before it is
committed. Whoever moves something names the state it saw, or the lease under which it worked,
and is told whether it was still there, so any number of servers may try. Where a transaction
locks several rows, it does so in one order: lease, population, study, round, cohort, and the
feed of events last. Time is told by the database alone.
"""

from dataclasses import dataclass
from random import Random

from server.database import Database
from server.store.access import Access
from server.store.answers import Answers
from server.store.cohorts import Cohorts
from server.store.events import Events
from server.store.leases import Leases
from server.store.messages import Messages
from server.store.participants import Participants
from server.store.populations import Populations
from server.store.processes import Processes
from server.store.progress import Overview
from server.store.reports import Reports
from server.store.room import Room
from server.store.rounds import Rounds
from server.store.studies import Studies


@dataclass(frozen=True, slots=True)
class Store:
    """The books of one database."""

    database: Database
    studies: Studies
    rounds: Rounds
    cohorts: Cohorts
    participants: Participants
    messages: Messages
    reports: Reports
    answers: Answers
    populations: Populations
    access: Access
    leases: Leases
    processes: Processes
    events: Events
    overview: Overview
    room: Room


def open_store(database: Database, rng: Random) -> Store:
    """Return the store in `database`, with its randomness."""
    return Store(
        database,
        Studies(database, rng),
        Rounds(database),
        Cohorts(database),
        Participants(database, rng),
        Messages(database),
        Reports(database),
        Answers(database),
        Populations(database),
        Access(database, rng),
        Leases(database),
        Processes(database),
        Events(database),
        Overview(database),
        Room(database),
    )
