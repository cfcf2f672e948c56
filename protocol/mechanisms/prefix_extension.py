"""Prefix extension: the heavy strings of a domain that nobody can enumerate, one report each.

An item is its UTF-8, filled up with NUL to `max_bytes`; a device with nothing to say reports a
string of bytes 255, which is no UTF-8, as others report theirs. A report is the length of a
prefix, drawn at random, and what an oracle makes of the prefix (`oracles/prefix.py`); the
oracle's epsilon is spent once.

    count  =  (n / n_g) (the oracle's among the n_g who drew the whole length)

What is kept are the reports themselves, of all rounds: candidates come up as prefixes are
extended, and the oracle must be asked for them. Hash functions and parameters stay for the
study, so that after round r it has found what one round of all its devices would have.

Source: [Wang21]; see `docs/hsu2012.md`. The string for nothing is ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.chance import Chance
from protocol.domain import Utf8
from protocol.mechanism import (
    Answer,
    Estimate,
    Hex32,
    Histogram,
    Terms,
    first_fields,
    put_estimates,
    ranked,
    standing_out,
)
from protocol.mechanisms.holdings import rows_of
from protocol.oracles.counting import Counting
from protocol.oracles.counts import Parameters
from protocol.oracles.goals import oracle_for
from protocol.oracles.oracle import Oracle
from protocol.oracles.prefix import PrefixExtension
from protocol.oracles.registry import check_as_asked, oracle_of
from protocol.reporting import SHOWN, Reporting, ReportPlan, ReportQuestion, Reports
from protocol.tally import Tally

_NOTHING = b"\xff"
_REPORTS = "reports"  # of a tally: of all rounds so far


class PrefixQuestion(ReportQuestion):
    """Which strings are heavy: prefixes of `start` bits, then `step` more a length.

    `keep` prefixes of each length are extended; a string that nobody holds is listed with odds
    of `beta`. The `oracle` counts prefixes hashed to `hashed_bits`: a candidate has the key of
    another, heavy one with odds of 2^-hashed_bits.
    """

    mechanism: Literal["prefix-extension"]
    domain: Utf8
    oracle: Literal["hadamard", "ocms-gf"] = "hadamard"
    hashed_bits: int = Field(default=22, ge=8, le=24)
    start: int = Field(default=12, ge=1, le=20)
    step: int = Field(default=8, ge=1, le=16)
    keep: int = Field(default=64, ge=1, le=2**16)
    beta: float = Field(default=0.05, gt=0, lt=1)

    @model_validator(mode="after")
    def _can_be_asked(self) -> Self:
        self.extension(self.chosen, bytes(32))
        return self

    @property
    def chosen(self) -> Oracle:
        """Return the oracle, with the parameters that keep the sum of its squared errors small."""
        return oracle_for(self.oracle, self.epsilon, 2**self.hashed_bits, "l2")

    def extension(self, oracle: Oracle, seed: bytes) -> PrefixExtension:
        """Return prefix extension over `oracle`, hashes growing from the 32 bytes of `seed`.

        Raises:
            ValueError: if there is none for these parameters; says which is out of its range.
        """
        return PrefixExtension(
            oracle=Counting(oracle),
            size=self.domain.max_bytes,
            seed=seed,
            start=self.start,
            step=self.step,
            keep=self.keep,
            beta=self.beta,
        )


class PrefixPlan(ReportPlan):
    """Report by the oracle of `parameters`; `hashes` are 32 public bytes that hashes grow from."""

    mechanism: Literal["prefix-extension"]
    question: PrefixQuestion
    parameters: Parameters
    hashes: Hex32

    @model_validator(mode="after")
    def _is_the_oracle_asked_for(self) -> Self:
        asked = self.question
        check_as_asked(self.parameters, asked.oracle, asked.epsilon, 2**asked.hashed_bits)
        return self

    @cached_property
    def extension(self) -> PrefixExtension:
        """Return what reports and reads them."""
        seed = bytes.fromhex(self.hashes)
        return self.question.extension(oracle_of(self.parameters), seed)


@dataclass(frozen=True, eq=False)
class Kept:
    """The reports themselves, in the batches that they came in."""

    batches: tuple[Reports, ...] = field(repr=False)

    @property
    def reports(self) -> int:
        """Return how many there are."""
        return sum(map(len, self.batches))

    def __add__(self, other: "Kept") -> "Kept":
        """Return all of both."""
        return Kept(self.batches + other.batches)


class PrefixExtending(Reporting[PrefixQuestion, PrefixPlan, Kept]):
    """See the module's docstring."""

    name = "prefix-extension"

    def first_plan(
        self, question: PrefixQuestion, terms: Terms, study: str, rounds: int, rng: Random
    ) -> PrefixPlan:
        """Return the plan of round 1; all that changes later is the seed, which is not used."""
        return PrefixPlan(
            **first_fields(question, terms, study, rounds, rng),
            parameters=question.chosen.parameters,
            hashes=rng.randbytes(32).hex(),
        )

    def nbytes(self, plan: PrefixPlan) -> int:
        """Return the bytes of a report."""
        return -(-plan.extension.bits // 8)

    def encode(self, plan: PrefixPlan, histograms: Iterable[Histogram], chance: Chance) -> Reports:
        """Return a report for each device."""
        domain = plan.question.domain

        def padded(items: Sequence[str]) -> NDArray[np.uint8]:
            strings = b"".join(_padded(domain, item) for item in items)
            return np.frombuffer(strings, np.uint8).reshape(-1, domain.max_bytes)

        nothing = np.frombuffer(_NOTHING, np.uint8)
        return plan.extension.perturb(rows_of(domain, histograms, padded, nothing), chance)

    def check(self, plan: PrefixPlan, reports: Reports) -> None:
        """Raise ValueError if a report has a wrong length, or a field out of its range."""
        plan.extension.check(reports)

    def gather(self, plan: PrefixPlan, reports: Reports) -> Kept:
        """Return `reports`; raises as `check`."""
        self.check(plan, reports)
        return Kept((reports,))

    def decode(self, plan: PrefixPlan, heard: Kept, tally: Tally) -> Answer:
        """Return what the round's reports name; the tally has what those of all rounds do.

        A round in which no device drew some length is not decoded: its reports are kept.
        """
        here = np.concatenate(heard.batches)
        before = tally.arrays.get(_REPORTS, here[:0])
        everybody = np.concatenate((before, here))
        found = _identified(plan, here)
        total = _identified(plan, everybody) if len(before) else found
        kept = put_estimates(tally, total or []).keep(_REPORTS, everybody)
        if found is None:
            return Answer(False, 0.0, tally=kept)
        return Answer(True, standing_out(found), tuple(found), kept)


def _padded(domain: Utf8, item: str) -> bytes:
    if item not in domain:
        raise ValueError(f"{item!r} is outside the domain of kind {domain.kind}")
    return item.encode().ljust(domain.max_bytes, b"\0")


def _identified(plan: PrefixPlan, reports: Reports) -> list[Estimate] | None:
    """Return what is listed, None if no report is of some length."""
    extension = plan.extension
    if not np.bincount(reports[:, 0], minlength=len(extension.lengths)).all():
        return None
    listed = [(_text(one.value), one) for one in extension.identify(reports, SHOWN)]
    return ranked(
        Estimate(item, one.count, one.variance)
        for item, one in listed
        if item is not None and item in plan.question.domain
    )


def _text(value: bytes) -> str | None:
    try:
        return value.rstrip(b"\0").decode()
    except UnicodeDecodeError:  # that of a device with nothing to say, or noise
        return None
