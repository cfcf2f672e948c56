"""Goal of a study: the expected precision and recall of its list at which it ends early.

Both follow from the probability of each item being heavy (`empirical_bayes.py`). They are
expectations of a model: where the model does not fit the data, the list may be worse than the goal.
The decision reads only the state of a round and the published quality of the list, so it reveals
nothing that the answer does not reveal.

A round that was not decoded ends no study, and neither does an empty list: its expected recall is
defined as 0, because an empty list does not show that there are no heavy items.
"""

from typing import Annotated

from pydantic import Field

from protocol.estimation.estimates import ListQuality
from protocol.mechanisms.registry import MECHANISMS, AnyQuestion, mechanism_of
from protocol.mechanisms.sampled_counts import SampledCounts
from protocol.public_model import PublicModel

_Share = Annotated[float, Field(gt=0, lt=1)]


class QualityGoal(PublicModel):
    """Expected `precision` and `recall` of the heavy hitters from which a study may end."""

    precision: _Share
    recall: _Share

    def is_reached(self, is_decoded: bool, quality: ListQuality | None) -> bool:
        """Return whether a list of this `quality`, after a round that `is_decoded`, is enough."""
        return (
            is_decoded
            and quality is not None
            and (quality.expected_precision or 0.0) >= self.precision
            and (quality.expected_recall or 0.0) >= self.recall
        )


def goal_fault(question: AnyQuestion) -> str | None:
    """Return the reason against a goal of a study of `question`; None if it can have one."""
    if mechanism_of(question).estimates_quality(question):
        return None
    names = ", ".join(name for name, each in MECHANISMS.items() if isinstance(each, SampledCounts))
    return (
        f"{question.mechanism} does not estimate the precision and recall of this study's list, so "
        f"the study cannot stop at a goal: use one of {names} (the last with rule practical)"
    )


def parse_goal(text: str | None) -> QualityGoal | None:
    """Return the goal in a `text` such as "0.95,0.9", None without one; ValueError if malformed."""
    if text is None:
        return None
    precision, _, recall = text.partition(",")
    try:
        return QualityGoal(precision=float(precision), recall=float(recall))
    except ValueError:
        raise ValueError(
            "the goal is an expected precision and recall, both above 0 and below 1, such as "
            f"0.95,0.9: got {text!r}"
        ) from None
