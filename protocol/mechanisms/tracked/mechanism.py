"""Rounds of `tracked`: plans, vectors and answers; the package explains the idea."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np

from protocol.description import (
    CONTRIBUTION,
    MAX_BYTES,
    MESSAGE_BYTES,
    OPTIONS,
    SEGMENTS,
    STOP_FIELDS,
    THRESHOLD,
    Description,
    QuestionForm,
)
from protocol.domains import Domain
from protocol.domains.hashed import Hashed
from protocol.domains.known_items import KnownItems
from protocol.estimation.empirical_bayes import ShownChances
from protocol.estimation.estimates import Estimate, FinalAnswer, ranked
from protocol.estimation.rate_changes import RateHistory
from protocol.histograms import Histogram, KeyedHistograms, keyed_histograms
from protocol.mechanism import Answer, CohortSum, add_sums
from protocol.mechanisms.cohort_comparison import ComparedCounts, compare_counts
from protocol.mechanisms.iblt.sampled_table import check_message, min_table_bytes
from protocol.mechanisms.iblt.threshold_sampling import ThresholdSampler
from protocol.mechanisms.sampled_counts import SampledCounts
from protocol.mechanisms.tracked import tuning_constants as tuning
from protocol.mechanisms.tracked.counters import CounterReading, Counters
from protocol.mechanisms.tracked.forecast import (
    Forecast,
    choose_counters,
    evict_items,
    evicted_keys,
    expected_counts,
    split_counters,
)
from protocol.mechanisms.tracked.key_choice import cheapest_domain, domain_of_known_items
from protocol.mechanisms.tracked.observations import (
    SLIP_VARIANCE_COLUMN,
    drift_of,
    history_of,
    rate_history_of,
    record_round,
    record_slips,
    shown_chances,
    with_measured_drift,
)
from protocol.mechanisms.tracked.phrases import StringCode
from protocol.mechanisms.tracked.plan import (
    AnyCounters,
    ResidualSampling,
    TrackedPlan,
    TrackedQuestion,
)
from protocol.mechanisms.tracked.rate_filter import estimate_totals
from protocol.mechanisms.tracked.string_fetching import FetchSchedule, KnownStrings
from protocol.numerics.array_types import Floats, Keys
from protocol.question_and_plan import Terms
from protocol.randomness import RandomWords, uniform_floats
from protocol.round_sizes import vector_bytes
from protocol.sketches.iblt.layout import capacity
from protocol.study_state import StudyState, add_devices, expected_devices, is_small, recent_devices
from secagg.oneshot.field import MAX_PRIME
from secagg.oneshot.moduli import Moduli
from secagg.ring import Ring, Vector

_ONE_OPTION = replace(CONTRIBUTION, default="1")


class Tracked(SampledCounts[TrackedQuestion, TrackedPlan]):
    """Counts known items exactly, and finds new ones in a table."""

    name = "tracked"
    is_in_javascript = True
    question_type = TrackedQuestion
    plan_type = TrackedPlan
    is_planned = True
    description = Description(
        purpose="heavy hitters of any domain, known ones counted exactly",
        cost="the fewest `message_bytes` per round",
        form=QuestionForm(
            "Common items, fewest bytes",
            "Heavy hitters among strings of any length. Items found so far are counted exactly, "
            "and each plan reveals them to devices.",
            {"domain.kind": "hashed"},
            (THRESHOLD, CONTRIBUTION, MAX_BYTES, MESSAGE_BYTES, SEGMENTS, *STOP_FIELDS),
        ),
        more_forms=(
            QuestionForm(
                "Counts of listed options",
                "How many devices hold each option of a list, counted exactly.",
                {"domain.kind": "listed"},
                (OPTIONS, _ONE_OPTION, THRESHOLD, MESSAGE_BYTES, *STOP_FIELDS),
            ),
        ),
        items_note="Items found in earlier rounds are counted outside the table and need no "
        "capacity.",
        defaults={"domain": {"kind": "hashed", "max_bytes": 64}, "message_bytes": "auto"},
    )

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        return domain_of_known_items(known, fields["contribution"])

    def cheaper_domain(
        self, domain: Domain, items: Collection[str], max_tokens: int, words: int | None
    ) -> Domain:
        return cheapest_domain(domain, items, max_tokens, words)

    def samplers(self, plan: TrackedPlan) -> Sequence[ThresholdSampler]:
        """Return those of unknown items, and of known ones, which are all counted."""
        return (*super().samplers(plan), ThresholdSampler(1.0, plan.question.contribution))

    def table_capacity(self, plan: TrackedPlan) -> int:
        return capacity(plan.cells)

    def fetched_strings(self, plan: TrackedPlan) -> int:
        return len(plan.string_pieces)

    def plan_readers_see(self, question: TrackedQuestion) -> str:
        known = "items found so far"
        if isinstance(question.domain, Hashed):
            known = f"keys of {known} and parts that common items share"
        return (
            f"Not only the server: each plan lists the {known}, and every device that may join a "
            "round can read it."
        )

    def trust_in_server(self, question: TrackedQuestion) -> str | None:
        if not isinstance(question.domain, Hashed):
            return None
        return (
            "The server asks for the string of a key only if its count is close to the threshold. "
            "Devices do not see the counts. A dishonest server could ask for the string of a rare "
            "key, also of one that a single device holds, but not which device holds it."
        )

    def _first_fields(self, question: TrackedQuestion, terms: Terms, rounds: int) -> dict[str, Any]:
        fetching = FetchSchedule(question, terms, rounds)
        check_message(question, terms, least=fetching.min_message)
        fetching.check()
        untracked = ResidualSampling.first(question, terms)
        nbytes = vector_bytes(terms, question.message_bytes, untracked.moduli.prime)
        return {
            "t": untracked.t,
            "cells": untracked.cells_and_classes(nbytes),
            "max_value": untracked.max_value,
            "prime": untracked.moduli.prime,
            "table_classes": untracked.classes,
        }

    def ring(self, plan: TrackedPlan) -> Ring:
        return plan.ring

    def encode_sum(
        self, plan: TrackedPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        counters, domain = plan.counters, plan.question.domain
        whole = keyed_histograms(domain, plan.question.contribution, histograms)
        held, items = whole.histograms, whole.histograms.items
        # No device holds an item outside the domain.
        names = items.cached(
            "names", domain, lambda: [domain.name(x) if x in domain else "" for x in items]
        )
        totals, rows = held.item_totals(held.counts), np.full(len(items), -1, np.int64)
        present = np.flatnonzero(totals)
        rows[present] = [counters.rows.get(names[i], -1) for i in present.tolist()]
        tracked = np.flatnonzero(rows >= 0)
        counts = np.zeros(len(counters.rows), dtype=np.int64)
        np.add.at(counts, rows[tracked], totals[tracked])
        fetched = ((names[i], items[i], int(totals[i])) for i in tracked.tolist())
        rest = held.with_counts(np.where(rows[held.item_indices] < 0, held.counts, 0))
        untracked = KeyedHistograms(rest, whole.keys)
        coins = uniform_floats(chance, len(rest.counts))
        sampled = untracked.item_totals(plan.sampler.sample(rest.counts, coins))
        table = (*plan.table.iblt.insert(*sampled), *plan.thin_table(*sampled, chance))
        strings = (plan.pieces.encode(fetched),) if plan.string_pieces else ()
        return (*counters.encode(counts, chance), *strings, *table)

    def fault(self, plan: TrackedPlan, total: Vector, participants: int) -> str | None:
        """Return the law that `total` breaks: totals of counters, or a law of the table.

        A random counter of b bits keeps the law of its group with probability 2^-b. What the
        counters do not hold is left for the table; `SampledTable.fault` has its laws. A device that
        adds to a counter and its total is not detected, up to the count that all devices may hold;
        nor is one that changes a string, which then does not hash to its key. In a one-shot sum
        counters have no law, and a count that a device changed is read near the expected one.
        """
        counters, _, table = plan.split(total)
        held = participants * plan.question.contribution
        fault = plan.counters.fault(counters, held)
        rest = held - plan.counters.total(counters)
        return fault or plan.table.fault(table, participants, rest)

    def decode(
        self, plan: TrackedPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        return self._decode(plan, total, [(total, participants)], state)

    def decode_cohorts(
        self, plan: TrackedPlan, sums: Sequence[CohortSum], state: StudyState
    ) -> Answer:
        ring = plan.ring
        total, _ = add_sums(ring, sums)
        cohorts = [(ring.unpack(each.packed), each.participants) for each in sums]
        return self._decode(plan, total, cohorts, state)

    def _decode(
        self,
        plan: TrackedPlan,
        total: Vector,
        cohorts: Sequence[tuple[Vector, int]],
        state: StudyState,
    ) -> Answer:
        """Return the answer of `total`, the sum of the cohorts' vectors; each has its devices."""
        _, in_strings, in_table = plan.split(total)
        # A plan may be older than the state, which has evicted items since.
        state = state.add([item for item in plan.counters.items if item not in state.rows], {})
        counted, holders, state = _read_counters(plan, total, cohorts, state)
        devices = [participants for _, participants in cohorts]
        participants, counters = sum(devices), plan.counters
        tables = [plan.split(vector)[2] for vector, _ in cohorts] if len(cohorts) > 1 else ()
        reading = plan.table.read(in_table, _known_keys(plan, state), tables)
        listing, sampled = reading.whole, None
        if listing.complete and plan.is_table_doubtful(listing, total, participants):
            listing = replace(listing, complete=False)
        if listing.complete:
            listed = plan.table.estimates(plan.question.domain, reading, devices)
            sampled = [each for each in listed if each.item not in counters.rows]
        after = record_round(plan, state, participants, counted, sampled)
        items = [each.item for each in counted]
        after = add_devices(after, participants, is_read=listing.complete, counted=items)
        after = evict_items(plan, after)
        domain = plan.question.domain
        if plan.string_pieces and isinstance(domain, Hashed):
            pieces = plan.pieces.decode(in_strings[0], holders)
            after = KnownStrings.from_state(domain, state).add(pieces).store_in(after)
        estimates = tuple(ranked([*counted, *(sampled or [])]))
        return Answer(listing.complete, listing.distinct, estimates, after)

    def is_decodable(
        self, plan: TrackedPlan, total: Vector, participants: int, state: StudyState
    ) -> bool:
        del participants
        return plan.table.decode(plan.split(total)[2], _known_keys(plan, state)).complete

    def next_plan(
        self, plan: TrackedPlan, answer: Answer | None, state: StudyState, rng: Random
    ) -> TrackedPlan:
        forecast, terms = Forecast.after_round(plan, state), plan.terms
        choices = round_primes(plan.question, terms) if terms.is_one_shot else [0]
        # A table always remains, since new items can be found in no other way.
        table_bytes = min_table_bytes(plan.question, terms)
        code = plan.fetch_schedule.next_code(forecast)
        drafts = (_draft(plan, answer, forecast, code, prime, table_bytes) for prime in choices)
        fields = max((each for each in drafts if each is not None), key=itemgetter(0))[1]
        return plan.next_round(rng, **fields)

    def final_answer(self, question: TrackedQuestion, state: StudyState) -> FinalAnswer:
        """Return the heavy hitters.

        An item whose string was not fetched is given by the name of its key, and counts as wrong in
        the expected precision and recall.
        """
        answer = super().final_answer(question, state)
        if not isinstance(question.domain, Hashed):
            return answer
        strings = KnownStrings.from_state(question.domain, state).complete
        listed, quality = answer.heavy_hitters, answer.quality
        named = tuple(replace(each, item=strings.get(each.item, each.item)) for each in listed)
        if quality is not None and listed:
            probabilities = {each.item: each.probability or 0.0 for each in listed}
            fetched = sum(probabilities[item] for item in probabilities if item in strings)
            shares = ("expected_precision", "expected_recall")
            share = fetched / sum(probabilities.values())
            update = {name: share * getattr(quality, name) for name in shares}
            quality = quality.model_copy(update=update)
        return FinalAnswer(named, quality)

    def totals(self, state: StudyState) -> tuple[Floats, Floats]:
        """Return the totals of items at the rates of all their rounds, counted or sampled.

        An item with s tokens in a share e of the devices has s / e in total. The unseen ones vary
        by chance and by the error of the rate: together by s (1 - e) / e^2.
        """
        history = history_of(state)
        tokens, exposed = history.observed.sum(axis=1), history.exposure.sum(axis=1)
        share = np.maximum(exposed / history.devices.sum(), 1e-9)
        variances = tokens * (1 - share) / share**2 + state.column(SLIP_VARIANCE_COLUMN)
        return tokens / share, variances

    def shown(self, question: TrackedQuestion, state: StudyState) -> StudyState:
        shown = super().shown(question, state)
        return with_measured_drift(shown, super().firm_items(question, shown))

    def firm_items(self, question: TrackedQuestion, state: StudyState) -> StudyState:
        firm = super().firm_items(question, state)
        return with_measured_drift(firm, firm)

    def rate_history(
        self, plan: TrackedPlan, state: StudyState, items: Sequence[str]
    ) -> RateHistory | None:
        domain = plan.question.domain
        names = [item if item in state.rows else domain.name(item) for item in items]
        return rate_history_of(plan, state, names)

    def final_totals(self, question: TrackedQuestion, state: StudyState) -> tuple[Floats, Floats]:
        totals, variances = estimate_totals(history_of(state), drift_of(state), question.threshold)
        return totals, variances + state.column(SLIP_VARIANCE_COLUMN)

    def known_by(self, question: TrackedQuestion, state: StudyState) -> ShownChances:
        return shown_chances(state, question.least_holders)


def _read_counters(
    plan: TrackedPlan, total: Vector, cohorts: Sequence[tuple[Vector, int]], state: StudyState
) -> tuple[list[Estimate], dict[str, int], StudyState]:
    """Return the estimates and sums of the counters, and `state` with the slips recorded."""
    counters, contribution = plan.counters, plan.question.contribution
    if not counters.items:
        return [], {}, state
    devices = [participants for _, participants in cohorts]
    expected, spread = expected_counts(state, sum(devices), counters.items)
    tokens = sum(devices) * contribution

    def read(vector: Vector, share: float) -> CounterReading:
        means, deviations = expected * share, spread * math.sqrt(share)
        return counters.decode(plan.split(vector)[0], means, deviations, round(tokens * share))

    whole = read(total, 1.0)
    counts, slips = whole.counts, whole.slips
    compared = ComparedCounts.plain(counts)
    if len(cohorts) > 1:
        readings = [read(vector, size / sum(devices)) for vector, size in cohorts]
        by_cohort = np.array([each.counts for each in readings])
        # Honest counts are read by cohort without slips, but those of a liar may be below 0.
        is_read = np.array([each.slips for each in readings]) == 0
        compared = compare_counts(by_cohort, devices, contribution, is_read)
        is_better = (compared.shares < 1) | is_read.all(axis=0)
        compared = replace(compared, counts=np.where(is_better, compared.counts, counts))
    limited = np.minimum(compared.counts, tokens).tolist()
    variances = whole.variances + compared.missing_variances
    columns = counters.items, limited, variances.tolist(), compared.flags, compared.shares.tolist()
    estimates = [
        Estimate(item, count, variance, p_value, counted_share=share)
        for item, count, variance, p_value, share in zip(*columns, strict=True)
    ]
    sums = dict(zip(counters.items, counts.tolist(), strict=True))
    return estimates, sums, record_slips(state, counters.items, slips)


def round_primes(question: TrackedQuestion, terms: Terms) -> list[int]:
    """Return the primes that a round of a one-shot study may have, up to twice the devices' tokens.

    Among them are the smallest above all tokens, modulo which no sum wraps, and those with which 2,
    3, 4 or 5 elements just hold a chunk of a key. All are below 2^26, and above 1/26 of all tokens.
    """
    tokens = terms.max_devices * question.contribution
    primes = {terms.moduli.above(max(tokens, tuning.MIN_PRIME - 1))}
    floor = max(tuning.MIN_PRIME, math.ceil(tokens / tuning.MAX_CLASS_WINDOWS))
    least, end = float(floor), min(2 * tuning.PRIME_STEP * tokens, MAX_PRIME / 2)
    while least <= end:
        prime = terms.moduli.above(math.ceil(least) - 1)
        primes.add(prime)
        least = tuning.PRIME_STEP * prime
    fitting = (math.ceil(question.domain.bound ** (1 / parts)) + 1 for parts in (2, 3, 4, 5))
    primes |= {terms.moduli.above(each) for each in fitting if floor <= each < least}
    return sorted(primes)


def _draft(
    plan: TrackedPlan,
    answer: Answer | None,
    forecast: Forecast,
    code: StringCode,
    prime: int,
    table_bytes: int,
) -> tuple[float, dict[str, Any]] | None:
    """Return the fields of the next plan with `prime`, and the items that it has room for.

    None stands for a table whose values could wrap modulo the prime, or that has no room.
    """
    question, terms = plan.question, plan.terms
    moduli = terms.moduli.fixed(prime) if prime else terms.moduli
    nbytes = vector_bytes(terms, question.message_bytes, prime)
    spare = max(0, int(min(nbytes - table_bytes, tuning.MAX_COUNTER_BYTES_SHARE * nbytes)))
    counters: AnyCounters
    if prime:
        counters = split_counters(forecast, spare, moduli)
    else:
        max_total = terms.max_devices * question.contribution
        counters = Counters(choose_counters(forecast, spare), max_total)
    nbytes -= moduli.nbytes_of(counters.lanes)
    untracked = _plan_residual(plan, answer, forecast.state, counters, moduli, nbytes)
    least = table_bytes, max(table_bytes, untracked.readable_bytes(nbytes, plan.t))
    strings = plan.fetch_schedule.next_pieces(forecast, counters, code, nbytes, *least)
    if strings.pieces:
        nbytes -= moduli.lane_bytes(strings.lane)
        untracked = _plan_residual(plan, answer, forecast.state, counters, moduli, nbytes)
    if prime and (untracked.max_value >= prime or not untracked.has_room(nbytes)):
        return None
    cells = untracked.cells_and_classes(nbytes)
    fields = {
        "counter_groups": counters.groups,
        "counter_classes": counters.classes,
        "string_pieces": [(counters.rows[name], *place) for name, *place in strings.pieces],
        "phrases": code.phrases if strings.pieces else (),
        "prime": untracked.moduli.prime,
        "table_classes": untracked.classes,
        "t": untracked.t,
        "cells": cells,
        "max_value": untracked.max_value,
    }
    return capacity(cells) + len(counters.items), fields


def _known_keys(plan: TrackedPlan, state: StudyState) -> Keys:
    """Return the keys that help to read a stuck table."""
    rows = plan.counters.rows
    untracked = [item for item in state.items if item not in rows]
    known = plan.question.domain.keys_of(untracked), evicted_keys(plan, state)
    keys: Keys = np.unique(np.concatenate(known), axis=0)
    return keys


def _plan_residual(
    plan: TrackedPlan,
    answer: Answer | None,
    state: StudyState,
    counters: AnyCounters,
    moduli: Moduli,
    nbytes: int,
) -> ResidualSampling:
    """Return the sampling of untracked items in the next round with `moduli`, into `nbytes`.

    t stays after a failed round, and after one with far fewer devices than are expected next.
    """
    residual = replace(plan.residual, moduli=moduli)
    if answer is None:
        return residual.for_largest_values()
    recent, most = recent_devices(state) or [1.0], plan.terms.max_devices
    expected, latest = expected_devices(recent, most), max(1.0, recent[-1])
    if answer.decoded and is_small(latest, expected):
        return residual
    keys, values = _expected_residual(plan, counters, answer)
    change = expected / expected_devices(recent[:-1] or recent, most)
    ratio = expected / latest
    return residual.next_round(ratio * keys, ratio * values, nbytes, devices_factor=change)


def _expected_residual(
    plan: TrackedPlan, counters: AnyCounters, answer: Answer
) -> tuple[float, float]:
    """Return the number of keys in the next table at the same t, and the sum of their values.

    Keys that will not be tracked count as often as they were sampled. Each key that was sampled
    once, tracked next or not, stands for a new key [Good53].
    """
    if not answer.decoded:
        return answer.distinct, math.inf
    keys, values, sampler, counted = 0, 0.0, plan.sampler, plan.counters.rows
    for each in answer.estimates:
        if each.item not in counted:
            is_single = each.count / sampler.mean_threshold < tuning.SINGLETON_LIMIT
            if is_single or each.item not in counters.rows:
                keys += 1
                values += each.count / sampler.unit
    return max(keys, 1), values
