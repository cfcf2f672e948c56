"""Two whole sums: the secrets and inputs of all participants, and every message."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tests.vectors import reference as ref
from tests.vectors.exact import Terms, parameters
from tests.vectors.reference import stream

LANES: list[ref.Lane] = [(2**13, 3), (131071, 2), (2**61 - 1, 1)]
REGISTRAR, SCOPE = stream("registrar"), stream("scope")


@dataclass(frozen=True)
class Sum:
    """A cohort with all its secrets, from which every message follows."""

    name: str
    n: int
    terms: Terms
    has_registrar: bool
    dealers: tuple[int, ...]
    survivors: tuple[int, ...]
    number: int = 7
    signatures: Mapping[int, bytes] = field(default_factory=dict)  # other than they should be
    enrolments: Mapping[int, bytes] = field(default_factory=dict)

    def secret(self, what: str, slot: int, size: int = 32) -> bytes:
        """Return the secret that `slot` draws for the purpose `what`."""
        return stream(f"{self.name} {what} {slot}", size)

    @cached_property
    def numbers(self) -> tuple[int, int, int]:
        """Return k, t and s."""
        result = parameters(self.n, self.terms)
        assert result is not None
        return result

    @cached_property
    def entries(self) -> list[bytes]:
        return [
            ref.identity(self.secret("identity", slot))
            + ref.key_public(self.secret("mask", slot))
            + ref.key_public(self.secret("encryption", slot))
            + self.signature(slot)
            + self.enrolment(slot)
            for slot in range(self.n)
        ]

    @cached_property
    def plan(self) -> bytes:
        return stream(self.name + " plan")

    def signature(self, slot: int) -> bytes:
        """Return the signature of an identity under its keys."""
        keys = b"".join(ref.key_public(self.secret(use, slot)) for use in ("mask", "encryption"))
        statement = ref.statement("keys", self.plan, 0, keys)
        return self.signatures.get(slot, ref.sign(self.secret("identity", slot), statement))

    def enrolment(self, slot: int) -> bytes:
        """Return the registrar's signature, empty without a registrar."""
        if not self.has_registrar:
            return b""
        public = ref.identity(self.secret("identity", slot))
        signed = ref.sign(REGISTRAR, ref.statement("enrolment", SCOPE, 0, public))
        return self.enrolments.get(slot, signed)

    @cached_property
    def label(self) -> bytes:
        return ref.session_label(self.plan, self.number, (self.n, *self.numbers), self.entries)

    def sign(self, slot: int, what: str, label: bytes, payload: bytes) -> bytes:
        payload = ref.statement(what, label, slot, payload)
        return ref.sign(self.secret("identity", slot), payload)

    def graph_nonce(self, slot: int) -> bytes:
        return self.secret("graph_nonce", slot)

    @cached_property
    def holders(self) -> dict[int, list[int]]:
        k = self.numbers[0]
        return {
            slot: ref.holders(self.label, self.n, k, slot, self.graph_nonce(slot))
            for slot in self.dealers
        }

    def agreed(self, first: int, second: int, what: str) -> bytes:
        return ref.agree(self.secret(what, first), ref.key_public(self.secret(what, second)))

    def shares(self, slot: int, what: str) -> list[bytes]:
        """Return the shares of a secret of `slot`: of its `mask` key or its `seed`."""
        k, t, _ = self.numbers
        drawn = self.secret(what + " drawn", slot, 32 * (t - 1))
        return ref.split(self.secret(what, slot), k + 1, t, drawn)

    def encrypted_shares(self, slot: int, what: str) -> dict[int, bytes]:
        """Return the encrypted shares with shares of a secret, by holder."""
        name = "key share" if what == "mask" else "seed share"
        return {
            holder: ref.encrypted_share(
                self.agreed(slot, holder, "encryption"),
                self.label,
                ref.info(name, slot, holder),
                share,
            )
            for holder, share in zip(self.holders[slot], self.shares(slot, what)[1:], strict=True)
        }

    def pairs(self, slot: int) -> dict[int, bytes]:
        """Return the share pairs of `slot`, by holder: of its mask key, then of its seed."""
        keys, seeds = (self.encrypted_shares(slot, what) for what in ("mask", "seed"))
        return {holder: keys[holder] + seeds[holder] for holder in keys}

    def key_shares(self, slot: int) -> tuple[bytes, bytes, bytes]:
        """Return graph nonce, commitments and share pairs joined, and signature."""
        nonce = self.graph_nonce(slot)
        own = ref.commit_share(self.shares(slot, "seed")[0])
        commitments = ref.commit_seed(self.secret("seed", slot)) + own
        rest = commitments + b"".join(self.pairs(slot).values())
        signed = self.sign(slot, "key shares", self.label, nonce + ref.digest(rest))
        return nonce, rest, signed

    def received_shares(self, slot: int) -> dict[int, bytes]:
        """Return the share pairs addressed to `slot`, by dealer."""
        mine = [dealer for dealer in self.dealers if slot in self.holders[dealer]]
        return {dealer: self.pairs(dealer)[slot] for dealer in mine}

    def complaint(self, slot: int, dealer: int, pair: bytes) -> bytes:
        """Return the signature of `slot` with which it complains about a pair of `dealer`."""
        return self.sign(slot, "complaint", self.label, ref.u32(dealer) + pair)

    def complaints(self, slot: int, dealers: Sequence[int] = ()) -> bytes:
        """Return the complaints of `slot` about the pairs that these dealers sent to it."""
        received = self.received_shares(slot)
        records = b"".join(
            ref.u32(dealer) + self.complaint(slot, dealer, received[dealer])
            for dealer in sorted(dealers)
        )
        pairs = ref.digest(*(ref.u32(of) + pair for of, pair in sorted(received.items())))
        return records + self.sign(slot, "complaints", self.label, pairs + records)

    def answers(self, slot: int, holders: Sequence[int]) -> bytes:
        """Return the answers of `slot` to the complaints of these holders."""
        numbers = {holder: self.holders[slot].index(holder) + 1 for holder in sorted(holders)}
        records = b"".join(
            ref.u32(holder) + self.shares(slot, "mask")[number] + self.shares(slot, "seed")[number]
            for holder, number in numbers.items()
        )
        return records + self.sign(slot, "answers", self.label, records)

    @cached_property
    def share_commitments(self) -> dict[int, tuple[bytes, bytes]]:
        """Return the graph nonce of each dealer and the digest of its shares."""
        messages = {slot: self.key_shares(slot) for slot in self.dealers}
        return {slot: (nonce, ref.digest(shares)) for slot, (nonce, shares, _) in messages.items()}

    @cached_property
    def transcript(self) -> bytes:
        return ref.transcript_label(self.label, self.share_commitments)

    def neighbours(self, slot: int) -> list[int]:
        return ref.neighbours(slot, self.holders)

    def vector(self, slot: int) -> list[list[int]]:
        return ref.mask(self.secret("vector", slot, 16), LANES)

    def masked_vector(self, slot: int) -> list[list[int]]:
        own = ref.derive(
            self.secret("seed", slot), self.transcript, ref.info("self", slot, slot), 16
        )
        result = ref.combine(self.vector(slot), ref.mask(own, LANES), LANES, 1)
        for other in self.neighbours(slot):
            pair = ref.info("mask", min(slot, other), max(slot, other))
            key = ref.derive(self.agreed(slot, other, "mask"), self.transcript, pair, 16)
            result = ref.combine(result, ref.mask(key, LANES), LANES, 1 if slot < other else -1)
        return result

    def masked_input(self, slot: int) -> bytes:
        payload = ref.pack(self.masked_vector(slot), LANES)
        return payload + self.sign(slot, "masked input", self.transcript, payload)

    def signed_inputs(self, slot: int) -> dict[int, bytes]:
        """Return digest and signature of the vectors of survivors that `slot` holds shares of."""
        held = [dealer for dealer in self.received_shares(slot) if dealer in self.survivors]
        inputs = {dealer: self.masked_input(dealer) for dealer in held}
        return {dealer: ref.digest(body[:-64]) + body[-64:] for dealer, body in inputs.items()}

    def confirmation(self, slot: int, survivors: Sequence[int] | None = None) -> bytes:
        listed = ref.u32(*sorted(self.survivors if survivors is None else survivors))
        return self.sign(slot, "survivors", self.transcript, listed)

    def revealed(self, slot: int) -> dict[int, tuple[int, bytes]]:
        """Return the shares that `slot` reveals: kind and share by dealer."""
        result = {slot: (0, self.shares(slot, "seed")[0])}
        for dealer in self.received_shares(slot):
            kind, what = (0, "seed") if dealer in self.survivors else (1, "mask")
            number = self.holders[dealer].index(slot) + 1
            result[dealer] = (kind, self.shares(dealer, what)[number])
        return result

    def unmasking_shares(
        self, slot: int, revealed: Mapping[int, tuple[int, bytes]] | None = None
    ) -> bytes:
        records = ref.records(self.revealed(slot) if revealed is None else revealed)
        signed = self.survivors_digest() + records
        return records + self.sign(slot, "unmasking shares", self.transcript, signed)

    def survivors_digest(self, survivors: Sequence[int] | None = None) -> bytes:
        """Return the digest of the survivors."""
        return ref.digest(ref.u32(*sorted(self.survivors if survivors is None else survivors)))

    def total(self) -> list[list[int]]:
        result = [[0] * length for _, length in LANES]
        for slot in self.survivors:
            result = ref.combine(result, self.vector(slot), LANES, 1)
        return result


ALL_SLOTS = tuple(range(12))
ENROLLED = Sum(
    name="enrolled",
    n=12,
    terms=Terms(100, 200, 40, 30),
    has_registrar=True,
    dealers=tuple(slot for slot in ALL_SLOTS if slot != 3),
    survivors=tuple(slot for slot in ALL_SLOTS if slot not in (3, 5)),
)
NOT_ENROLLED = Sum(
    name="not enrolled",
    n=12,
    terms=Terms(200, 200, 40, 30),
    has_registrar=False,
    dealers=ALL_SLOTS,
    survivors=tuple(slot for slot in ALL_SLOTS if slot not in (0, 9)),
)


def by_slot(result: Mapping[int, bytes]) -> dict[str, str]:
    return {str(slot): body.hex() for slot, body in result.items()}


def shown_commitments(share_commitments: Mapping[int, tuple[bytes, bytes]]) -> dict[str, list[str]]:
    return {str(slot): [part.hex() for part in parts] for slot, parts in share_commitments.items()}


def shown(whole: Sum) -> dict[str, Any]:
    """Return a whole sum, inputs first, in the order of the protocol."""
    t = whole.numbers[1]
    secrets = [
        {
            **{
                what: whole.secret(what, slot).hex()
                for what in ("identity", "mask", "encryption", "graph_nonce", "seed")
            },
            "mask_drawn": whole.secret("mask drawn", slot, 32 * (t - 1)).hex(),
            "seed_drawn": whole.secret("seed drawn", slot, 32 * (t - 1)).hex(),
            "vector": whole.vector(slot),
        }
        for slot in range(whole.n)
    ]
    key_shares = {slot: b"".join(whole.key_shares(slot)) for slot in whole.dealers}
    return {
        "comment": f"a sum of participants that are {whole.name}",
        "corrupt": whole.terms.corrupt / 1000,
        "dropout": whole.terms.dropout / 1000,
        "sigma": whole.terms.sigma,
        "eta": whole.terms.eta,
        "registrar": ref.identity(REGISTRAR).hex() if whole.has_registrar else None,
        "scope": SCOPE.hex() if whole.has_registrar else None,
        "plan": whole.plan.hex(),
        "number": whole.number,
        "lanes": LANES,
        "secrets": secrets,
        "parameters": [whole.n, *whole.numbers],
        "roster": [entry.hex() for entry in whole.entries],
        "label": whole.label.hex(),
        "holders": {str(slot): selected for slot, selected in whole.holders.items()},
        "key_shares": by_slot(key_shares),
        "received_shares": {
            str(slot): by_slot(whole.received_shares(slot)) for slot in whole.dealers
        },
        "complaints": by_slot({slot: whole.complaints(slot) for slot in whole.dealers}),
        "share_commitments": shown_commitments(whole.share_commitments),
        "transcript_label": whole.transcript.hex(),
        "neighbours": {str(slot): whole.neighbours(slot) for slot in whole.dealers},
        "masked_inputs": by_slot({slot: whole.masked_input(slot) for slot in whole.survivors}),
        "survivors": list(whole.survivors),
        "confirmations": by_slot({slot: whole.confirmation(slot) for slot in whole.survivors}),
        "signed_inputs": {
            str(slot): by_slot(whole.signed_inputs(slot)) for slot in whole.survivors
        },
        "unmasking_shares": by_slot(
            {slot: whole.unmasking_shares(slot) for slot in whole.survivors}
        ),
        "total": whole.total(),
        "false_complaints": false_complaints(whole),
    }


def false_complaints(whole: Sum) -> dict[str, Any]:
    """Return complaints of two holders about a dealer, which are false, and its answers."""
    dealer = whole.dealers[0]
    holders = [holder for holder in whole.holders[dealer] if holder in whole.dealers][:2]
    return {
        "dealer": dealer,
        "complaints": by_slot({slot: whole.complaints(slot, [dealer]) for slot in holders}),
        "answers": whole.answers(dealer, holders).hex(),
    }


def sums() -> dict[str, Any]:
    return {"sums": [shown(ENROLLED), shown(NOT_ENROLLED)]}


def forged(slot: int, what: str) -> Sum:
    """Return the first sum with `signatures` or `enrolments` of one slot that do not verify."""
    made_up: Any = {what: {slot: ref.sign(stream("nobody"), b"let me in")}}
    return replace(ENROLLED, **made_up)
