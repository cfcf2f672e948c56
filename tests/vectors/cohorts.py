"""Two whole sums, message by message, and what participants and server refuse in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.exact import Terms, parameters
from tests.vectors.reference import some

LANES: list[ref.Lane] = [(2**13, 3), (131071, 2), (2**61 - 1, 1)]
REGISTRAR, SCOPE = some("registrar"), some("scope")


@dataclass(frozen=True)
class Sum:
    """A cohort with all its secrets, from which every message follows."""

    name: str
    n: int
    terms: Terms
    has_registrar: bool
    sharers: tuple[int, ...]
    survivors: tuple[int, ...]
    number: int = 7
    signatures: Mapping[int, bytes] = field(default_factory=dict)  # other than they should be
    enrolments: Mapping[int, bytes] = field(default_factory=dict)

    def secret(self, what: str, slot: int, size: int = 32) -> bytes:
        """Return what `slot` draws."""
        return some(f"{self.name} {what} {slot}", size)

    @cached_property
    def numbers(self) -> tuple[int, int, int, int]:
        """Return k, t, m and s."""
        found = parameters(self.n, self.terms)
        assert found is not None
        return found

    @cached_property
    def entries(self) -> list[bytes]:
        """Return the roster."""
        return [
            ref.identity(self.secret("identity", slot))
            + ref.key_public(self.secret("mask", slot))
            + ref.key_public(self.secret("seal", slot))
            + self.signature(slot)
            + self.enrolment(slot)
            for slot in range(self.n)
        ]

    @cached_property
    def plan(self) -> bytes:
        """Return what stands for the plan's digest."""
        return some(self.name + " plan")

    def signature(self, slot: int) -> bytes:
        """Return the signature of an identity under its keys."""
        keys = ref.key_public(self.secret("mask", slot)) + ref.key_public(self.secret("seal", slot))
        statement = ref.statement("keys", self.plan, 0, keys)
        return self.signatures.get(slot, ref.sign(self.secret("identity", slot), statement))

    def enrolment(self, slot: int) -> bytes:
        """Return the registrar's signature, if there is one."""
        if not self.has_registrar:
            return b""
        public = ref.identity(self.secret("identity", slot))
        signed = ref.sign(REGISTRAR, ref.statement("enrolment", SCOPE, 0, public))
        return self.enrolments.get(slot, signed)

    @cached_property
    def label(self) -> bytes:
        """Return the label of the cohort."""
        return ref.cohort_label(self.plan, self.number, (self.n, *self.numbers), self.entries)

    def sign(self, slot: int, what: str, label: bytes, payload: bytes) -> bytes:
        """Return a signature of `slot`."""
        said = ref.statement(what, label, slot, payload)
        return ref.sign(self.secret("identity", slot), said)

    def contribution(self, slot: int) -> bytes:
        """Return what `slot` contributes to the graph."""
        return self.secret("contribution", slot)

    @cached_property
    def holders(self) -> dict[int, list[int]]:
        """Return whom each sharer picked."""
        k = self.numbers[0]
        return {
            slot: ref.holders(self.label, self.n, k, slot, self.contribution(slot))
            for slot in self.sharers
        }

    def agreed(self, one: int, other: int, what: str) -> bytes:
        """Return the agreement of two slots."""
        return ref.agree(self.secret(what, one), ref.key_public(self.secret(what, other)))

    def shares(self, slot: int, what: str) -> list[bytes]:
        """Return the shares of a secret of `slot`: of its `mask` key or its `seed`."""
        k, t, _, _ = self.numbers
        drawn = self.secret(what + " drawn", slot, 32 * (t - 1))
        return ref.split(self.secret(what, slot), k + 1, t, drawn)

    def parcels(self, slot: int, what: str) -> dict[int, bytes]:
        """Return the parcels with shares of a secret, by holder."""
        name = "key share" if what == "mask" else "seed share"
        label = self.label if what == "mask" else self.view
        return {
            holder: ref.parcel(
                self.agreed(slot, holder, "seal"), label, ref.info(name, slot, holder), share
            )
            for holder, share in zip(self.holders[slot], self.shares(slot, what)[1:], strict=True)
        }

    def key_deal(self, slot: int) -> tuple[bytes, bytes, bytes]:
        """Return contribution, parcels joined and signature."""
        parcels = b"".join(self.parcels(slot, "mask").values())
        said = self.contribution(slot) + ref.digest(parcels)
        return self.contribution(slot), parcels, self.sign(slot, "shares", self.label, said)

    @cached_property
    def told(self) -> dict[int, tuple[bytes, bytes]]:
        """Return what everybody is told of each sharer: contribution and digest."""
        deals = {slot: self.key_deal(slot) for slot in self.sharers}
        return {slot: (said, ref.digest(parcels)) for slot, (said, parcels, _) in deals.items()}

    @cached_property
    def view(self) -> bytes:
        """Return the label of the view."""
        return ref.view_label(self.label, self.told)

    def partners(self, slot: int) -> list[int]:
        """Return whom `slot` masks with."""
        return ref.partners(slot, self.holders, self.numbers[2])

    def vector(self, slot: int) -> list[list[int]]:
        """Return the input of `slot`."""
        return ref.mask(self.secret("vector", slot, 16), LANES)

    def masked(self, slot: int) -> list[list[int]]:
        """Return the masked input of `slot`."""
        own = ref.derive(self.secret("seed", slot), self.view, ref.info("self", slot, slot), 16)
        found = ref.combine(self.vector(slot), ref.mask(own, LANES), LANES, 1)
        for other in self.partners(slot):
            pair = ref.info("mask", min(slot, other), max(slot, other))
            key = ref.derive(self.agreed(slot, other, "mask"), self.view, pair, 16)
            found = ref.combine(found, ref.mask(key, LANES), LANES, 1 if slot < other else -1)
        return found

    def seed_deal(self, slot: int) -> bytes:
        """Return the commitments to seed and own share, and the parcels of those that shared."""
        parcels = self.parcels(slot, "seed")
        kept = b"".join(parcel for holder, parcel in parcels.items() if holder in self.sharers)
        own = ref.commit_share(self.shares(slot, "seed")[0])
        return ref.commit_seed(self.secret("seed", slot)) + own + kept

    def upload(self, slot: int) -> bytes:
        """Return the message with the masked vector."""
        said = self.seed_deal(slot) + ref.pack(self.masked(slot), LANES)
        return said + self.sign(slot, "vector", self.view, said)

    def confirmation(self, slot: int, survivors: Sequence[int] | None = None) -> bytes:
        """Return the signature under the survivors."""
        listed = ref.u32(*sorted(self.survivors if survivors is None else survivors))
        return self.sign(slot, "survivors", self.view, listed)

    def inbox(self, slot: int) -> dict[int, bytes]:
        """Return the parcels that `slot` is asked to open, by owner."""
        return {
            owner: self.parcels(owner, "seed" if owner in self.survivors else "mask")[slot]
            for owner in self.sharers
            if slot in self.holders[owner]
        }

    def given(self, slot: int) -> dict[int, tuple[int, bytes]]:
        """Return what `slot` gives: kind and share by owner."""
        found = {slot: (0, self.shares(slot, "seed")[0])}
        for owner in self.inbox(slot):
            kind, what = (0, "seed") if owner in self.survivors else (1, "mask")
            number = self.holders[owner].index(slot) + 1
            found[owner] = (kind, self.shares(owner, what)[number])
        return found

    def reveal(self, slot: int, given: Mapping[int, tuple[int, bytes]] | None = None) -> bytes:
        """Return the message with shares."""
        said = ref.records(self.given(slot) if given is None else given)
        return said + self.sign(slot, "reveal", self.view, self.answered(slot) + said)

    def answered(self, slot: int, survivors: Sequence[int] | None = None) -> bytes:
        """Return the digests of the survivors and of the parcels that `slot` is asked to open."""
        listed = ref.u32(*sorted(self.survivors if survivors is None else survivors))
        inbox = self.inbox(slot)
        parcels = ref.digest(*(ref.u32(owner) + inbox[owner] for owner in sorted(inbox)))
        return ref.digest(listed) + parcels

    def total(self) -> list[list[int]]:
        """Return the sum of the survivors' inputs."""
        found = [[0] * length for _, length in LANES]
        for slot in self.survivors:
            found = ref.combine(found, self.vector(slot), LANES, 1)
        return found


EVERYBODY = tuple(range(12))
ACTIVE = Sum(
    name="active",
    n=12,
    terms=Terms(100, 200, 40, 30, active=True),
    has_registrar=True,
    sharers=tuple(slot for slot in EVERYBODY if slot != 3),
    survivors=tuple(slot for slot in EVERYBODY if slot not in (3, 5)),
)
SEMI_HONEST = Sum(
    name="semi-honest",
    n=12,
    terms=Terms(200, 200, 40, 30, active=False),
    has_registrar=False,
    sharers=EVERYBODY,
    survivors=tuple(slot for slot in EVERYBODY if slot not in (0, 9)),
)


def by_slot(found: Mapping[int, bytes]) -> dict[str, str]:
    """Return hex by slot."""
    return {str(slot): body.hex() for slot, body in found.items()}


def shown_sharers(told: Mapping[int, tuple[bytes, bytes]]) -> dict[str, list[str]]:
    """Return contribution and digest by slot."""
    return {str(slot): [part.hex() for part in parts] for slot, parts in told.items()}


def shown(one: Sum) -> dict[str, Any]:
    """Return a whole sum, inputs first, in the order in which things are said."""
    t = one.numbers[1]
    secrets = [
        {
            **{
                what: one.secret(what, slot).hex()
                for what in ("identity", "mask", "seal", "contribution", "seed")
            },
            "mask_drawn": one.secret("mask drawn", slot, 32 * (t - 1)).hex(),
            "seed_drawn": one.secret("seed drawn", slot, 32 * (t - 1)).hex(),
            "vector": one.vector(slot),
        }
        for slot in range(one.n)
    ]
    deals = {slot: b"".join(one.key_deal(slot)) for slot in one.sharers}
    return {
        "comment": f"a sum against a server that is {one.name}",
        "mode": one.name,
        "corrupt": one.terms.corrupt / 1000,
        "dropout": one.terms.dropout / 1000,
        "sigma": one.terms.sigma,
        "eta": one.terms.eta,
        "registrar": ref.identity(REGISTRAR).hex() if one.has_registrar else None,
        "scope": SCOPE.hex() if one.has_registrar else None,
        "plan": one.plan.hex(),
        "number": one.number,
        "lanes": LANES,
        "secrets": secrets,
        "parameters": [one.n, *one.numbers],
        "roster": [entry.hex() for entry in one.entries],
        "label": one.label.hex(),
        "holders": {str(slot): picked for slot, picked in one.holders.items()},
        "deals": by_slot(deals),
        "sharers": shown_sharers(one.told),
        "view_label": one.view.hex(),
        "partners": {str(slot): one.partners(slot) for slot in one.sharers},
        "uploads": by_slot({slot: one.upload(slot) for slot in one.survivors}),
        "survivors": list(one.survivors),
        "confirmations": by_slot({slot: one.confirmation(slot) for slot in one.survivors}),
        "inboxes": {str(slot): by_slot(one.inbox(slot)) for slot in one.survivors},
        "reveals": by_slot({slot: one.reveal(slot) for slot in one.survivors}),
        "total": one.total(),
    }


def sums() -> dict[str, Any]:
    """Return both sums."""
    return {"sums": [shown(ACTIVE), shown(SEMI_HONEST)]}


def forged(slot: int, what: str) -> Sum:
    """Return the active sum with `signatures` or `enrolments` of one that are nobody's."""
    made_up: Any = {what: {slot: ref.sign(some("nobody"), b"let me in")}}
    return replace(ACTIVE, **made_up)
