"""Answers of a mechanism about itself, so that no other package asks which mechanism it is.

Each method has a default that fits a list of counted items. A mechanism overrides those that differ
for it. For example, `number-sums` answers means, so it overrides `answer_kind` and
`number_summaries`; the page, the API, the command `query` and a simulation follow from these two.
"""

from abc import ABC
from collections.abc import Iterator
from typing import Generic

from protocol.description import AnswerKind, Bar, Description, PlanFact
from protocol.domains.strings import Listed
from protocol.estimation.number_summary import NumberSummaries
from protocol.quantiles.cdf import Estimator
from protocol.quantiles.distribution import Distribution
from protocol.question_and_plan import P, Q
from protocol.study_state import StudyState


class DescribedMechanism(ABC, Generic[Q, P]):
    """Base of `Mechanism` with the facts that pages, commands and planners ask for."""

    name: str
    description: Description
    question_type: type[Q]
    plan_type: type[P]
    # Devices in JavaScript encode its vectors, too (`js/src/encode.js`).
    is_in_javascript: bool = False

    def answer_kind(self, question: Q) -> AnswerKind:
        """Return the kind of the answers to `question`."""
        del question
        return AnswerKind.ITEMS

    def aim(self, question: Q, items: str) -> str:
        """Return the aim of a study of `question`, as the beginning of a sentence.

        `items` are the domain in words, such as "strings of up to 12 bytes".
        """
        total = f"a total of {question.threshold:,.6g} or more"
        if self.options(question):
            return f"Counts {items}, and lists those with {total}"
        return f"Finds {items} with {total}"

    def options(self, question: Q) -> tuple[str, ...]:
        """Return all names that an answer can list, if the question itself lists them.

        An answer of one number is about one name, and leaves the others open.
        """
        lists_items = self.answer_kind(question) is AnswerKind.ITEMS
        return question.domain.items if lists_items and isinstance(question.domain, Listed) else ()

    def rounds_needed(self, question: Q) -> int | None:
        """Return the number of rounds after which an answer is complete; None if any will do."""
        del question
        return None

    def bars(self, plan: P, devices: int | None) -> Iterator[Bar]:
        """Yield the counts that items need to be listed, other than the question's threshold.

        `devices` are those that one count is of, None if no sum was made so far.
        """
        del plan, devices
        yield from ()

    def may_show_one_device(self, plan: P) -> bool:
        """Return whether estimates of sums without noise may show what a single device holds.

        They may if cells have common items together with rare ones, exactly. Devices with default
        settings refuse such a plan.
        """
        del plan
        return False

    def table_capacity(self, plan: P) -> int | None:
        """Return the number of items that the table of a round can hold; None without a table."""
        del plan
        return None

    def fetched_strings(self, plan: P) -> int:
        """Return the number of strings of which the round fetches pieces."""
        del plan
        return 0

    def plan_facts(self, plan: P) -> Iterator[PlanFact]:
        """Yield numbers that an analyst sees before a study begins, such as the expected noise."""
        del plan
        yield from ()

    def server_sees(self, question: Q, group: str) -> tuple[str, ...]:
        """Return texts on the data that the server can read of each `group`, summed without noise.

        The first text completes a sentence, such as "The exact sum of each round: the counts of
        common items, which are the answer". The others are sentences.
        """
        del question, group
        return (
            "the counts of common items, which are the answer",
            (
                "A rare item too, if its device sampled it: that a device holds the item, but not "
                "which device. This is not differential privacy."
            ),
        )

    def plan_readers_see(self, question: Q) -> str | None:
        """Return a sentence on what all who may join read in plans; None if that is nothing."""
        del question
        return None

    def trust_in_server(self, question: Q) -> str | None:
        """Return a sentence on what a dishonest server could ask for, in addition to sums."""
        del question
        return None

    def why_no_ranks(self, question: Q) -> str | None:
        """Return the reason why a study has no quantiles, with the answer that it has, or None."""
        kind = self.answer_kind(question)
        if kind is AnswerKind.DISTRIBUTION:
            return None
        answers = "means" if kind is AnswerKind.MEANS else "heavy hitters"
        return (
            f"{self.name} has no quantiles, ranks or ranges: hierarchical-histogram has them, for "
            f"numbers. Ask for the {answers} of this study"
        )

    def distribution(
        self, plan: P, state: StudyState, *, estimator: Estimator = "ratio", beta: float = 0.05
    ) -> Distribution:
        """Return the distribution of the values in `state`; `plan` is the plan of any round.

        Its confidence intervals hold with probability 1 - `beta`. `estimator` is for tries.

        Raises:
            ValueError: if the mechanism has no tree, the tree is empty so far (`EmptyTreeError`),
                the estimator is "plain" and devices have several items, or the number of devices is
                secret.
        """
        del plan, state, estimator, beta
        raise ValueError(f"{self.name} counts no prefixes, so it has no frequencies of them")

    def number_summaries(self, plan: P, state: StudyState, beta: float = 0.05) -> NumberSummaries:
        """Return means and variances of the numbers in `state`; `plan` is the plan of any round.

        Raises:
            ValueError: if the mechanism sums no numbers, or no segment has an answer so far
                (`NoNumbersError`).
        """
        del plan, state, beta
        raise ValueError(f"{self.name} sums no numbers, so it has no mean")
