"""What was released about a population, and what each party saw of it under which assumption.

    exact             sums that are right: nobody who sees one has been promised anything
    sample-threshold  counts of those whose coins fell heads, shown from theta on
    noise             counts with Skellam noise in shares, of all devices or of sampled ones
    local             reports that each device randomised itself

A sum that is sampled and suppressed is still whole in the hands of the server that suppresses:
only noise that devices add before the sum is opened makes the *server's* view private, and
nothing here says otherwise. Coins help only against whoever cannot tell how they fell. Of all
coins those of the vote are hidden by the secure sum. If devices join a round by a coin as well
(`invited`), the server sees how it fell, and so do the others of the roster: they are promised the
odds of the vote among those who joined, `probability / invited`. The product of both odds is
promised to nobody but who knows neither who joined nor how many did.

Several items of a device are so many releases, if each has its own coin; and who vote together
can lift a rare cell, so theta is counted without the devices that may collude.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.loss import Relation, bounded_loss, composed, local_loss
from protocol.public import Public

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Party: TypeAlias = Literal["devices", "server", "analyst", "public"]
PARTIES: tuple[Party, ...] = ("devices", "server", "analyst", "public")

_Count = Annotated[int, Field(ge=1, le=4096)]
_Odds = Annotated[float, Field(gt=0, le=1)]
_HOPELESS = 50.0  # of a mean loss: nothing is private, and its losses would fill the memory
_OUTSIDE = "the secure sum hides vectors, and the server keeps what it must not publish"
_ONE_VOTE = "several votes of a device in a round would share the coin by which it joins"


class View(Public):
    """What a party sees of a release; whether that is private, and under which assumption."""

    sees: str
    private: bool
    assumption: str


class ExactSum(Public):
    """Sums or counts that are exact, as without differential privacy."""

    kind: Literal["exact"] = "exact"
    releases: _Count = 1

    def views(self) -> dict[Party, View]:
        """Return what each party sees."""
        nothing = "none: one device more or less shows"
        released = View(sees="exact sums", private=False, assumption=nothing)
        return dict.fromkeys(PARTIES, released)

    def loss_to(self, party: Party, relation: Relation) -> "PrivacyLossDistribution | None":
        """Return what `party` learns: None, no bound at all."""


class SampleThreshold(Public):
    """Counts of devices sampled with `probability`, shown from `threshold` on.

    `releases` are levels or repetitions with fresh coins; a device has `items` in each, with a
    coin each; `colluders` devices may vote for what they want to learn. `unread` is the delta that
    is charged, for all releases, because sums may be read in part, which tells what is suppressed.
    Of `probability` the odds `invited` are those of a first coin, by which a device joins at all.
    """

    kind: Literal["sample-threshold"] = "sample-threshold"
    probability: Annotated[float, Field(ge=1e-9, lt=1)]
    threshold: Annotated[int, Field(ge=1, le=sample_threshold.MOST_THRESHOLD)]
    releases: _Count = 1
    items: _Count = 1
    colluders: Annotated[int, Field(ge=0)] = 0
    unread: Annotated[float, Field(ge=0, lt=1)] = 0.0
    invited: _Odds = 1.0

    @model_validator(mode="after")
    def _votes_by_a_coin(self) -> Self:
        if not self.probability < self.invited or self.probability / self.invited == 1:
            raise ValueError(
                f"of {self.invited:g} that join, not {self.probability:g} vote by coin"
            )
        if self.invited < 1 and self.items > 1:
            raise ValueError(_ONE_VOTE)
        return self

    def views(self) -> dict[Party, View]:
        """Return what each party sees."""
        server = View(
            sees="the sampled count of every cell, also of those with a single device",
            private=False,
            assumption="none: a device that is alone in its cell shows with the odds of its coin",
        )
        shown = View(
            sees=f"counts of {self.threshold} or more",
            private=self.threshold > self.colluders,
            assumption=f"{_OUTSIDE}; coins are secret; {self.colluders} collude at most",
        )
        views: dict[Party, View] = {
            "devices": shown,
            "server": server,
            "analyst": shown,
            "public": shown,
        }
        return _joined(views, ("devices", "server"), self.probability, self.invited)

    def loss_to(self, party: Party, relation: Relation) -> "PrivacyLossDistribution | None":
        """Return what `party` learns at most; None if it is not bounded."""
        if party == "server" or self.threshold <= self.colluders:
            return None
        seen = self.invited if party == "devices" else 1.0
        once = sample_threshold.privacy_loss(
            self.probability / seen, self.threshold - self.colluders, relation
        )
        every = _times(once, self.releases * self.items)
        if self.unread:
            every = composed([(every, 1), (bounded_loss(0.0, self.unread), 1)])
        return every


class Noise(Public):
    """Counts with Skellam noise of `variance`, as the honest survivors' shares add up to.

    A device's vote counts with odds of `sampled`; of these, `invited` are those of a first coin, by
    which it joins at all: 1 if all do, and `sampled` if all that join vote. A device has `items` in
    each release, with a coin each.
    """

    kind: Literal["noise"] = "noise"
    variance: Annotated[float, Field(ge=skellam.LEAST_VARIANCE, le=skellam.MOST_VARIANCE)]
    sampled: Annotated[float, Field(gt=0, le=1)] = 1.0
    invited: _Odds = 1.0
    releases: _Count = 1
    items: _Count = 1

    @model_validator(mode="before")
    @classmethod
    def _as_it_was_written(cls, said: object) -> object:
        """Read entries of before devices were invited: `hidden` said that all join."""
        if isinstance(said, dict) and "hidden" in said:
            hidden, rest = said["hidden"], {k: v for k, v in said.items() if k != "hidden"}
            if not isinstance(hidden, bool) or "invited" in said:
                raise ValueError("hidden is true or false, and is not said beside invited")
            return rest | {"invited": 1.0 if hidden else said.get("sampled", 1.0)}
        return said

    @model_validator(mode="after")
    def _says_who_joins(self) -> Self:
        if self.sampled < 1 and "invited" not in self.model_fields_set:
            raise ValueError("say with which odds devices join: what the server cannot see counts")
        if self.sampled > self.invited:
            raise ValueError(f"of {self.invited:g} that join, no {self.sampled:g} can vote")
        if self.invited < 1 and self.items > 1:
            raise ValueError(_ONE_VOTE)
        return self

    def views(self) -> dict[Party, View]:
        """Return what each party sees."""
        noise = "enough honest survivors add their shares before the sum is opened"
        coins = "; coins are secret" if self.sampled < 1 else ""
        secret = "; it cannot tell who votes of those that take part" if coins else ""
        sees = "counts with noise, or what was made of them"
        outside = View(sees=sees, private=True, assumption=noise + coins)
        server = View(sees="counts with noise", private=True, assumption=noise + secret)
        views: dict[Party, View] = {
            "devices": outside,
            "server": server,
            "analyst": outside,
            "public": outside,
        }
        return _joined(views, ("devices", "server", "analyst"), self.sampled, self.invited)

    def loss_to(self, party: Party, relation: Relation) -> "PrivacyLossDistribution | None":
        """Return what `party` learns at most."""
        seen = 1.0 if party == "public" else self.invited
        once = skellam.privacy_loss(self.variance, min(1.0, self.sampled / seen), relation)
        return _times(once, self.releases * self.items)


class LocalReports(Public):
    """Reports randomised on the device: `epsilon`, `delta` each, whatever anybody does with them.

    Neighbours are devices that hold something else; that one reports at all is no secret, so
    add-remove means that it reports a fixed value instead of its own.
    """

    kind: Literal["local"] = "local"
    epsilon: Annotated[float, Field(gt=0, le=40)]
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    releases: _Count = 1

    def views(self) -> dict[Party, View]:
        """Return what each party sees."""
        view = View(
            sees="randomised reports, or what was made of them",
            private=True,
            assumption="the device itself draws its noise",
        )
        return dict.fromkeys(PARTIES, view)

    def loss_to(self, party: Party, relation: Relation) -> "PrivacyLossDistribution | None":  # noqa: ARG002 (all see the same)
        """Return what `party` learns at most, of either relation; by adding where that is much."""
        mean = self.releases * self.epsilon * math.tanh(self.epsilon / 2)
        if mean > _HOPELESS:
            lost = -math.expm1(self.releases * math.log1p(-self.delta))
            return bounded_loss(self.releases * self.epsilon, lost)
        return _times(local_loss(self.epsilon, self.delta), self.releases)


Mechanism: TypeAlias = Annotated[
    ExactSum | SampleThreshold | Noise | LocalReports, Field(discriminator="kind")
]


class Entry(Public):
    """One release or one series of the same, by a `name` that no other has in its ledger."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    mechanism: Mechanism

    def views(self) -> dict[Party, View]:
        """Return what each party sees of it."""
        return self.mechanism.views()


@lru_cache(maxsize=64)
def loss_to(
    mechanism: Mechanism, party: Party, relation: Relation
) -> "PrivacyLossDistribution | None":
    """Return what `party` learns at most by all releases of `mechanism`; None if unbounded."""
    return mechanism.loss_to(party, relation)


def _joined(
    views: dict[Party, View], knowing: tuple[Party, ...], probability: float, invited: float
) -> dict[Party, View]:
    """Return `views` with what `knowing` see, and the others must not, if devices join by coins."""
    if invited == 1:
        return views
    told = f"; of those that join, a share of {probability / invited:.4g} votes"
    untold = "; it learns neither who joins a round nor how many do"
    joined: dict[Party, View] = {}
    for party, view in views.items():
        knows = party in knowing
        seen = "; who joins a round, or how many do" if knows else ""
        more = (told if knows else untold) if view.private else ""
        joined[party] = View(
            sees=view.sees + seen, private=view.private, assumption=view.assumption + more
        )
    return joined


def _times(loss: "PrivacyLossDistribution", times: int) -> "PrivacyLossDistribution":
    return composed([(loss, times)])
