"""What was said, asked and answered: one method per question, one transaction per method.

Saying a thing twice is the same as saying it once. Nothing is acknowledged before it is
committed. Whoever moves something names the state it saw, and is told whether it was still
there, so any number of servers may try. Where a transaction locks several rows, it does so
in one order: population, study, round, cohort, and the feed of events last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import Random

from server.database import Database
from server.store.answers import Answers
from server.store.cohorts import Cohorts
from server.store.events import Events
from server.store.messages import Messages
from server.store.participants import Participants
from server.store.populations import Populations
from server.store.reports import Reports
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
    events: Events


def open_store(database: Database, now: Callable[[], datetime], rng: Random) -> Store:
    """Return the store in `database`, with its clock and its randomness."""
    return Store(
        database,
        Studies(database, now, rng),
        Rounds(database, now),
        Cohorts(database, now),
        Participants(database, now, rng),
        Messages(database),
        Reports(database, now),
        Answers(database),
        Populations(database, now),
        Events(database),
    )
