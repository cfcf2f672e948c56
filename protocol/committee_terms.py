"""Committee that opens the one-shot sums of a study, as its terms name it: operators or volunteers.

A one-shot sum has `secagg.oneshot.parameters.CommitteeParameters`. The terms state rates, from
which every party computes A and D. An operator that registers no key for a round counts as one of
the D dropouts: then the committee has m - 1 members and tolerates D - 1 further dropouts. The
threshold t and the number A of colluding members stay the same.

A study may name more operators than a committee has: the committee then has the first `size` that
registered a key, in the order of the terms, and the others are its reserves. At most A of all named
operators collude, so that a server gains nothing by the choice of those that it admits.

A committee of volunteers has m of V devices, which the study's registrar draws for each round
(`secagg.oneshot.committee`). Exactly V devices volunteer: the first ones that register a key. The
server may choose which they are, and then all devices that work for it are among them. So the
terms state the number K = floor(corrupt * V) of devices that may collude in the whole study, and
the draw has more than A of K with probability at most 2^-sigma (`drawn_committee_parameters`).
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from protocol.public_model import Hex32, PublicModel, Rate, Rows, invalid
from secagg.keys import check_identity
from secagg.oneshot.parameters import (
    MAX_MEMBERS,
    CommitteeParameters,
    committee_parameters,
    drawn_committee_parameters,
    floor_of_rate,
)
from secagg.parameters import MAX_EXPONENT

MAX_OPERATORS = 100
MAX_VOLUNTEERS = 5_000


class CommitteeTerms(PublicModel):
    """Operators of a committee by their Ed25519 public keys, and how many of them may fail.

    The fraction `corrupt` of the members may collude with the server and lie, and the fraction
    `dropout` may be absent. Both are rounded down. At least one member may collude. A committee has
    `size` of the members at most, None for all.
    """

    members: Rows[Hex32] = Field(min_length=3, max_length=MAX_OPERATORS)
    corrupt: Rate = 0.2
    dropout: Rate = 0.2
    size: int | None = Field(default=None, ge=3, le=MAX_OPERATORS)

    @model_validator(mode="after")
    def _is_feasible(self) -> Self:
        faults = [*self._faults()]
        if faults:
            raise invalid(faults)
        return self

    def _faults(self) -> Iterator[str]:
        if len(set(self.members)) != len(self.members):
            yield "a committee has the same member twice"
        try:
            for member in self.members:
                check_identity(bytes.fromhex(member))
            if committee_parameters(len(self.members), self.corrupt, self.dropout).corrupt < 1:
                yield (
                    f"a corrupt fraction of {self.corrupt:g} lets none of {len(self.members)} "
                    "members collude, so that each of them could read devices: raise it"
                )
            needed = self.parameters.needed_sums
            if self.largest < needed or self.size not in (None, self.largest):
                yield (
                    f"a committee of {self.size} of {len(self.members)} operators is not possible: "
                    f"it has {needed} at least, and no more than are named"
                )
        except ValueError as error:
            yield str(error)

    @property
    def largest(self) -> int:
        """Return the number of members of the largest committee."""
        return len(self.members) if self.size is None else min(self.size, len(self.members))

    def present(self, registered: Collection[str]) -> tuple[str, ...]:
        """Return the members of the committee if these operators registered a key."""
        return tuple(each for each in self.members if each in registered)[: self.largest]

    @property
    def parameters(self) -> CommitteeParameters:
        """Return the parameters of the committee with all operators that are named."""
        return committee_parameters(len(self.members), self.corrupt, self.dropout)

    def parameters_of(self, present: int) -> CommitteeParameters:
        """Return the parameters of a committee of `present` of the operators.

        Raises:
            ValueError: if more of them are absent than may drop out, or there are more than `size`.
        """
        if present > self.largest:
            raise ValueError(f"a committee has at most {self.largest} members, got {present}")
        whole = self.parameters
        dropouts = whole.dropouts - (whole.members - present)
        return CommitteeParameters(present, whole.corrupt, dropouts, whole.threshold)

    @property
    def identities(self) -> tuple[bytes, ...]:
        """Return the public keys of the members, in their order."""
        return tuple(map(bytes.fromhex, self.members))


class VolunteerTerms(PublicModel):
    """A committee of `size` devices that the registrar draws from `volunteers` for each round.

    The fraction `corrupt` of the volunteers may collude with the server and lie, and the fraction
    `dropout` may drop out. Both are rounded down. A committee has more colluding members than it
    tolerates with probability 2^-`sigma` at most, and more dropouts with 2^-`eta`.
    """

    volunteers: int = Field(ge=3, le=MAX_VOLUNTEERS)
    size: int = Field(ge=3, le=MAX_MEMBERS)
    corrupt: Rate = 0.1
    dropout: Rate = 0.1
    sigma: int = Field(default=40, ge=1, le=MAX_EXPONENT)
    eta: int = Field(default=30, ge=1, le=MAX_EXPONENT)

    @model_validator(mode="after")
    def _is_feasible(self) -> Self:
        try:
            colluders = self.parameters.corrupt
        except ValueError as error:
            raise invalid([str(error)]) from None
        if colluders < 1:
            fault = (
                f"a corrupt fraction of {self.corrupt:g} lets none of {self.size} members collude"
            )
            raise invalid([f"{fault}, so that each of them could read devices: raise it"])
        return self

    @property
    def max_colluders(self) -> int:
        """Return the number of volunteers that may collude in the whole study (K)."""
        return floor_of_rate(self.corrupt, self.volunteers, "corrupt")

    @property
    def largest(self) -> int:
        """Return the number of members."""
        return self.size

    @property
    def parameters(self) -> CommitteeParameters:
        """Return the parameters of the committee."""
        rates = self.corrupt, self.dropout
        return drawn_committee_parameters(
            self.size, *rates, self.volunteers, sigma=self.sigma, eta=self.eta
        )

    def parameters_of(self, present: int) -> CommitteeParameters:
        """Return the parameters of the committee; raises ValueError unless it is complete."""
        if present != self.size:
            raise ValueError(f"a committee has {self.size} members, got {present}")
        return self.parameters


def _kind_of(document: object) -> str:
    if isinstance(document, Mapping):
        return "volunteers" if "volunteers" in document else "operators"
    return "volunteers" if isinstance(document, VolunteerTerms) else "operators"


# By its kind, so that an invalid document has the faults of this kind only.
AnyCommitteeTerms: TypeAlias = Annotated[
    Annotated[CommitteeTerms, Tag("operators")] | Annotated[VolunteerTerms, Tag("volunteers")],
    Discriminator(_kind_of),
]
