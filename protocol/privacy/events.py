"""Events of a ledger: what was released about a population, and what each party saw of it.

The server that suppresses a sampled sum still has the whole sum. Only noise that devices add before
the sum is opened makes the *server's* view private.

Coins only protect against a party that does not know how they fell. If devices also join a round by
a coin (`join_probability`), the server and the other devices of the roster see how it fell. Their
guarantee is that of a vote with probability `probability / join_probability` among the devices that
joined; the product of both probabilities only holds for a party that knows neither which devices
joined nor how many.
"""

import math
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.loss_distributions import NeighbourRelation, bounded_loss, compose, local_loss
from protocol.privacy.noise_loss import CountNoise
from protocol.public_model import PublicModel

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Party: TypeAlias = Literal["devices", "server", "analyst", "public"]
PARTIES: tuple[Party, ...] = ("devices", "server", "analyst", "public")

_ReleaseCount = Annotated[int, Field(ge=1, le=4096)]
_Probability = Annotated[float, Field(gt=0, le=1)]
_MAX_MEAN_LOSS = 50.0  # above, nothing is private, and the losses would fill the memory
_OUTSIDER_ASSUMPTION = "the secure sum hides vectors, and the server publishes only what it may"
_ONE_VOTE_ERROR = "items must be 1 if devices join by a coin: several votes would share this coin"


class PartyView(PublicModel):
    """A party's view of a release: what it sees, whether that is private, and the assumption."""

    sees: str
    private: bool
    assumption: str


class ExactSumEvent(PublicModel):
    """Sums or counts that are exact, without differential privacy."""

    kind: Literal["exact"] = "exact"
    releases: _ReleaseCount = 1

    def views(self) -> dict[Party, PartyView]:
        nothing = "none: one device more or less is visible"
        released = PartyView(sees="exact sums", private=False, assumption=nothing)
        return dict.fromkeys(PARTIES, released)

    def loss_to(
        self, party: Party, relation: NeighbourRelation
    ) -> "PrivacyLossDistribution | None": ...


class SampleThresholdEvent(PublicModel):
    """Counts of devices sampled with `probability`, shown if they reach `threshold`.

    `releases` are levels or repetitions with fresh coins; a device has `items` in each, with a coin
    each; `colluders` devices may vote together to reveal a cell. `table_failure_delta` is charged
    once for all releases, because a sum may be read in part, which reveals suppressed counts.
    `probability` includes `join_probability`, the probability of a first coin, by which a device
    joins at all.
    """

    kind: Literal["sample-threshold"] = "sample-threshold"
    probability: Annotated[float, Field(ge=1e-9, lt=1)]
    threshold: Annotated[int, Field(ge=1, le=sample_threshold.MAX_THRESHOLD)]
    releases: _ReleaseCount = 1
    items: _ReleaseCount = 1
    colluders: Annotated[int, Field(ge=0)] = 0
    table_failure_delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    join_probability: _Probability = 1.0

    @model_validator(mode="after")
    def _check_join_probability(self) -> Self:
        if not self.probability / self.join_probability < 1:
            raise ValueError(
                f"probability must be below join_probability {self.join_probability:g}, "
                f"not {self.probability:g}"
            )
        if self.join_probability < 1 and self.items > 1:
            raise ValueError(_ONE_VOTE_ERROR)
        return self

    def views(self) -> dict[Party, PartyView]:
        server = PartyView(
            sees="the sampled count of every cell, also of those with a single device",
            private=False,
            assumption="none: a device alone in its cell shows with the probability of its coin",
        )
        shown = PartyView(
            sees=f"counts of {self.threshold} or more",
            private=self.threshold > self.colluders,
            assumption=f"{_OUTSIDER_ASSUMPTION}; coins are secret; {self.colluders} collude",
        )
        views = dict.fromkeys(PARTIES, shown) | {"server": server}
        return _with_join_coins(
            views, ("devices", "server"), self.probability, self.join_probability
        )

    def loss_to(
        self, party: Party, relation: NeighbourRelation
    ) -> "PrivacyLossDistribution | None":
        """Return the loss to `party` at most; None if it has no bound."""
        if party == "server" or self.threshold <= self.colluders:
            return None
        seen = self.join_probability if party == "devices" else 1.0
        once = sample_threshold.privacy_loss(
            self.probability / seen, self.threshold - self.colluders, relation
        )
        every = compose([(once, self.releases * self.items)])
        if self.table_failure_delta:
            every = compose([(every, 1), (bounded_loss(0.0, self.table_failure_delta), 1)])
        return every


class SkellamNoiseEvent(PublicModel):
    """Counts with Skellam noise of `variance`, the sum of the honest survivors' shares.

    A device's vote counts with `probability`, which includes `join_probability`, the probability of
    a first coin by which it joins at all: 1 if all devices join, `probability` if all that join
    vote. A device has `items` in each release, with a coin each.
    """

    kind: Literal["noise"] = "noise"
    variance: Annotated[float, Field(ge=skellam.MIN_VARIANCE, le=skellam.MAX_VARIANCE)]
    probability: Annotated[float, Field(gt=0, le=1)] = 1.0
    join_probability: _Probability = 1.0
    releases: _ReleaseCount = 1
    items: _ReleaseCount = 1

    @model_validator(mode="after")
    def _check_join_probability(self) -> Self:
        if self.probability < 1 and "join_probability" not in self.model_fields_set:
            raise ValueError(
                "a probability below 1 needs join_probability: the server sees which devices join"
            )
        if self.probability > self.join_probability:
            raise ValueError(
                f"probability must be at most join_probability {self.join_probability:g}, "
                f"not {self.probability:g}"
            )
        if self.join_probability < 1 and self.items > 1:
            raise ValueError(_ONE_VOTE_ERROR)
        return self

    def views(self) -> dict[Party, PartyView]:
        noise = "enough honest survivors add their shares before the sum is opened"
        coins = "; coins are secret" if self.probability < 1 else ""
        secret = "; it does not know which of the participating devices vote" if coins else ""
        sees = "counts with noise, or results computed from them"
        outside = PartyView(sees=sees, private=True, assumption=noise + coins)
        server = PartyView(sees="counts with noise", private=True, assumption=noise + secret)
        views = dict.fromkeys(PARTIES, outside) | {"server": server}
        return _with_join_coins(
            views, ("devices", "server", "analyst"), self.probability, self.join_probability
        )

    def loss_to(
        self, party: Party, relation: NeighbourRelation
    ) -> "PrivacyLossDistribution | None":
        ((noise, number),) = self.counts_for(party).items()
        once = skellam.privacy_loss(noise.variance, noise.probability, relation)
        return compose([(once, number)])

    def counts_for(self, party: Party) -> Counter[CountNoise]:
        """Return the number of a device's counts, by the noise and the coins that hide it."""
        seen = 1.0 if party == "public" else self.join_probability
        noise = CountNoise(self.variance, min(1.0, self.probability / seen))
        return Counter({noise: self.releases * self.items})


class LocalReportsEvent(PublicModel):
    """Reports randomized on the device: `epsilon`, `delta` each, for any use of them.

    Neighbours are devices that hold another value. That a device reports at all is not secret, so
    add-remove means that it reports a fixed value instead of its value.
    """

    kind: Literal["local"] = "local"
    epsilon: Annotated[float, Field(gt=0, le=40)]
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    releases: _ReleaseCount = 1

    def views(self) -> dict[Party, PartyView]:
        view = PartyView(
            sees="randomized reports, or results computed from them",
            private=True,
            assumption="the device itself draws its noise",
        )
        return dict.fromkeys(PARTIES, view)

    def loss_to(
        self,
        party: Party,  # noqa: ARG002
        relation: NeighbourRelation,  # noqa: ARG002
    ) -> "PrivacyLossDistribution | None":
        """Return the loss at most, by either relation; a sum of epsilons where it is large."""
        mean = self.releases * self.epsilon * math.tanh(self.epsilon / 2)
        if mean > _MAX_MEAN_LOSS:
            delta = -math.expm1(self.releases * math.log1p(-self.delta))
            return bounded_loss(self.releases * self.epsilon, delta)
        return compose([(local_loss(self.epsilon, self.delta), self.releases)])


DpEvent: TypeAlias = Annotated[
    ExactSumEvent | SampleThresholdEvent | SkellamNoiseEvent | LocalReportsEvent,
    Field(discriminator="kind"),
]


class LedgerEntry(PublicModel):
    """One release or a series of equal releases, with a `name` that is unique in its ledger."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    event: DpEvent

    def views(self) -> dict[Party, PartyView]:
        """Return the view of each party."""
        return self.event.views()


@lru_cache(maxsize=64)
def loss_to(
    event: DpEvent, party: Party, relation: NeighbourRelation
) -> "PrivacyLossDistribution | None":
    """Return the loss to `party` by all releases of `event`, cached; None if it has no bound."""
    return event.loss_to(party, relation)


def _with_join_coins(
    views: dict[Party, PartyView],
    parties_that_see_joins: tuple[Party, ...],
    probability: float,
    join_probability: float,
) -> dict[Party, PartyView]:
    """Return `views` with what devices that join by coins reveal to some parties only."""
    if join_probability == 1:
        return views
    share = f"; a share of {probability / join_probability:.4g} of the devices that join votes"
    no_joins = "; it knows neither who joins a round nor how many do"
    joined: dict[Party, PartyView] = {}
    for party, view in views.items():
        sees_joins = party in parties_that_see_joins
        seen = "; who joins a round, or how many do" if sees_joins else ""
        more = (share if sees_joins else no_joins) if view.private else ""
        joined[party] = PartyView(
            sees=view.sees + seen, private=view.private, assumption=view.assumption + more
        )
    return joined
