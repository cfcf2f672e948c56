"""Answer of a study in one sentence, for readers who do not know its mechanism.

3 items were counted at 8 or more of 372 devices; github.com at about 178 of them (48%).
No item was counted at 8 or more of 372 devices.
Half of 250 devices have 32.5 or less; the true median is between 30.1 and 34.8 with 95%
confidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.api.messages import HeavyHitter, QueryResult
from protocol.description import AnswerKind
from protocol.estimation.number_summary import NumberSummary
from protocol.mechanisms.registry import AnyQuestion, mechanism_of
from protocol.printable import printable

_TENTH = 0.1  # a share below it has two digits and a point: 4.2%


@dataclass(frozen=True, slots=True)
class Headline:
    """A sentence in which `{item}` stands for the most common `item`."""

    template: str
    item: str = ""

    def __str__(self) -> str:
        return self.template.format(item=printable(self.item))


def share_text(share: float) -> str:
    """Return a share as a percentage with at most two significant digits, such as 48% or 4.0%."""
    return f"{share:.0%}" if share >= _TENTH or not share else f"{100 * share:#.2g}%"


def known_digits(number: float, low: float, high: float) -> str:
    """Return a number with two significant digits of its interval: 28.5 between 27.3 and 29.6.

    Without an interval that is wider than 0 it has six significant digits.
    """
    width = high - low
    if not (math.isfinite(number) and math.isfinite(width) and width > 0):
        return f"{number:,.6g}"
    decimals = 1 - math.floor(math.log10(width))
    return f"{round(number, decimals) + 0.0:,.{max(0, decimals)}f}"


def headline(
    question: AnyQuestion,
    devices: int | None,
    rows: Sequence[HeavyHitter] = (),
    numbers: NumberSummary | None = None,
    median: QueryResult | None = None,
    least: str | None = None,
) -> Headline | None:
    """Return the answer of `devices` devices in the sums; None if no number was asked and summed.

    `devices` is None if their number is secret. `rows` are all heavy hitters, most common first.
    `numbers` are those of all devices, and `median` is that of a distribution. An item is listed
    from a count of `least`, by default the threshold.
    """
    kind = mechanism_of(question).answer_kind(question)
    among = "" if devices is None else f" of {devices:,} devices"
    if kind is AnswerKind.MEANS:
        if numbers is None:
            return None
        mean, total = f"{numbers.mean:.4g}", f"{numbers.sum:,.6g}"
        is_visible = f"{numbers.mean + numbers.rounding:.4g}" != mean
        note = f" (each rounded by up to {numbers.rounding:.2g})" if is_visible else ""
        return Headline(
            f"The mean of the numbers of {numbers.devices:,} devices is {mean}, and their sum is "
            f"{total}{note}."
        )
    if kind is AnswerKind.DISTRIBUTION:
        if median is None:
            return None
        ends = median.low, median.high
        half, low, high = (known_digits(each, *ends) for each in (median.value, *ends))
        return Headline(
            f"Half{among or ' of the devices'} have {half} or less; the true median is between "
            f"{low} and {high} with 95% confidence."
        )
    if kind is AnswerKind.NUMBER:
        return (
            Headline(f"{{item}}: {rows[0].estimate:,.0f}{among}.", rows[0].item) if rows else None
        )
    return _items_headline(question, devices, rows, least or f"{question.threshold:,g}")


def _items_headline(
    question: AnyQuestion, devices: int | None, rows: Sequence[HeavyHitter], least: str
) -> Headline:
    """Return the number of heavy items, and the most common one."""
    noun = "option" if mechanism_of(question).options(question) else "item"
    number = f"{f'{len(rows):,}' if rows else 'No'} {noun}{'' if len(rows) < 2 else 's'}"
    number += " was" if len(rows) < 2 else " were"
    if devices is None:
        counted = f"{number} counted {least} times or more"
    else:
        counted = f"{number} counted at {least} or more of {devices:,} devices"
    if not rows:
        return Headline(f"{counted}.")
    first = rows[0]
    about = "about " if first.standard_error >= 0.5 else ""
    share = question.share(first.estimate, devices)
    most = f"{about}{first.estimate if share is None else share * (devices or 0):,.0f}"
    which = f"at {most} of them ({share_text(share)})" if share is not None else f"{most} times"
    return Headline(f"{counted}; {{item}} {which}.", first.item)
