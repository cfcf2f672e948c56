"""What a device will take part in: its own limits, checked before it sends anything.

The service proposes, the device disposes. A plan says how much a device gives and among how
many it is hidden; a device compares that with its policy and refuses what goes beyond. The
roster comes later and may offer less than the plan promised, so it is checked as well. A
refusal names its limit, so that whoever runs devices knows which one to look at.

`min_cohort` bounds the devices *in a sum*. A cohort of n keeps at least `quorum(n)` of them,
so it is the quorum that is compared, not the n that the service counts at the start.
"""

from collections.abc import Collection
from dataclasses import dataclass

from protocol.mechanisms import MECHANISMS, AnyPlan
from protocol.messages import Roster, Seat
from secagg.errors import RefusedError
from secagg.graph import Mode


class PolicyError(RefusedError):
    """The service asked for more than this device gives.

    Attributes:
        limit: the name of the limit in `Policy`, or of the promise that was not kept.
    """

    def __init__(self, limit: str, what: str) -> None:
        super().__init__(f"{what} ({limit})")
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Policy:
    """A device's limits: what it gives at most, and what it asks in return.

    `min_corrupt`, `max_dropout` and `min_sigma` bound the assumptions that degree and
    threshold are computed from: a service that assumes nobody corrupt computes a graph that
    protects from nobody.
    """

    max_contribution: int = 100
    min_cohort: int = 50
    min_corrupt: float = 0.05
    max_dropout: float = 0.5
    min_sigma: int = 40
    modes: frozenset[Mode] = frozenset({"semi-honest", "active"})
    max_upload_bytes: int = 4 * 2**20

    def check_plan(
        self, plan: AnyPlan, study: str, number: int, counted: Collection[str] = ()
    ) -> None:
        """Check the plan that was offered for round `number` of `study`.

        `counted` are the studies in whose sums this device is already: it gives once.

        Raises:
            PolicyError: names the first limit that the plan is beyond.
        """
        if (plan.study, plan.round) != (study, number):
            shown = f"round {plan.round} of {plan.study}"
            raise PolicyError("plan", f"showed the plan of {shown} for round {number} of {study}")
        if study in counted:
            raise PolicyError("once per study", f"asked a second time in study {study}")
        self._check_terms(plan)
        self._check_size(plan)

    def check_roster(self, plan: AnyPlan, seat: Seat, roster: Roster) -> None:
        """Check that the cohort which came together is the one that `plan` promised.

        Raises:
            PolicyError: names the limit, or the promise that was not kept.
        """
        terms = plan.terms
        if roster.slot != seat.slot or roster.slot >= roster.n:
            raise PolicyError("seat", f"moved me from slot {seat.slot} to {roster.slot}")
        if not terms.minimum <= roster.n <= terms.cohort_size:
            promised = f"{terms.minimum} to {terms.cohort_size}"
            raise PolicyError(
                "terms", f"runs a cohort of {roster.n} where {promised} were promised"
            )
        self._check_quorum(terms.assumptions.quorum(roster.n))

    def _check_terms(self, plan: AnyPlan) -> None:
        terms = plan.terms
        self._check_quorum(terms.assumptions.quorum(terms.minimum))
        if terms.mode not in self.modes:
            raise PolicyError("modes", f"asked for the {terms.mode} mode")
        if terms.corrupt < self.min_corrupt:
            wanted = f"at least {self.min_corrupt} is to be assumed"
            raise PolicyError("min_corrupt", f"assumes {terms.corrupt} corrupt where {wanted}")
        if terms.dropout > self.max_dropout:
            wanted = f"at most {self.max_dropout} may be"
            raise PolicyError("max_dropout", f"lets {terms.dropout} be lost where {wanted}")
        if terms.sigma < self.min_sigma:
            wanted = f"2^-{self.min_sigma} is the most"
            raise PolicyError("min_sigma", f"allows odds of 2^-{terms.sigma} where {wanted}")

    def _check_quorum(self, quorum: int) -> None:
        if quorum < self.min_cohort:
            wanted = f"{self.min_cohort} is the least"
            raise PolicyError("min_cohort", f"may sum as few as {quorum} devices where {wanted}")

    def _check_size(self, plan: AnyPlan) -> None:
        contribution = plan.question.contribution
        if contribution > self.max_contribution:
            wanted = f"{self.max_contribution} are the most"
            raise PolicyError(
                "max_contribution", f"asked for up to {contribution} items where {wanted}"
            )
        nbytes = MECHANISMS[plan.question.mechanism].ring(plan).nbytes
        if nbytes > self.max_upload_bytes:
            wanted = f"{self.max_upload_bytes} are the most"
            raise PolicyError("max_upload_bytes", f"asked for {nbytes} bytes where {wanted}")
