"""Questions whose counts are released with central differential privacy.

A question states the epsilon and delta that all rounds of its study may cost together, and how its
counts are hidden (`protocol/privacy/release.py`). Neighbouring populations differ in the items
of one device. That the device takes part is not secret.

If the probability p of a vote is small, most devices send a vector without a vote. They can stay
away instead: in each round a device joins by its own coin, with probability v
(`join_probability`), and a device that joined votes with probability p / v. So each device votes
with probability p, independently of all others, exactly as if all had joined. No party chooses
the devices, and no party needs to know which devices stayed away. The ledger states what this hides
from each party. The server of [Cormode21] instead selects s = m + c sqrt(m) devices, which it
knows, and whose number has another distribution.
"""

import math
from typing import Annotated, Self

from pydantic import Field, model_validator

from protocol.domains.base import Digits
from protocol.privacy.loss_distributions import NeighbourRelation
from protocol.privacy.release import ReleaseMode
from protocol.public_model import invalid
from protocol.question_and_plan import SumQuestion

MIN_EPSILON = 1e-6  # of a study: below it, a sum cannot hold the noise


class ReleaseQuestion(SumQuestion):
    """Question that may cost `epsilon` and `delta` in all of its rounds together.

    `mode` selects how counts are hidden, and so from which parties: without noise, not from
    the server. `relation` defines neighbouring populations. `colluders` is the largest number of
    colluding devices in one cell. `theta` and `probability` are computed if they are not given.
    With `every_round`, each device takes part in every round. Otherwise it takes part in one
    round, which reveals less of it but needs more devices. A device joins a round with
    probability `join_probability`.
    """

    epsilon: float = Field(ge=MIN_EPSILON, le=40)
    delta: Annotated[float, Field(ge=1e-11, lt=1)]
    mode: ReleaseMode = "sample-threshold"
    relation: NeighbourRelation = "add-remove"
    colluders: int = Field(default=0, ge=0, le=1000)
    theta: int | None = Field(default=None, ge=1, le=10_000)
    probability: float | None = Field(default=None, ge=1e-6, lt=1)
    every_round: bool = True
    join_probability: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _fits_its_mode(self) -> Self:
        faults = []
        if (self.theta is None) != (self.probability is None) and self.mode == "sample-threshold":
            faults.append("give both theta and probability, or neither")
        if self.mode != "sample-threshold" and self.theta is not None:
            faults.append("theta needs mode sample-threshold: noise has its own threshold")
        if self.mode == "noise" and self.probability is not None:
            faults.append("probability cannot be given in mode noise, in which every device votes")
        if faults:
            raise invalid(faults)
        return self

    @model_validator(mode="after")
    def _join_probability_fits(self) -> Self:
        if self.join_probability == 1:
            return self
        faults = []
        if self.mode == "noise":
            faults.append(
                "with mode noise every device that joins votes, and the server sees who joins: "
                "leave join_probability at 1, or use mode both with a probability below it"
            )
        if self.probability is not None and not self.probability < self.join_probability:
            faults.append(
                f"join_probability {self.join_probability:g} must be above the probability "
                f"{self.probability:g}: some devices that join must not vote"
            )
        if self.max_votes > 1:
            faults.append(
                "a device's votes in one round would share the coin by which it joins: a "
                "join_probability below 1 allows one vote per round, so use a contribution of 1"
            )
        if not self.every_round:
            faults.append("a join_probability below 1 needs every_round: each round has new coins")
        if faults:
            raise invalid(faults)
        return self

    @property
    def digits(self) -> Digits:
        """Return the domain, whose items are strings of digits, as each question checks."""
        assert isinstance(self.domain, Digits)
        return self.domain

    @property
    def hides_device_counts(self) -> bool:
        return self.discards_sums and self.join_probability < 1

    def largest_count(self, devices: int) -> float:
        """Return the largest count of one item; devices that joined by coins count for others."""
        return math.inf if self.join_probability < 1 else float(devices)

    @property
    def table_failure_delta(self) -> float:
        """Return the part of delta that pays for vote tables that cannot be read; here none."""
        return 0.0

    @property
    def asks_every_round(self) -> bool:
        return self.every_round

    @property
    def discards_sums(self) -> bool:
        return self.mode == "sample-threshold"
