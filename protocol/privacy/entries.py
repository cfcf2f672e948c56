"""What was released about a population, and what each party saw of it under which assumption.

    exact             sums that are right: nobody who sees one has been promised anything
    sample-threshold  counts of those whose coins fell heads, shown from theta on
    noise             counts with Skellam noise in shares, of all devices or of sampled ones
    local             reports that each device randomised itself

A sum that is sampled and suppressed is still whole in the hands of the server that suppresses:
only noise that devices add before the sum is opened makes the *server's* view private, and
nothing here says otherwise. Coins help against the server only where it cannot tell who flipped
heads: every device is contacted and sends a vector. The one who invites as many as it needs
knows nearly all who took part.

Several items of a device are so many releases, if each has its own coin; and who vote together
can lift a rare cell, so theta is counted without the devices that may collude.
"""

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pydantic import Field

from protocol.privacy import sample_threshold, skellam
from protocol.privacy.loss import Relation, bounded_loss, composed, local_loss
from protocol.public import Public

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Party: TypeAlias = Literal["devices", "server", "analyst", "public"]
PARTIES: tuple[Party, ...] = ("devices", "server", "analyst", "public")

_Count = Annotated[int, Field(ge=1, le=4096)]
_HOPELESS = 50.0  # of a mean loss: nothing is private, and its losses would fill the memory
_OUTSIDE = "the secure sum hides vectors, and the server keeps what it must not publish"


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
    """

    kind: Literal["sample-threshold"] = "sample-threshold"
    probability: Annotated[float, Field(ge=1e-9, lt=1)]
    threshold: Annotated[int, Field(ge=1, le=sample_threshold.MOST_THRESHOLD)]
    releases: _Count = 1
    items: _Count = 1
    colluders: Annotated[int, Field(ge=0)] = 0
    unread: Annotated[float, Field(ge=0, lt=1)] = 0.0

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
        return {"devices": shown, "server": server, "analyst": shown, "public": shown}

    def loss_to(self, party: Party, relation: Relation) -> "PrivacyLossDistribution | None":
        """Return what `party` learns at most; None if it is not bounded."""
        if party == "server" or self.threshold <= self.colluders:
            return None
        once = sample_threshold.privacy_loss(
            self.probability, self.threshold - self.colluders, relation
        )
        every = _times(once, self.releases * self.items)
        if self.unread:
            every = composed([(every, 1), (bounded_loss(0.0, self.unread), 1)])
        return every


class Noise(Public):
    """Counts with Skellam noise of `variance`, as the honest survivors' shares add up to.

    Devices take part with odds of `sampled`; `hidden`: the server contacts all of them and
    cannot tell which did. A device has `items` in each release, with a coin each.
    """

    kind: Literal["noise"] = "noise"
    variance: Annotated[float, Field(ge=skellam.LEAST_VARIANCE, le=skellam.MOST_VARIANCE)]
    sampled: Annotated[float, Field(gt=0, le=1)] = 1.0
    hidden: bool = False
    releases: _Count = 1
    items: _Count = 1

    def views(self) -> dict[Party, View]:
        """Return what each party sees."""
        noise = "enough honest survivors add their shares before the sum is opened"
        coins = "; coins are secret" if self.sampled < 1 else ""
        secret = "; all are contacted, so it cannot tell who takes part" if self.hidden else ""
        sees = "counts with noise, or what was made of them"
        outside = View(sees=sees, private=True, assumption=noise + coins)
        server = View(sees="counts with noise", private=True, assumption=noise + secret)
        return {"devices": outside, "server": server, "analyst": outside, "public": outside}

    def loss_to(self, party: Party, relation: Relation) -> "PrivacyLossDistribution | None":
        """Return what `party` learns at most."""
        known = party == "server" and not self.hidden
        once = skellam.privacy_loss(self.variance, 1.0 if known else self.sampled, relation)
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


def _times(loss: "PrivacyLossDistribution", times: int) -> "PrivacyLossDistribution":
    return composed([(loss, times)])
