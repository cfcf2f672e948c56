"""Configuration of a fleet that joins a study, from the options of `blindtally fleet`."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from blindtally.fleet_run.setup import build_setup, holdings_for_fleet, load_population
from blindtally.fleet_run.study_run import FleetSetup
from client.device.policy import Policy
from client.fleet.behaviour import dropouts_by_step
from client.fleet.config import FleetConfig
from protocol.messages import StudyView, Timeouts
from protocol.phases import Phase
from secagg.keys import Identity
from secagg.parameters import Mode

_SEAT_MARGIN_DEVIATIONS: Final = 4  # seats above the mean number of devices that join by coins


def trusting(policy: Policy, mode: Mode, registrar: Identity | None) -> Policy:
    """Return the policy with its trusted modes and registrar.

    A device that trusts a semi-honest server takes part in active mode too.
    """
    modes = frozenset[Mode]({mode, "active"})
    public = registrar.public if registrar else None
    return replace(policy, modes=modes, registrar=public)


def parse_dropout(pairs: Sequence[str], mode: Mode) -> dict[Phase, float]:
    """Return the share of devices that drop out in each phase, from pairs PHASE=SHARE.

    Raises:
        ValueError: if a pair is malformed, or the shares are impossible.
    """
    shares = {}
    for pair in pairs:
        name, _, share = pair.partition("=")
        try:
            shares[Phase(name)] = float(share)
        except ValueError:
            raise ValueError(
                f"--dropout-in takes PHASE=SHARE such as sharing=0.1, got {pair!r}"
            ) from None
    dropouts_by_step(shares, mode)  # fails now, and not in the middle of a round
    return shares


def new_study_setup(
    data: Path | None, config: FleetConfig, rounds: int, mode: Mode, idle: float
) -> FleetSetup:
    """Return the setup of a study that the fleet creates itself."""
    setup = build_setup(
        data,
        devices=config.devices,
        rounds=rounds,
        dropout=sum(config.behaviour.dropout_by_phase.values()) or config.dropout,
        seed=config.seed,
        threshold=None,
        contribution=2,
        words=None,
        mode=mode,
        registrar=config.registrar,
    )
    enrolling = max(setup.timeouts.enrolling, 2 * config.behaviour.span_seconds)
    changes = {"idle": idle, "enrolling": enrolling}
    timeouts = Timeouts.model_validate(setup.timeouts.model_dump() | changes)
    return replace(setup, fleet_config=config, timeouts=timeouts)


def joined_study_setup(
    data: Path | None, config: FleetConfig, study: StudyView, devices: int | None
) -> FleetSetup:
    """Return the setup of a study that exists already."""
    config = replace(config, devices=devices or _devices_to_select(study))
    rounds = 1 if study.question.asks_every_round else study.rounds
    holdings = holdings_for_fleet(
        load_population(data), rounds, config.devices, study.question.contribution, config.seed
    )
    return FleetSetup(study.question, study.terms, study.rounds, study.timeouts, config, holdings)


def _devices_to_select(study: StudyView) -> int:
    """Return the number of devices to select for a round, so that all that join have a seat."""
    seats = study.terms.max_devices
    probability: float = getattr(study.question, "join_probability", 1.0)
    if probability == 1:
        return seats
    margin = _SEAT_MARGIN_DEVIATIONS / 2
    root_of_joined = math.sqrt(margin**2 + seats) - margin  # of the mean
    return max(1, math.floor(root_of_joined**2 / probability))
