"""Result of a simulation: one JSON document and tables for every mechanism."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blindtally.console.tables import Printable, fact_table
from blindtally.datasets.reader import Dataset
from blindtally.simulate.answers import answer_of
from blindtally.simulate.scenario import SimulationRequest
from blindtally.simulate.study import PlayedStudy, SimulatedStudy
from client.device.encoding import LeftOutReason
from protocol.device_policy.plan_check import max_copies
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.privacy.events import PARTIES, LedgerEntry
from protocol.privacy.ledger import Ledger
from protocol.report_mechanism import ReportMechanism
from protocol.simulation.study import DEFAULT_POLICY

_DEFAULT_DELTA = 1e-6  # of a question without its own
_NOISE_NOTE = "the smallest count that noise alone rarely reaches"


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A `document` to write, `tables` to print, and how far a study came that Ctrl-C stopped."""

    document: dict[str, Any]
    tables: Sequence[Printable]
    stopped_after: str | None = None


def result_of(
    request: SimulationRequest, dataset: Dataset, simulated: SimulatedStudy
) -> SimulationResult:
    """Return the result of a simulated study.

    Raises:
        ValueError: if no round has an answer.
    """
    study, schedule = simulated.played, simulated.schedule
    answer, rounds, devices = answer_of(study, dataset), len(schedule.sizes), _devices(simulated)
    measures = study.mechanism.measures(study.plan, study.state, study.truth, schedule.selected)
    privacy = _privacy(study)
    document = {
        "mechanism": study.plan.mechanism,
        "partial": study.is_partial,
        **answer.document,
        "devices": devices,
        "max_participants": study.max_participants,
        "words": study.words,
        "message_bytes": getattr(study.question, "message_bytes", None),
        "rounds_decoded": study.rounds_decoded,
        "rounds_lost": study.rounds_lost,
        "goal_round": study.goal_round,
        "thresholds": study.thresholds,
        **privacy,
        **measures,
        "copies_left_out": study.copies_left_out,
        "items_outside_domain": simulated.items_outside_domain,
        "items_truncated": simulated.items_truncated,
        "question": study.question.model_dump(mode="json", exclude={"domain": {"items"}}),
        "terms": simulated.terms.model_dump(mode="json"),
        "parameters": request.parameters
        | {"rounds": rounds, "devices": max(schedule.sizes), "lost_rounds": sorted(schedule.lost)},
    }
    done = f"{len(study.thresholds)} rounds of {rounds}" if study.is_partial else None
    facts = {
        **({"partial": f"stopped after {done}"} if done else {}),
        **({"goal": _goal(study, rounds)} if request.scenario.stop_at else {}),
        **({"threshold": _NOISE_NOTE} if simulated.has_default_threshold else {}),
        **answer.facts,
        **_round_facts(simulated),
        "domain": _describe_domain(study.question.domain)
        + f", {simulated.items_outside_domain:,} items outside"
        + (f", {simulated.items_truncated:,} cut" if simulated.items_truncated else ""),
        **_privacy_facts(privacy),
    }
    facts |= {n.replace("_", " "): _shown(v) for n, v in measures.items() if n not in facts}
    facts |= answer.scores
    return SimulationResult(document, [*answer.tables, fact_table(facts)], done)


def _goal(study: PlayedStudy, rounds: int) -> str:
    if study.goal_round is None:
        return "not reached"
    return f"reached in round {study.goal_round} of at most {rounds}"


def _devices(simulated: SimulatedStudy) -> int:
    """Return the number of different devices that were counted."""
    study = simulated.played
    return simulated.schedule.selected if study.question.asks_every_round else study.devices


def _round_facts(simulated: SimulatedStudy) -> dict[str, str]:
    study, sizes = simulated.played, simulated.schedule.sizes
    lost = f", {study.rounds_lost} lost" if study.rounds_lost else ""
    unread = "" if study.rounds_decoded else ": no table could be read; try more --words"
    low, high = min(sizes), max(sizes)
    selected = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    facts = {
        "rounds": f"{study.rounds_decoded} decoded of {len(sizes)}{lost}{unread}",
        "devices": f"{_devices(simulated):,} counted, {selected} selected per round",
    }
    if study.copies_left_out:
        reason = f"{study.copies_left_out:,} items: {LeftOutReason.TOO_MANY_COPIES}"
        facts["left out"] = f"{reason} ({max_copies(DEFAULT_POLICY, study.plan):,} by default)"
    if study.words:
        facts["words"] = f"{study.words:,} of 16 bits per device and round"
    if set(study.thresholds) != {1.0}:
        facts["sampling thresholds"] = " ".join(f"{t:.3g}" for t in study.thresholds)
    return facts


def _describe_domain(domain: Domain) -> str:
    if isinstance(domain, Hashed):
        return f"hashed: keys of {domain.key_bits} bits"
    return f"{domain.kind}: keys of {domain.key_bit_count} bits"


def _privacy(study: PlayedStudy) -> dict[str, Any]:
    """Return the epsilon of the study in each party's view; None where there is no bound."""
    if isinstance(study.mechanism, ReportMechanism):
        return {}  # a report's own epsilon is among the measures
    rounds = len(study.thresholds)
    delta: float = getattr(study.question, "delta", _DEFAULT_DELTA)
    event = study.mechanism.dp_event(study.plan, rounds)
    ledger = Ledger(entries=(LedgerEntry(name="simulation", event=event),))
    by_party = {party: ledger.epsilon(delta, party) for party in PARTIES}
    return {
        "epsilon": by_party["public"],
        "epsilon_by_party": by_party,
        "epsilon_replace_one": ledger.epsilon(delta, "public", "replace-one"),
        "delta": delta,
    }


def _privacy_facts(privacy: Mapping[str, Any]) -> dict[str, str]:
    """Return the lines that show the epsilon of each party's view, if any has a bound."""
    by_party = privacy.get("epsilon_by_party", {})
    if not any(by_party.values()):
        return {}
    delta = f"delta {privacy['delta']:g}"
    return {
        f"to {party}": "no bound" if epsilon is None else f"epsilon {epsilon:.4g}, {delta}"
        for party, epsilon in by_party.items()
    }


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)
