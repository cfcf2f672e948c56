"""A simulated study: its question from the data, one loop over its rounds, and what they leave."""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from blindtally.console.progress import with_progress
from blindtally.datasets.reader import Dataset
from blindtally.simulate.round_schedule import RoundSchedule
from blindtally.simulate.scenario import DEFAULT_DEVICES, SimulationRequest, study_terms
from blindtally.workers import open_round_executor
from protocol.api.unlisted import CountedRounds, highest_bar
from protocol.device_policy.policy import Policy
from protocol.domains.known_items import KnownItems
from protocol.estimation.estimates import VARIANCE_COLUMN, FinalAnswer
from protocol.mechanism import Mechanism, SumMechanism
from protocol.mechanisms.quality_goal import QualityGoal, goal_fault, parse_goal
from protocol.mechanisms.registry import AnyPlan, AnyQuestion, mechanism_of
from protocol.question_and_plan import SumQuestion, Terms
from protocol.report_mechanism import ReportMechanism
from protocol.round_sizes import WORD_BYTES, message_bytes_of, seats_for
from protocol.simulation.study import DEFAULT_POLICY, RoundOutcome, run_study
from protocol.study_state import EMPTY_STATE, StudyState

_NOISE_DEVIATIONS = 4.0  # of an estimate, which noise alone rarely reaches


@dataclass(frozen=True, slots=True)
class PlayedStudy:
    """Results of the rounds of a study: the last plan, the study state, and the truth.

    `truth` has the counts of the items of all devices in a sum, as these count them; if each round
    asks the same devices, of the last round. `copies_left_out` are the copies of items in all
    rounds that the devices did not count. `devices` counts them round by round, and
    `max_participants` are those of the largest round. `words` are the 16-bit words that a device
    sends in that round, `thresholds` the sampling threshold t of each round. A lost round has no
    sum. A partial study ends before Ctrl-C. The list reached the goal in round `goal_round`.
    """

    question: AnyQuestion
    plan: AnyPlan
    state: StudyState
    truth: dict[str, int]
    devices: int
    max_participants: int
    words: int
    rounds_decoded: int
    rounds_lost: int
    thresholds: list[float]
    is_partial: bool = False
    goal_round: int | None = None
    copies_left_out: int = 0

    @property
    def mechanism(self) -> Mechanism[Any, Any]:
        return mechanism_of(self.plan)

    @property
    def final(self) -> FinalAnswer:
        return self.mechanism.final_answer(self.question, self.state)

    @property
    def counted(self) -> CountedRounds:
        """Return the rounds that are over, as notes on a list count them."""
        over, largest_t = len(self.thresholds), max(self.thresholds)
        summed = over - self.rounds_lost
        return CountedRounds(over, summed, self.rounds_decoded, self.devices, largest_t)


@dataclass(frozen=True, slots=True)
class SimulatedStudy:
    """A study that was played, its terms and schedule, and the items that are not as in the data.

    `has_default_threshold`: the threshold is a count that the noise of reports rarely reaches.
    """

    played: PlayedStudy
    terms: Terms
    schedule: RoundSchedule
    items_outside_domain: int
    items_truncated: int
    has_default_threshold: bool


def simulate_study(
    request: SimulationRequest, dataset: Dataset, policy: Policy | None = DEFAULT_POLICY
) -> SimulatedStudy:
    """Ask the mechanism for a question about the items of `dataset`, and play its study.

    For the `policy` of the devices see `run_study`.

    Raises:
        ValueError: if the data or the parameters do not allow a study.
    """
    mechanism, scenario = request.mechanism, request.scenario
    is_report = isinstance(mechanism, ReportMechanism)
    if is_report and scenario.sum != "plain":
        raise ValueError(f"reports of {mechanism.name} have no sum: leave out sum")
    question = _question(request, dataset)
    names = {item: question.canonical(item) for item in dict.fromkeys(dataset.items)}
    if not any(name is not None for name in names.values()):
        raise ValueError(f"{request.data}: none of its items is in the domain {question.domain!r}")
    rounds = request.rounds or mechanism.rounds_needed(question) or mechanism.simulated_rounds
    repeats_devices = question.asks_every_round
    schedule = RoundSchedule.of(request, dataset, rounds, repeats_devices=repeats_devices)
    join_probability: float = getattr(question, "join_probability", 1.0)
    seats = max(3, seats_for(max(schedule.sizes), join_probability))
    terms = study_terms(scenario, seats)
    if isinstance(question, SumQuestion) and "message_bytes" not in request.fields:
        vector = WORD_BYTES * (request.words or mechanism.simulated_words)
        size = message_bytes_of(terms, vector)
        question = question.model_copy(update={"message_bytes": size})
    stop_at = parse_goal(scenario.stop_at)
    if stop_at is not None and (fault := goal_fault(question)):
        raise ValueError(fault)
    with open_round_executor(request.workers, request.dask) as executor:
        outcomes = run_study(
            mechanism,
            question,
            terms,
            schedule.rounds(dataset, question.contribution, request.seed),
            Random(request.seed),
            planned=rounds,
            stop_at=stop_at,
            dropout=scenario.dropout,
            secure=scenario.sum != "plain",
            policy=policy,
            executor=executor,
        )
        played = gather(with_progress(outcomes, "rounds", rounds), question, stop_at)
    has_default_threshold = is_report and "threshold" not in request.fields
    if has_default_threshold:
        played = _with_default_threshold(played)
    outside = sum(name is None for name in names.values())
    truncated = sum(
        name not in (None, item) and item.startswith(name or "") for item, name in names.items()
    )
    return SimulatedStudy(played, terms, schedule, outside, truncated, has_default_threshold)


def _question(request: SimulationRequest, dataset: Dataset) -> AnyQuestion:
    mechanism, scenario = request.mechanism, request.scenario
    sizes = scenario.devices_by_round or (request.devices or DEFAULT_DEVICES,)
    known = KnownItems(
        items=dataset.items,
        devices=study_terms(scenario, max(sizes)).max_devices,
        rounds=request.rounds or mechanism.simulated_rounds,
        words=request.words or mechanism.simulated_words,
        choice=scenario.domain,
        alphabet=scenario.alphabet,
        levels=request.levels,
        low=scenario.low,
        high=scenario.high,
        alpha=scenario.alpha,
    )
    fields = dict(request.fields)
    if isinstance(mechanism, ReportMechanism):
        fields = {"threshold": 1} | fields
    question: AnyQuestion = mechanism.question_about(known, fields)
    return question


def _with_default_threshold(played: PlayedStudy) -> PlayedStudy:
    """Return the study with the smallest threshold that items which nobody holds rarely reach."""
    largest_variance = played.state.column(VARIANCE_COLUMN).max(initial=0)
    bar = max(
        highest_bar(played.plan, played.counted).count,
        _NOISE_DEVIATIONS * math.sqrt(largest_variance),
    )
    threshold = float(math.ceil(min(bar, max(1, played.devices))))
    question = played.question.model_copy(update={"threshold": threshold})
    return replace(played, question=question)


def gather(
    outcomes: Iterable[RoundOutcome[AnyPlan]],
    question: AnyQuestion,
    stop_at: QualityGoal | None = None,
) -> PlayedStudy:
    """Return the results of a study whose rounds are run while they are read.

    Only sums over the outcomes are kept, because there may be many. Ctrl-C in a round ends the
    study before it; without an earlier round Ctrl-C is raised. The last outcome may have reached
    the goal `stop_at`.
    """
    truth: Counter[str] = Counter()
    words = decoded = lost = devices = most = left_out = 0
    thresholds, state, is_partial = list[float](), EMPTY_STATE, False
    is_decoded, plan = False, None  # of the last round
    played = iter(outcomes)
    while not is_partial:
        try:
            outcome = next(played, None)
        except KeyboardInterrupt:
            if not thresholds:
                raise
            is_partial = True
            continue
        if outcome is None:
            break
        if question.asks_every_round and outcome.truth:
            truth.clear()
        truth.update(outcome.truth)
        words = max(words, vector_words(outcome.plan))
        is_decoded = outcome.is_decoded
        decoded += is_decoded
        lost += outcome.answer is None
        left_out += outcome.copies_left_out
        thresholds.append(outcome.plan.t)
        devices, most = devices + outcome.devices, max(most, outcome.devices)
        state, plan = outcome.study_state, outcome.plan
    assert plan is not None  # there is at least one round
    goal_round = None
    if stop_at is not None:
        quality = mechanism_of(plan).final_answer(question, state).quality
        goal_round = len(thresholds) if stop_at.is_reached(is_decoded, quality) else None
    return PlayedStudy(
        question,
        plan,
        state,
        dict(truth),
        devices,
        most,
        words,
        decoded,
        lost,
        thresholds,
        is_partial,
        goal_round,
        left_out,
    )


def vector_words(plan: AnyPlan) -> int:
    """Return the 16-bit words of a device's vector, 0 for a report."""
    mechanism = mechanism_of(plan)
    if not isinstance(mechanism, SumMechanism):
        return 0
    return -(-mechanism.vector_bytes(plan) // WORD_BYTES)
