"""The mechanism `yes-no`: how many devices answer a question with yes, and how many with no.

A device that holds "yes" adds (1, 0) to the sum, one that holds "no" adds (0, 1), and one without
an answer adds nothing. For example, the sum of 200 devices is (120, 60). A number of fewer devices
than the threshold is not shown.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import field_validator

from protocol.description import THRESHOLD, Description, QuestionForm
from protocol.domains.strings import Listed
from protocol.histograms import Histogram, device_values
from protocol.mechanism import Answer, SumMechanism
from protocol.question_and_plan import Plan, SumQuestion
from protocol.randomness import RandomWords
from protocol.study_state import StudyState
from secagg.ring import Lane, Ring, Vector

ANSWERS = ("yes", "no")
FIXED = {
    "contribution": 1,
    "message_bytes": 2**20,
    "domain": {"kind": "listed", "items": [*ANSWERS]},
}


class YesNoQuestion(SumQuestion):
    """Question that devices answer with yes or no."""

    mechanism: Literal["yes-no"] = "yes-no"
    contribution: Literal[1] = 1
    message_bytes: Literal[2**20] = 2**20  # its vector has 8 bytes at most
    domain: Listed = Listed(items=ANSWERS)

    @field_validator("domain")
    @classmethod
    def _has_both_answers(cls, domain: Listed) -> Listed:
        if domain.items != ANSWERS:
            raise ValueError("the items of yes-no are yes and no, in this order")
        return domain


class YesNoPlan(Plan):
    """Plan of a round."""

    mechanism: Literal["yes-no"] = "yes-no"
    question: YesNoQuestion


class YesNo(SumMechanism[YesNoQuestion, YesNoPlan]):
    """Mechanism of the numbers of devices that answer yes and no."""

    name = "yes-no"
    question_type = YesNoQuestion
    plan_type = YesNoPlan
    description = Description(
        purpose="how many devices answer yes, and how many no, exact",
        cost="2 to 8 bytes per round",
        form=QuestionForm(
            "Yes or no",
            "How many devices answer yes, and how many no. A device holds the item yes or no.",
            FIXED,
            (THRESHOLD,),
        ),
        defaults=FIXED,
    )

    def aim(self, question: YesNoQuestion, items: str) -> str:
        del question, items
        return "Counts the devices that answer yes, and those that answer no"

    def ring(self, plan: YesNoPlan) -> Ring:
        return Ring((Lane(plan.terms.moduli.above(plan.terms.max_devices), 2),))

    def encode_sum(
        self, plan: YesNoPlan, histograms: Iterable[Histogram], chance: RandomWords
    ) -> Vector:
        del chance  # every answer is added
        values = device_values(plan.question.domain, histograms)
        counts = np.bincount(values[values < 2].astype(np.int64), minlength=2)
        return (counts.astype(self.ring(plan).lanes[0].dtype),)

    def fault(self, plan: YesNoPlan, total: Vector, participants: int) -> str | None:
        """Return the law that `total` breaks: a device answers once. Other lies are not noticed."""
        del plan
        is_possible = int(total[0].astype(np.int64).sum()) <= participants
        return None if is_possible else "there are more answers than devices"

    def decode(
        self, plan: YesNoPlan, total: Vector, participants: int, state: StudyState
    ) -> Answer:
        del participants  # some of them hold no answer
        counts = total[0].astype(float)
        state = state.add(ANSWERS, {"count": counts, "variance": np.zeros(2)})
        listed = tuple(self.final_estimates(plan.question, self.shown(plan.question, state)))
        return Answer(True, len(listed), listed, state)

    def shown(self, question: YesNoQuestion, state: StudyState) -> StudyState:
        """Return the answers of enough devices: without noise, smaller counts must not be shown."""
        return state.select_rows(state.column("count") >= question.threshold)


MECHANISM = YesNo()
