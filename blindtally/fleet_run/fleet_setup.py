"""Setup of a fleet's study from options: the items of the devices, the question and its terms.

The default threshold and capacity grow with the fleet, so that every size shows the same behaviour.
The first table has no room for a different item of each device, so devices sample their items. Its
sum shows that many devices hold the same items, so the next sampling threshold is lower. The
threshold of heavy hitters lies between the items of many devices and the long tail.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from random import Random, SystemRandom
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from blindtally.console.data_files import load_dataset
from blindtally.console.options import DEFAULT_DEVICES, DEFAULT_IDLE_SECONDS
from blindtally.console.presets import fitting_bytes, lowest_threshold
from blindtally.datasets.device_histograms import DeviceHistograms
from blindtally.datasets.reader import Dataset
from blindtally.datasets.reading_report import ReadingReport
from client.fleet.config_and_results import FleetConfig
from protocol.api.messages import StudyView, Timeouts
from protocol.committee_terms import CommitteeTerms
from protocol.device_policy.plan_check import plan_violations
from protocol.device_policy.policy import Policy
from protocol.domains.known_items import check_numbers
from protocol.domains.numeric import NumericInterval
from protocol.domains.product import Product
from protocol.domains.strings import Alphabet, smallest_domain
from protocol.histograms import Histogram
from protocol.mechanisms.quality_goal import QualityGoal
from protocol.mechanisms.registry import MECHANISMS, SUM_MECHANISMS, AnyQuestion, parse_question
from protocol.question_and_plan import SumKind, Terms
from secagg.keys import Identity

# Defaults of the demo; the constants below were chosen for them.
DEFAULT_DATASET: Final = "link_user_domains"
DEFAULT_MECHANISM: Final = "tracked"
# Chosen before any device's items are known, as for a real study: lower-case domain names.
DOMAIN_NAME_ALPHABET: Final = Alphabet(
    characters="\0abcdefghijklmnopqrstuvwxyz0123456789-._", length=40, pad="\0"
)
HEAVY_HITTER_SHARE: Final = 0.02  # of all devices; used without --threshold
TABLE_ITEMS_PER_DEVICE: Final = 0.9  # capacity of the first round's table; used without --words
MIN_TABLE_ITEMS: Final = 32
TIMEOUTS: Final = Timeouts(enrolling=120, collecting=120, idle=DEFAULT_IDLE_SECONDS)
# A phase with dropouts waits this long after the last message. With 100 devices, the gaps between
# two messages stay below 0.12 s, even beside four busy processes on two cores.
_IDLE_SECONDS_PER_DEVICE: Final = 0.0012
OPERATORS: Final = 7  # of a simulated committee
MEMBERS_AWAY: Final = 0.3  # fraction of members that may be absent: two of seven
DEFAULT_MIN_COHORT: Final = 20  # devices in a sum
_SEAT_MARGIN_DEVIATIONS: Final = 4  # seats above the mean number of devices that join by coins
_MIN_DEVICES_PER_PROCESS: Final = 50
_MAX_PROCESSES: Final = 8  # by default, some 200 MB each
# A round has seats for people beside the simulated devices, and waits until they are taken.
SEATS_FOR_PEOPLE: Final = 20
WAIT_FOR_PEOPLE_SECONDS: Final = 180.0
DROPOUT_MARGIN: Final = 0.1  # dropouts in addition to those that the demo causes


@dataclass(frozen=True, slots=True)
class DataFile:
    """File of the devices' items, the default one if `path` is None."""

    path: Path | None = None
    column: str | None = None

    def read(self) -> tuple[Dataset, ReadingReport]:
        """Return the data in the file, and a report; raises DataError if it cannot be used."""
        return load_dataset(self.path or Path(DEFAULT_DATASET), self.column)


@dataclass(frozen=True, slots=True)
class FleetSetup:
    """The question, its terms and goal, the fleet of devices with their items, and their source.

    The study's `name` is the question in words. A round has `seats` for devices of others.
    """

    question: AnyQuestion
    terms: Terms
    rounds: int
    timeouts: Timeouts
    fleet_config: FleetConfig
    holdings: Sequence[Histogram]
    reading: ReadingReport
    stop_at: QualityGoal | None = None
    name: str = "demo"
    seats: int = 0


def build_setup(
    data: DataFile,
    *,
    devices: int,
    rounds: int,
    dropout: float,
    seed: int,
    threshold: float | None,
    contribution: int,
    message_bytes: int | None,
    registrar: Identity | None = None,
    operators: tuple[Identity, ...] = (),
    members: Sequence[str] = (),
    seats: int = 0,
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> FleetSetup:
    """Return the study that the options describe, its devices enrolled by `registrar` if given.

    With `operators` its sums are one-shot sums, and the fleet also runs the operators. With the
    public keys `members` they are one-shot sums, which other processes open. A round waits for
    people if it has `seats` for them. A `preset` has other fields of the question.

    Raises:
        ValueError: if the data cannot be read or has too few devices, or no such study can exist.
    """
    population, report = data.read()
    domain = DOMAIN_NAME_ALPHABET if data.path is None else smallest_domain(population.items)
    config = FleetConfig(devices, dropout, seed, registrar=registrar, operators=operators)
    terms = fleet_terms(config, members, seats)
    fields = {
        "mechanism": DEFAULT_MECHANISM,
        "threshold": threshold or default_threshold(devices * rounds),
        "contribution": contribution,
        "domain": domain,
        **preset,
    }
    fields["message_bytes"] = message_bytes or bytes_for_table(fields, terms)
    if "epsilon" in fields:
        fields["threshold"] = lowest_threshold(fields, terms)
    question = parse_question(fields)
    setup = checked_setup(question, terms, rounds, config, population, report)
    items = "web domains" if data.path is None else "items"
    setup = replace(setup, name=question_about(items, question.threshold, devices * rounds))
    return waiting_for_people(setup, seats)


def waiting_for_people(setup: FleetSetup, seats: int) -> FleetSetup:
    """Return a setup whose round waits until people have taken the `seats` of its terms."""
    if not seats:
        return setup
    timeouts = setup.timeouts.model_copy(update={"collecting": WAIT_FOR_PEOPLE_SECONDS})
    return replace(setup, timeouts=timeouts, seats=seats)


def question_about(items: str, threshold: float, devices: int) -> str:
    return f"Which {items} do {threshold:g} or more of {devices:,} devices hold?"


def default_threshold(devices: int) -> float:
    """Return the threshold of a study that asks this number of devices in all rounds together."""
    return max(5.0, round(devices * HEAVY_HITTER_SHARE))


def fleet_terms(config: FleetConfig, members: Sequence[str] = (), seats: int = 0) -> Terms:
    """Return the terms of a round of this fleet, in one cohort; see `build_setup`."""
    committee = _committee_of(config.operators, members)
    # A device that drops out of a one-shot sum sends nothing, so a round does not wait for it.
    lost = round(config.dropout * config.devices) if committee else 0
    return Terms(
        cohort_size=config.devices - lost + seats,
        minimum=max(3, config.devices // 2),
        dropout=max(0.2, config.dropout + DROPOUT_MARGIN),
        registrar=config.registrar.public.hex() if config.registrar else None,
        sum="one-shot" if committee else "pairwise",
        committee=committee,
    )


def checked_setup(
    question: AnyQuestion,
    terms: Terms,
    rounds: int,
    config: FleetConfig,
    population: Dataset,
    report: ReadingReport,
) -> FleetSetup:
    """Return the setup of a study that the devices of `config` accept; ValueError otherwise.

    A device counts each item once, so that the count of an item is a number of devices.
    """
    # An impossible study must fail before it is created.
    first_plan = MECHANISMS[question.mechanism].first_plan
    plan = first_plan(question, terms, "demo", rounds, Random(config.seed))
    different = 1 if question.asks_every_round else rounds
    holdings = holdings_for_fleet(
        population, different, config.devices, question.contribution, config.seed
    )
    committee = terms.committee
    policy = Policy(
        max_contribution=question.contribution,
        min_cohort=min_cohort_for(config.devices),
        min_threshold=question.threshold,
        registrar=config.registrar.public if config.registrar else None,
        committee=frozenset(committee.identities if isinstance(committee, CommitteeTerms) else ()),
        trust_server_identities=config.registrar is None,
        accept_exact_estimates=True,
    )
    for refusal in plan_violations(policy, plan, plan.study, plan.round):
        advice = ": use a smaller --message-bytes" if refusal.limit == "max_upload_bytes" else ""
        raise ValueError(f"the devices of this demo would refuse: {refusal}{advice}")
    config = replace(config, policy=policy)
    idle = min(DEFAULT_IDLE_SECONDS, max(100, config.devices) * _IDLE_SECONDS_PER_DEVICE)
    timeouts = TIMEOUTS.model_copy(update={"idle": idle})
    return FleetSetup(question, terms, rounds, timeouts, config, holdings, report)


def _committee_of(operators: Sequence[Identity], members: Sequence[str]) -> CommitteeTerms | None:
    if members:
        return CommitteeTerms(members=tuple(members), dropout=MEMBERS_AWAY)
    if operators:
        return CommitteeTerms(members=tuple(operator.public.hex() for operator in operators))
    return None


def new_operators(kind: SumKind) -> tuple[Identity, ...]:
    """Return fresh keys of a committee's members for one-shot sums, none for other sums."""
    rng = SystemRandom()
    count = OPERATORS if kind == "one-shot" else 0
    return tuple(Identity.generate(rng) for _ in range(count))


def new_registrar() -> Identity:
    """Return the fresh key of a registrar."""
    return Identity.generate(SystemRandom())


def min_cohort_for(devices: int) -> int:
    """Return the smallest cohort that simulated devices accept, in a study of `devices` devices."""
    return max(2, min(DEFAULT_MIN_COHORT, devices // 4))


def bytes_for_table(
    fields: Mapping[str, Any], terms: Terms, per_device: float = TABLE_ITEMS_PER_DEVICE
) -> int:
    """Return the `message_bytes` of a table with a capacity of `per_device` items per device."""
    items = max(MIN_TABLE_ITEMS, math.ceil(per_device * terms.max_devices))
    return fitting_bytes(fields, terms, items=items)


def holdings_for_fleet(
    population: Dataset, rounds: int, devices: int, contribution: int, seed: int
) -> Sequence[Histogram]:
    """Return a histogram for each device of a fleet.

    Raises:
        ValueError: if the data has too few devices.
    """
    if isinstance(population, DeviceHistograms):
        if len(population) < rounds * devices:
            raise ValueError(
                f"{rounds} {'round' if rounds == 1 else 'rounds'} of {devices} devices: "
                f"{rounds * devices:,} devices are needed, and the data has {len(population):,}: "
                "use fewer rounds or devices"
            )
        return population
    rng = np.random.default_rng([seed, 0])
    blocks = chain.from_iterable(population.rounds([devices] * rounds, contribution, rng))
    return list(chain.from_iterable(blocks))


def new_study_setup(
    data: DataFile,
    config: FleetConfig,
    rounds: int,
    idle: float,
    stop_at: QualityGoal | None,
    members: Sequence[str] = (),
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> FleetSetup:
    setup = build_setup(
        data,
        devices=config.devices,
        rounds=rounds,
        dropout=sum(config.behaviour.dropout_by_phase.values()) or config.dropout,
        seed=config.seed,
        threshold=None,
        contribution=1 if preset else 2,
        message_bytes=None,
        registrar=config.registrar,
        operators=config.operators,
        members=members,
        preset=preset,
    )
    enrolling = max(setup.timeouts.enrolling, 2 * config.behaviour.span_seconds)
    changes = {"idle": idle, "enrolling": enrolling, "collecting": enrolling}
    timeouts = Timeouts.model_validate(setup.timeouts.model_dump() | changes)
    return replace(setup, fleet_config=config, timeouts=timeouts, stop_at=stop_at)


def joined_study_setup(
    data: DataFile, config: FleetConfig, study: StudyView, devices: int | None
) -> FleetSetup:
    config = replace(config, devices=devices or _devices_to_select(study))
    rounds = 1 if study.question.asks_every_round else study.rounds
    population, report = data.read()
    if isinstance(study.question.domain, NumericInterval | Product):
        check_numbers(population.items)
    contribution = study.question.contribution
    holdings = holdings_for_fleet(population, rounds, config.devices, contribution, config.seed)
    return FleetSetup(
        study.question, study.terms, study.rounds, study.timeouts, config, holdings, report
    )


def useful_processes(study: StudyView | SumKind, devices: int | None) -> int:
    """Return the number of processes for `devices` of a study, or of a new one with such a sum.

    Only the masks of pairwise sums take longer than to start a process, about two seconds.
    `devices` is None for the default number.
    """
    if isinstance(study, str):
        has_masks, default = study == "pairwise", DEFAULT_DEVICES
    else:
        has_masks = study.question.mechanism in SUM_MECHANISMS and not study.terms.is_one_shot
        default = _devices_to_select(study)
    per_process = (devices or default) // _MIN_DEVICES_PER_PROCESS
    return max(1, min(usable_processors(), _MAX_PROCESSES, per_process)) if has_masks else 1


def usable_processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _devices_to_select(study: StudyView) -> int:
    """Return the number of devices to select for a round, so that all that join have a seat."""
    seats = study.terms.max_devices
    probability: float = getattr(study.question, "join_probability", 1.0)
    if probability == 1:
        return seats
    margin = _SEAT_MARGIN_DEVIATIONS / 2
    root_of_joined = math.sqrt(margin**2 + seats) - margin  # of the mean
    return max(1, math.floor(root_of_joined**2 / probability))
