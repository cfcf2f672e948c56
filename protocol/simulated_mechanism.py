"""Parts of a mechanism for its own simulation: the question about known items, and measures.

A simulation knows the items of all devices, and so the true answer. It asks a mechanism for a
question about these items, plays the rounds, and compares the answer with the truth by the kind of
the answer. Each method has a default, so that a mechanism without any of them is simulated too.
"""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Final

from protocol.described_mechanism import DescribedMechanism
from protocol.domains import Domain
from protocol.domains.known_items import KnownItems
from protocol.privacy.release import ReleaseDesign
from protocol.question_and_plan import MAX_MESSAGE_BYTES, P, Q
from protocol.study_state import StudyState

# Values of required fields that a simulation fills.
_REQUIRED: Final = {
    "threshold": 50,
    "contribution": 1,
    "message_bytes": MAX_MESSAGE_BYTES,
    "epsilon": 1.0,
}


class SimulatedMechanism(DescribedMechanism[Q, P]):
    """Base of `Mechanism` with the parts that its simulation needs."""

    # Fields of the question that a simulation fills, unless they are given.
    presets: ClassVar[Mapping[str, Any]] = {}
    simulated_words: ClassVar[int] = 2000  # of 16 bits, of a vector, unless a number is given
    simulated_rounds: ClassVar[int] = 30  # unless a number is given, or `rounds_needed`
    is_planned: ClassVar[bool] = False  # whether `blindtally plan sum` simulates it

    def question_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Q:
        """Return a question about `known` items; `fields` of it are given.

        Raises:
            ValueError: if a field is invalid, or no domain of this mechanism holds the items.
        """
        types = self.question_type.model_fields
        required = {name for name, field in types.items() if field.is_required()}
        filled: dict[str, Any] = {
            name: value for name, value in _REQUIRED.items() if name in required
        }
        filled |= {"mechanism": self.name, **self.presets, **fields}
        if "domain" in required and "domain" not in filled:
            filled["domain"] = self.domain_about(known, filled)
        return self.question_type.model_validate(filled)

    def domain_about(self, known: KnownItems, fields: Mapping[str, Any]) -> Domain:
        """Return the domain of a question with these `fields`; ValueError if none holds the items.

        This default has the texts with the shortest keys.
        """
        del fields
        return known.text_domain()

    def cheaper_domain(
        self, domain: Domain, items: Collection[str], max_tokens: int, words: int | None
    ) -> Domain:
        """Return a domain of `items` whose keys cost fewer words than those of `domain`, or it.

        Rounds have at most `max_tokens`; without `words` there are many.
        """
        del items, max_tokens, words
        return domain

    def release_designs(
        self, devices: int, epsilon: float, delta: float, levels: int, contribution: int
    ) -> list[ReleaseDesign]:
        """Return the best design of each way to release counts over `levels` rounds.

        Raises:
            ValueError: if the mechanism releases no counts, a number is out of its range, or no
                design keeps the budget.
        """
        del devices, epsilon, delta, levels, contribution
        raise ValueError(f"{self.name} has no designs to compare: triehh has them")

    def measures(
        self, plan: P, state: StudyState, truth: Mapping[str, int], devices: int
    ) -> dict[str, Any]:
        """Return results that only this mechanism can name, for the JSON of its simulation.

        `plan` is that of the last round, and `state` the one after it. `devices` are all that were
        selected for a round with a sum, each once, and `truth` has the counts of their items.
        """
        del plan, state, truth, devices
        return {}
