"""Items that an answer does not list: the cause, the count that suffices, and the next step.

An item is listed if its count reaches each *bar*. One is the question's threshold, and others
follow from privacy. For example, with epsilon 1 a trie shows what has 13 votes, and a device votes
with probability 0.1. So about 130 devices must hold an item, and a threshold of 5 has no effect.

Every text here depends only on what is public: the plan, the numbers of rounds and devices, and
the listed items.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from protocol.description import Bar
from protocol.mechanisms.registry import REPORT_MECHANISMS, AnyPlan, AnyQuestion, mechanism_of
from protocol.question_and_plan import DEFAULT_MIN_THRESHOLD
from protocol.report_mechanism import ReportPlan


class RoundFigures(Protocol):
    """Public figures of a round, as the API and the dashboard have them."""

    @property
    def state(self) -> str: ...
    @property
    def participants(self) -> int | None: ...
    @property
    def sampling_threshold(self) -> float: ...
    @property
    def counted_cohorts(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CountedRounds:
    """Rounds that are over, those of them with a sum, and those whose sum was read.

    `devices` are those in all sums, None if their number is secret. `largest_t` is the largest
    sampling threshold of a round, and `most_cohorts` the largest number of cohorts in a sum.
    """

    over: int
    summed: int
    decoded: int
    devices: int | None
    largest_t: float = 1
    most_cohorts: int = 1

    @classmethod
    def of(cls, rounds: Sequence[RoundFigures]) -> "CountedRounds":
        summed = [each for each in rounds if each.state in ("decoded", "undecoded")]
        counts = [each.participants for each in summed]
        return cls(
            over=sum(each.state != "running" for each in rounds),
            summed=len(summed),
            decoded=sum(each.state == "decoded" for each in summed),
            devices=None if None in counts else sum(count or 0 for count in counts),
            largest_t=max((each.sampling_threshold for each in summed), default=1),
            most_cohorts=max((each.counted_cohorts for each in summed), default=1),
        )


def highest_bar(plan: AnyPlan, rounds: CountedRounds) -> Bar:
    """Return the bar that decides which items are listed, after `rounds` of which `plan` is one."""
    bars = [*_bars(plan, rounds)]
    highest = max(bars, key=lambda bar: bar.count)
    return replace(highest, is_lower_bound=any(bar.is_lower_bound for bar in bars))


def _bars(plan: AnyPlan, rounds: CountedRounds) -> Iterator[Bar]:
    question, devices = plan.question, devices_of_count(plan.question, rounds)
    more = "more devices" if question.asks_every_round else "more devices or rounds"
    lower = ""
    if _has_noise(plan):
        lower = "a larger epsilon, a lower threshold if the noise allows it, or "
    elif question.threshold > DEFAULT_MIN_THRESHOLD:
        lower = f"a lower threshold (devices accept {DEFAULT_MIN_THRESHOLD:g} by default), or "
    cause = f"the threshold is {question.threshold:,.6g}"
    if question.counts_by_round:
        counted = mechanism_of(plan).description.counted
        cause = f"a round counts a {counted} from {question.threshold:,.6g} devices in it"
    yield Bar(question.threshold, cause, f"use {lower}{more}")
    yield from mechanism_of(plan).bars(plan, devices)


def _has_noise(plan: AnyPlan) -> bool:
    return getattr(plan.question, "epsilon", None) is not None


def devices_of_count(question: AnyQuestion, rounds: CountedRounds) -> int | None:
    """Return the devices that one count is of: those of a round if all take part in every round."""
    if rounds.devices is None or not rounds.summed or not question.asks_every_round:
        return rounds.devices
    return rounds.devices // rounds.summed


def why_nothing_can_be_listed(plan: AnyPlan) -> str | None:
    """Return the reason for which a study that `plan` begins lists nothing from any devices.

    None if it may list an item.
    """
    rounds, question = plan.rounds, plan.question
    rounds = 1 if question.counts_by_round else rounds
    counted = CountedRounds(rounds, rounds, rounds, plan.terms.max_devices * rounds)
    devices, bar = devices_of_count(question, counted) or 0, highest_bar(plan, counted)
    if bar.count <= devices or question.largest_count(devices) == math.inf:
        return None
    return (
        f"the study lists nothing: an item needs a count of {_whole(bar.count)}, and "
        f"{devices:,} devices that all hold it count it once each; {bar.step}"
        if math.isfinite(bar.count)
        else f"the study lists nothing: {bar.cause}; {bar.step}"
    )


def why_nothing_is_listed(
    plan: AnyPlan, rounds: CountedRounds, *, is_over: bool, largest: float | None = None
) -> str:
    """Return the cause of an empty answer, the number that suffices, and the next step.

    `plan` is that of the last round. `largest` is the count of the most common item, where a
    simulation knows it.
    """
    if not rounds.summed:
        return _why_nothing_was_summed(plan, rounds)
    if not rounds.decoded:
        return _why_nothing_was_read(plan)
    later = _later_rounds(plan, rounds, is_over=is_over)
    return " ".join((*_short_of_bar(plan, rounds, largest), *later))


def _why_nothing_was_summed(plan: AnyPlan, rounds: CountedRounds) -> str:
    terms = plan.terms
    each = "each cohort of a round" if terms.cohorts > 1 else "a round"
    needed = f"{each} needs {terms.minimum:,} devices"
    if not isinstance(plan, ReportPlan):
        needed += f", of which {terms.min_summed:,} stay until its end"
    if rounds.over:
        return f"No round is in the answer: {needed}. The rounds have the reasons."
    return f"No round is over: {needed}."


def _why_nothing_was_read(plan: AnyPlan) -> str:
    size = getattr(plan.question, "message_bytes", None)
    if size is None:
        return "No round could be read: ask more devices."
    return (
        "No round could be read: a sum has more different items than there is room for. Use more "
        f"message_bytes than {size:,}, or fewer devices in a round."
    )


def _short_of_bar(plan: AnyPlan, rounds: CountedRounds, largest: float | None) -> Iterator[str]:
    """Yield the bar that no item reached, its cause, and the next step."""
    bar, devices = highest_bar(plan, rounds), devices_of_count(plan.question, rounds)
    name, threshold = mechanism_of(plan).description.counted, plan.question.threshold
    among = "" if devices is None else f" among {devices:,} devices"
    if not math.isfinite(bar.count):
        yield f"No {name} is listed{among}, even one that all of them hold: {bar.cause}."
        yield f"To list some, {bar.step}."
        return
    least = f"{'about ' if _has_noise(plan) else ''}{_whole(bar.count)}"
    if bar.is_lower_bound:
        hidden = f"noise hides a count below {least}, other items larger ones"
        yield f"No {name} is listed{among}: {hidden}."
        yield f"To list more, {bar.step}."
        return
    needed = mechanism_of(plan).rounds_needed(plan.question) or 0
    whole = f" that {rounds.decoded} of {needed} rounds complete" if rounds.decoded < needed else ""
    yield f"No {name}{whole} is listed. One is listed from a count of {least}{among}: {bar.cause}."
    if bar.count > threshold:
        yield f"A threshold below that, such as {threshold:,.6g}, changes nothing."
    yield f"To list more, {bar.step}."
    if devices and largest:
        # The noise of reports grows with the root of their number.
        power = 2 if isinstance(plan, ReportPlan) and bar.count > threshold else 1
        enough = math.ceil(devices * (bar.count / largest) ** power)
        yield f"The most common {name} has {_whole(largest)}: {enough:,} such devices list it."
    elif devices and bar.count > plan.question.largest_count(devices):
        enough = math.ceil(bar.count)
        yield f"Fewer than {enough:,} devices cannot hold one {name} that often."


def _later_rounds(plan: AnyPlan, rounds: CountedRounds, *, is_over: bool) -> Iterator[str]:
    """Yield a sentence on rounds to come, or on rounds that a trie lacks or that were lost."""
    needed = mechanism_of(plan).rounds_needed(plan.question)
    if needed is None:
        if not is_over:
            yield "The next rounds add to the counts."
    elif plan.rounds < needed:
        yield f"The longest items need {needed} rounds, and the study has {plan.rounds}."
    elif is_over and rounds.decoded < needed:
        yield f"The longest items need {needed} rounds, and {rounds.decoded} were read."
    elif not is_over:
        yield f"The longest items are complete after round {needed}; this is round {plan.round}."


def limits_of_list(plan: AnyPlan, rounds: CountedRounds) -> list[str]:
    """Return a sentence for each reason why a list that is not empty leaves out common items."""
    limits, bar = list[str](), highest_bar(plan, rounds)
    if 0 < rounds.decoded < rounds.summed:
        limits.append(
            f"The estimates rest on the {rounds.decoded:,} of {rounds.summed:,} rounds that could "
            "be read. They include the devices of the others, by the rates of these rounds."
        )
    if bar.count > plan.question.threshold or bar.is_lower_bound:
        is_possible = math.isfinite(bar.count) and bar.count <= _most(plan, rounds)
        count = f"a count below about {_whole(bar.count)}" if is_possible else "items"
        count += ", and larger ones that other items hide" if bar.is_lower_bound else ""
        limits.append(f"The list may miss {count}: {bar.cause}. To list more, {bar.step}.")
    if mechanism_of(plan).rounds_needed(plan.question) is not None:
        limits.extend(_later_rounds(plan, rounds, is_over=True))
    return limits


def unlisted_options(question: AnyQuestion, listed: Iterable[str]) -> tuple[str, ...]:
    """Return the options of a question with options that are not `listed`, in their order.

    They are the items of a listed domain, or the segments of sums of numbers.
    """
    known = set(listed)
    options = mechanism_of(question).options(question)
    return tuple(option for option in options if option not in known)


def option_counts(plan: AnyPlan, rounds: CountedRounds, listed: Iterable[str]) -> dict[str, str]:
    """Return the options that are not `listed`, each with words; empty before a sum was read."""
    if not rounds.decoded:
        return {}
    options = unlisted_options(plan.question, listed)
    return dict.fromkeys(options, count_of_unlisted(plan, rounds))


def count_of_unlisted(plan: AnyPlan, rounds: CountedRounds) -> str:
    """Return the words that stand for the count of an option that is not listed.

    They are the same for every such option, also for one that nobody holds. Only sums that were
    all read, without sampling or noise, show that a count is below the threshold. The count of an
    item may leave out some of several cohorts (`protocol/mechanisms/cohort_comparison.py`).
    """
    bar = highest_bar(plan, rounds)
    if not math.isfinite(bar.count) or bar.is_lower_bound:
        return "not known"
    if plan.question.counts_by_round:
        return f"fewer than {_whole(bar.count)} in each round"
    is_bounded = range_of_unlisted(plan, rounds) is not None and not _has_noise(plan)
    if not is_bounded and bar.count > _most(plan, rounds):
        return "not known"
    if isinstance(plan, ReportPlan):
        return f"estimated below about {_whole(bar.count)}"
    return f"{'fewer than' if is_bounded else 'not found to reach'} {_whole(bar.count)}"


def count_with_range(plan: AnyPlan, rounds: CountedRounds) -> str:
    """Return the words for the count of an unlisted option, as in: fewer than 4 (0 to 3)."""
    ends = range_of_unlisted(plan, rounds)
    return count_of_unlisted(plan, rounds) + (f" ({ends[0]} to {ends[1]:,})" if ends else "")


def range_of_unlisted(plan: AnyPlan, rounds: CountedRounds) -> tuple[int, int] | None:
    """Return the smallest and the largest count that an unlisted option may have.

    None if sums do not bound it. It follows from the words for the count, and states no more. For
    reports it ends where the 95% interval of an estimate ends that just misses the bar.
    """
    bar, devices = highest_bar(plan, rounds), devices_of_count(plan.question, rounds)
    if isinstance(plan, ReportPlan) and devices and math.isfinite(bar.count):
        mechanism = REPORT_MECHANISMS[plan.mechanism]
        variance = mechanism.count_variance(plan, bar.count, devices)
        if variance is None or bar.is_lower_bound:
            return None
        _, high = mechanism.confidence_interval(np.array([bar.count]), np.array([variance]))
        return 0, min(devices, math.floor(high[0]))
    is_exact = rounds.largest_t == 1 and not _has_noise(plan) and rounds.decoded == rounds.summed
    is_exact &= rounds.most_cohorts == 1 and not plan.question.counts_by_round
    is_exact &= math.isfinite(bar.count) and not bar.is_lower_bound
    most = _most(plan, rounds)
    return (0, int(min(math.ceil(bar.count) - 1, most))) if is_exact else None


def _most(plan: AnyPlan, rounds: CountedRounds) -> float:
    """Return the largest count of one item in `rounds`, infinite if their devices are secret."""
    devices = devices_of_count(plan.question, rounds)
    return math.inf if devices is None else plan.question.largest_count(devices)


def _whole(count: float) -> str:
    return f"{math.ceil(count):,}"
