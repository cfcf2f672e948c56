"""What a device will take part in: its own limits, checked before it sends anything.

The service proposes, the device disposes. A plan says how much a device gives and among how
many it is hidden; a device compares that with its policy and refuses what goes beyond. The
roster comes later and may offer less than the plan promised, so it is checked as well. A
refusal names its limit, so that whoever runs devices knows which one to look at.

`min_cohort` bounds the devices *in a sum*. A cohort of n keeps at least `quorum(n)` of them,
so it is the quorum that is compared, not the n that the service counts at the start.

How many hold shares and how many confirm is no limit of a policy: a device computes that from
the plan's terms, which it compares here, and from the roster.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from protocol.mechanisms import REPORTING, SUMMING, AnyPlan
from protocol.messages import Seat
from protocol.report import packed_bytes
from secagg.deals import KeyDeal, SeedDeal
from secagg.errors import RefusedError
from secagg.keys import SIGNATURE_BYTES, Identity
from secagg.parameters import Mode, parameters


class PolicyError(RefusedError):
    """The service asked for more than this device gives.

    Attributes:
        limit: the name of the limit in `Policy`, or of the promise that was not kept.
        offered: what the limit would have to be for this to be taken, where one value is enough.
    """

    def __init__(self, limit: str, what: str, offered: float | str | None = None) -> None:
        super().__init__(f"{what} ({limit})")
        self.limit = limit
        self.offered = offered
        self._made_of = limit, what, offered

    def __reduce__(self) -> tuple[type[Self], tuple[str, str, float | str | None]]:
        """Return what it is made of: fleets of several processes tell each other what refused."""
        return type(self), self._made_of


@dataclass(frozen=True, slots=True)
class Policy:
    """A device's limits: what it gives at most, and what it asks in return.

    `min_corrupt`, `max_dropout` and `min_sigma` bound the assumptions that holders and
    threshold are computed from: terms that assume nobody corrupt protect from nobody. `modes`
    are those that the device takes part in: unless told otherwise it trusts no server to keep
    to the protocol. `registrar` is the public key of the one registrar that may vouch for the
    others, None if any may, or nobody. `max_upload_bytes` bounds what a device sends in one
    round before the survivors are known: its shares, and its vector. `max_sharings` bounds
    how often it shares keys in one study without giving a vector: each time is another chance
    of 2^-sigma for whoever hopes for better holders. `max_epsilon` bounds what a device spends
    on locally private reports in all studies together, and `max_delta` the odds that any one of
    them tells more than its epsilon; of a report no other limit matters but `registrar` and
    `max_upload_bytes`. Where a study wants its devices in every round, `max_rounds` bounds in
    how many; their noise must keep `max_epsilon` at `max_delta`, and unless the device may
    `repeat_exact`, there must be noise: two sums of which one has a device and the other has not
    would tell what it gave.
    """

    max_contribution: int = 100
    min_cohort: int = 50
    min_corrupt: float = 0.05
    max_dropout: float = 0.5
    min_sigma: int = 40
    modes: frozenset[Mode] = frozenset({"active"})
    max_upload_bytes: int = 4 * 2**20
    max_sharings: int = 64
    registrar: bytes | None = None
    max_epsilon: float = 4.0
    max_delta: float = 1e-5
    max_rounds: int = 32
    repeat_exact: bool = False

    def check_plan(
        self,
        plan: AnyPlan,
        study: str,
        number: int,
        given: Mapping[str, Collection[int]] | None = None,
    ) -> None:
        """Check the plan that was offered for round `number` of `study`.

        `given` are the rounds of studies that this device gave to already: it gives once, or if
        devices are to take part in every round, once a round.

        Raises:
            PolicyError: names the first limit that the plan is beyond.
        """
        for refusal in self.refusals(plan, study, number, given):
            raise refusal

    def refusals(
        self,
        plan: AnyPlan,
        study: str,
        number: int,
        given: Mapping[str, Collection[int]] | None = None,
    ) -> Iterator[PolicyError]:
        """Yield why `check_plan` refuses, a limit each: whoever mends one wants to know of all."""
        if (plan.study, plan.round) != (study, number):
            shown = f"round {plan.round} of {plan.study}"
            yield PolicyError("plan", f"showed the plan of {shown} for round {number} of {study}")
        yield from self._again(plan, (given or {}).get(study, ()))
        yield from self._registrar(plan)
        if plan.mechanism in SUMMING:
            yield from self._terms(plan)
        else:
            yield from self._delta(REPORTING[plan.mechanism].delta(plan))
        yield from self._size(plan)

    def check_enrolment(self, plan: AnyPlan, identity: Identity, enrolment: bytes) -> None:
        """Check that the registrar which the plan names is the one that let me in.

        Raises:
            PolicyError: if it is another, so that the others may be anybody.
        """
        if plan.registry and not plan.registry.admits(identity.public, enrolment):
            raise PolicyError("registrar", "names a registrar that did not enrol me")

    def check_cohort(self, plan: AnyPlan, seat: Seat, n: int) -> None:
        """Check that the cohort of `n` which came together is the one that `plan` promised.

        Raises:
            PolicyError: names the limit, or the promise that was not kept.
        """
        terms = plan.terms
        if not terms.minimum <= n <= terms.cohort_size:
            promised = f"{terms.minimum} to {terms.cohort_size}"
            raise PolicyError("terms", f"runs a cohort of {n} where {promised} were promised")
        if not (0 <= seat.slot < n and 0 <= seat.cohort < terms.cohorts):
            where = f"slot {seat.slot} of cohort {seat.cohort}"
            raise PolicyError("seat", f"seated me in {where}, which there is not")
        for refusal in self._quorum(terms.assumptions.quorum(n)):
            raise refusal

    def check_told(self, plan: AnyPlan, told: float) -> None:
        """Check that noise hides me in this sum and those before, which told a rho of `told`.

        A plan says how much noise there is in its own round, and may say less of later ones.

        Raises:
            PolicyError: if it does not, of a study that wants me in every round.
        """
        if not plan.question.repeats or self.repeat_exact:
            return
        rho = rho_of(plan)
        for refusal in self._rho(told + (math.inf if rho is None else rho)):
            raise refusal

    def check_epsilon(self, spent: float, epsilon: float) -> None:
        """Check that `epsilon` may be spent after what was `spent` before.

        Raises:
            PolicyError: if it is more than is left.
        """
        if not spent + epsilon <= self.max_epsilon * (1 + 1e-9):  # nor if one is no number
            left = max(0.0, self.max_epsilon - spent)
            asked = f"asks for epsilon {epsilon:g} where {left:g} is left"
            raise PolicyError("max_epsilon", asked, _upwards(spent + epsilon))

    def _again(self, plan: AnyPlan, rounds: Collection[int]) -> Iterator[PolicyError]:
        """Yield why a plan may not ask me again that gave to `rounds` of its study before."""
        if not plan.question.repeats:
            if rounds:
                asked = f"asked for a second contribution to study {plan.study}"
                yield PolicyError("once per study", asked)
            return
        yield from self._noise(plan, max(plan.rounds, len(rounds) + 1))
        if plan.round in rounds:
            where = f"round {plan.round} of study {plan.study}"
            yield PolicyError("once per round", f"asked for a second contribution to {where}")
        if len(rounds) >= self.max_rounds:
            wanted = f"{self.max_rounds} of a study are the most"
            yield PolicyError("max_rounds", f"asked for another round where {wanted}")

    def _noise(self, plan: AnyPlan, releases: int) -> Iterator[PolicyError]:
        """Yield why noise does not hide what so many sums with and without me differ in.

        Epsilon is that of a Gaussian of the same variance, by [BunSteinke16, proposition 1.3]: a
        device accounts for nothing, but sees what is far off. It counts its own coins for nothing.
        """
        rho = rho_of(plan)
        if rho is None:
            if not self.repeat_exact:
                asked = "asks for me in every round, and adds no noise that hides me in their sums"
                yield PolicyError("repeat_exact", asked)
            return
        yield from self._rho(rho * releases)

    def _rho(self, rho: float) -> Iterator[PolicyError]:
        epsilon = rho + 2 * math.sqrt(rho * -math.log(self.max_delta))
        if not epsilon <= self.max_epsilon:
            wanted = f"{self.max_epsilon:g} is the most"
            asked = f"adds noise for epsilon {epsilon:.3g} where {wanted}"
            yield PolicyError("max_epsilon", asked, _upwards(epsilon))

    def _registrar(self, plan: AnyPlan) -> Iterator[PolicyError]:
        if self.registrar is not None and plan.terms.registrar != self.registrar.hex():
            shown = plan.terms.registrar or "no registrar"
            yield PolicyError("registrar", f"names {shown} where {self.registrar.hex()} is wanted")

    def _terms(self, plan: AnyPlan) -> Iterator[PolicyError]:
        terms = plan.terms
        yield from self._quorum(terms.assumptions.quorum(terms.minimum))
        if terms.mode not in self.modes:
            wanted = " or ".join(sorted(self.modes))
            asked = f"asked for the {terms.mode} mode where {wanted} is wanted"
            yield PolicyError("modes", asked, terms.mode)
        if terms.corrupt < self.min_corrupt:
            wanted = f"at least {self.min_corrupt} is to be assumed"
            asked = f"assumes {terms.corrupt} corrupt where {wanted}"
            yield PolicyError("min_corrupt", asked, terms.corrupt)
        if terms.dropout > self.max_dropout:
            wanted = f"at most {self.max_dropout} may be"
            asked = f"lets {terms.dropout} be lost where {wanted}"
            yield PolicyError("max_dropout", asked, terms.dropout)
        if terms.sigma < self.min_sigma:
            wanted = f"2^-{self.min_sigma} is the most"
            asked = f"allows odds of 2^-{terms.sigma} where {wanted}"
            yield PolicyError("min_sigma", asked, terms.sigma)

    def _delta(self, delta: float) -> Iterator[PolicyError]:
        if not delta <= self.max_delta * (1 + 1e-9):
            wanted = f"{self.max_delta:g} is the most"
            yield PolicyError("max_delta", f"asks for delta {delta:g} where {wanted}", delta)

    def _quorum(self, quorum: int) -> Iterator[PolicyError]:
        if quorum < self.min_cohort:
            wanted = f"{self.min_cohort} is the least"
            asked = f"may sum as few as {quorum} devices where {wanted}"
            yield PolicyError("min_cohort", asked, quorum)

    def _size(self, plan: AnyPlan) -> Iterator[PolicyError]:
        contribution = plan.question.contribution
        if contribution > self.max_contribution:
            wanted = f"{self.max_contribution} are the most"
            asked = f"asked for up to {contribution} items where {wanted}"
            yield PolicyError("max_contribution", asked, contribution)
        nbytes = upload_bytes(plan)
        if nbytes > self.max_upload_bytes:
            wanted = f"{self.max_upload_bytes} are the most"
            asked = f"asked for {nbytes} bytes where {wanted}"
            yield PolicyError("max_upload_bytes", asked, nbytes)


def _upwards(epsilon: float) -> float | None:
    """Return an epsilon with two decimals that allows this one; None if none does."""
    return math.ceil(100 * epsilon) / 100 if math.isfinite(epsilon) else None


def rho_of(plan: AnyPlan) -> float | None:
    """Return what one sum tells of a device, as rho of [BunSteinke16]; None if it has no noise."""
    shares = SUMMING[plan.mechanism].shares(plan, plan.terms.cohort_size)
    return None if shares is None else plan.question.votes / shares.variance / 2


def upload_bytes(plan: AnyPlan) -> int:
    """Return the bytes of a device's report, or of its shares and vector in a full cohort."""
    if plan.mechanism in REPORTING:
        nbytes: int = REPORTING[plan.mechanism].nbytes(plan)
        return packed_bytes(nbytes, plan.registry is not None)
    holders = parameters(plan.terms.cohort_size, plan.terms.assumptions).holders
    vector: int = SUMMING[plan.question.mechanism].ring(plan).nbytes
    return KeyDeal.nbytes(holders) + SeedDeal.nbytes(holders) + vector + SIGNATURE_BYTES
