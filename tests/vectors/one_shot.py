"""One-shot sums a second time: packings, parameters of committees, and one whole sum.

Everything is in integers of Python, term by term, and follows the formulas in the docstrings of
`secagg.oneshot`. Nothing here imports it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from tests.vectors import reference as ref
from tests.vectors.exact import tail
from tests.vectors.reference import stream

# Packing


def packing(p: int) -> tuple[int, int]:
    """Return g and b: g elements modulo p have b bits, at most 53, with the smallest b / g."""
    sizes = [(g, (p**g - 1).bit_length()) for g in range(1, 53)]
    fitting = [(Fraction(b, g), g, b) for g, b in sizes if b <= 53]
    _, g, b = min(fitting)
    return g, b


def pack(p: int, elements: Sequence[int]) -> bytes:
    """Return a packed row of elements modulo p."""
    (g, b), number, place = packing(p), 0, 0
    for start in range(0, len(elements), g):
        part = elements[start : start + g]
        number += sum(x * p**i for i, x in enumerate(part)) << place
        place += b if len(part) == g else (p ** len(part) - 1).bit_length()
    return number.to_bytes((place + 7) // 8, "little")


# Parameters


class Numbers(NamedTuple):
    """The numbers of a committee."""

    m: int
    a: int
    d: int
    t: int


def drawn(m: int, corrupt: int, dropout: int, population: int) -> Numbers | None:
    """Return the numbers of a drawn committee for 2^-40 and 2^-30; rates are in thousandths."""

    def largest(rate: int, exponent: int) -> int:
        marked, allowed = population * rate // 1000, Fraction(1, 2**exponent)
        return next(x for x in range(m + 1) if tail(population, marked, m, x + 1) <= allowed)

    return checked(m, largest(corrupt, 40), largest(dropout, 30))


def checked(m: int, a: int, d: int) -> Numbers | None:
    """Return the numbers of a committee, None if a requirement is violated."""
    return Numbers(m, a, d, m - d - a) if m > a + 2 * d and m - d - 2 * a >= 1 else None


def signatures(numbers: Numbers) -> int:
    """Return the number of members that do not drop out, which is above (m + A) / 2."""
    return next(x for x in range(2000) if x + numbers.d == numbers.m)


def tests(p: int, numbers: Numbers) -> int:
    """Return r: the bound of the degree proof, (2 (m - A) + 1) / p^r, is at most 2^-48."""
    bounds = ((r, Fraction(2 * (numbers.m - numbers.a) + 1, p**r)) for r in range(1, 99))
    return next(r for r, bound in bounds if bound <= Fraction(1, 2**48))


# A whole sum

REGISTRAR, SCOPE = stream("one-shot registrar"), stream("one-shot scope")
P, LENGTH = 521, 23


def draw(key: bytes, count: int) -> list[int]:
    """Return elements as a mask has them."""
    (row,) = ref.mask(key, [(P, count)])
    return row


def coins(key: bytes, count: int) -> list[int]:
    """Return coins: 8-byte words modulo p."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return [int.from_bytes(encryptor.update(bytes(8)), "little") % P for _ in range(count)]


def root_and_paths(leaves: Sequence[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the Merkle root of `leaves`, and the path of each."""
    level = [ref.digest(b"\0", leaf) for leaf in leaves]
    while len(level) & (len(level) - 1):
        level.append(bytes(32))
    paths = [b""] * len(leaves)
    depth = 0
    while len(level) > 1:
        for place in range(len(leaves)):
            paths[place] += level[(place >> depth) ^ 1]
        level = [ref.digest(b"\1", level[i], level[i + 1]) for i in range(0, len(level), 2)]
        depth += 1
    return level[0], paths


@dataclass(frozen=True)
class OneShot:
    """A committee and `size` devices with all their secrets, from which every message follows."""

    numbers: Numbers
    number: int
    size: int

    @property
    def members(self) -> range:
        return range(1, self.numbers.m + 1)

    @property
    def rho(self) -> int:
        return self.numbers.t - self.numbers.a

    @property
    def width(self) -> int:
        """Return the number of columns, without blinds."""
        return -(-LENGTH // self.rho)

    @property
    def tests(self) -> int:
        return tests(P, self.numbers)

    @property
    def nodes(self) -> list[int]:
        return [*range(-1, -self.rho - 1, -1), *range(1, self.numbers.a + 1)]

    @cached_property
    def plan(self) -> bytes:
        return stream("one-shot plan")

    def secret(self, what: str, of: int, size: int = 32) -> bytes:
        return stream(f"one-shot {self.number} {what} {of}", size)

    # The committee

    @cached_property
    def entries(self) -> list[bytes]:
        rows = []
        for member in self.members:
            key = ref.key_public(self.secret("member key", member))
            statement = ref.statement("one-shot member key", self.plan, self.number, key)
            identity = self.secret("member", member)
            rows.append(ref.identity(identity) + key + ref.sign(identity, statement))
        return rows

    @cached_property
    def signed_committee(self) -> bytes:
        return self.plan + ref.u32(self.number, *self.numbers) + b"".join(self.entries)

    @cached_property
    def committee(self) -> bytes:
        return self.sealed(self.signed_committee)

    def sealed(self, body: bytes, registrar: bytes = REGISTRAR) -> bytes:
        plan, number = body[:32], int.from_bytes(body[32:36], "big")
        return body + ref.sign(registrar, ref.statement("one-shot committee", plan, number, body))

    @cached_property
    def digest(self) -> bytes:
        return ref.digest(b"blindtally one-shot committee v1\0", self.signed_committee)

    @cached_property
    def devices(self) -> list["Device"]:
        return [Device(self, number) for number in range(self.size)]

    # The members

    def member_sign(self, member: int, what: str, payload: bytes) -> bytes:
        statement = ref.statement(what, self.digest, member, payload)
        return ref.sign(self.secret("member", member), statement)

    @cached_property
    def included(self) -> list[bytes]:
        return sorted(ref.digest(device.statement) for device in self.devices)

    @cached_property
    def set_digest(self) -> bytes:
        return ref.digest(b"blindtally one-shot set v1\0", self.digest, *self.included)

    def set_signature(self, member: int) -> bytes:
        name = b"blindtally v1 one-shot set\0"
        statement = name + self.digest + ref.u32(member) + self.set_digest
        return ref.sign(self.secret("member", member), statement)

    def sum(self, member: int) -> bytes:
        shares = [device.share(member)[: self.width] for device in self.devices]
        body = pack(P, [sum(column) % P for column in zip(*shares, strict=True)])
        return self.signed_sum(member, body)

    def signed_sum(self, member: int, body: bytes) -> bytes:
        return body + self.member_sign(member, "one-shot sum", self.set_digest + body)

    @property
    def total(self) -> list[int]:
        vectors = [device.vector for device in self.devices]
        return [sum(elements) % P for elements in zip(*vectors, strict=True)]


@dataclass(frozen=True)
class Device:
    """A device; with `added`, its packed share for member 3 is so much too large."""

    whole: OneShot
    number: int
    added: int = 0

    def secret(self, what: str, size: int = 32) -> bytes:
        return self.whole.secret(what, self.number, size)

    @cached_property
    def identity(self) -> bytes:
        return ref.identity(self.secret("device"))

    @cached_property
    def label(self) -> bytes:
        name = b"blindtally one-shot message v1\0"
        return ref.digest(name, self.whole.digest, self.identity)

    @cached_property
    def vector(self) -> list[int]:
        return draw(self.secret("vector", 16), LENGTH)

    def drawn(self, name: str) -> bytes:
        """Return a secret that the device draws: `key` is that of E, `stream` that of blinds."""
        random, packed = self.secret("random"), pack(P, self.vector)
        return ref.digest(f"blindtally one-shot {name} v1\0".encode(), random, self.label, packed)

    @cached_property
    def key(self) -> bytes:
        return ref.key_public(self.drawn("key"))

    def agreed(self, member: int) -> bytes:
        return ref.agree(self.drawn("key"), ref.key_public(self.whole.secret("member key", member)))

    def expanded(self, member: int) -> list[int]:
        """Return the share of a member up to A."""
        purpose = ref.info("one-shot expansion", 0, member)
        key = ref.derive(self.agreed(member), self.label, purpose)[:16]
        return draw(key, self.whole.width + self.whole.tests)

    @cached_property
    def polynomials(self) -> list[dict[int, int]]:
        """Return the values at the nodes of all columns, and then of the blinds."""
        rho, width, r = self.whole.rho, self.whole.width, self.whole.tests
        padded = self.vector + [0] * (width * rho - LENGTH)
        blinds = draw(self.drawn("stream"), rho * r)
        rows = [padded[i::rho] + blinds[i * r : (i + 1) * r] for i in range(rho)]
        rows += [self.expanded(member) for member in self.whole.members[: self.whole.numbers.a]]
        nodes = self.whole.nodes
        return [dict(zip(nodes, column, strict=True)) for column in zip(*rows, strict=True)]

    def share(self, member: int) -> list[int]:
        return [ref.interpolate(f, member, P) for f in self.polynomials]

    def encrypted_share(self, member: int) -> bytes:
        """Return the bytes that are sent: none for members up to A."""
        share = self.share(member)
        if member <= self.whole.numbers.a:
            assert share == self.expanded(member)
            return b""
        body = pack(P, share)
        if member == 3:
            body = (int.from_bytes(body, "little") + self.added).to_bytes(len(body), "little")
        info = ref.info("one-shot share", 0, member)
        pad = ref.derive(self.agreed(member), self.label, info, len(body))
        return bytes(x ^ y for x, y in zip(body, pad, strict=True))

    @cached_property
    def shares(self) -> list[bytes]:
        return [self.encrypted_share(member) for member in self.whole.members]

    @cached_property
    def tree(self) -> tuple[bytes, list[bytes]]:
        """Return the root, and the path of each share."""
        return root_and_paths(self.shares)

    @cached_property
    def proof(self) -> bytes:
        width, r = self.whole.width, self.whole.tests
        seed = ref.digest(b"blindtally one-shot coins v1\0", self.label, self.key, self.tree[0])
        beta, f = coins(seed, width * r), self.polynomials
        return pack(
            P,
            [
                (sum(beta[k * r + b] * f[k][x] for k in range(width)) + f[width + b][x]) % P
                for x in self.whole.nodes
                for b in range(r)
            ],
        )

    @property
    def statement(self) -> bytes:
        return self.statement_of(self.key, self.proof)

    def statement_of(self, key: bytes, proof: bytes) -> bytes:
        payload = key + self.tree[0] + ref.digest(proof)
        return ref.statement("one-shot message", self.label, 0, payload)

    @cached_property
    def parts(self) -> list[bytes]:
        """Return the parts of a message."""
        enrolment = ref.sign(REGISTRAR, ref.statement("enrolment", SCOPE, 0, self.identity))
        signature = ref.sign(self.secret("device"), self.statement)
        shares = b"".join(self.shares)
        return [self.identity, enrolment, self.key, shares, self.proof, signature]

    def column(self, member: int) -> bytes:
        public, enrolment, key, _, proof, signature = self.parts
        share, path = self.shares[member - 1], self.tree[1][member - 1]
        return public + enrolment + key + share + path + proof + signature


def shown(whole: OneShot) -> dict[str, Any]:
    """Return a whole sum, inputs first, in the order of the protocol."""
    members, first = whole.members, whole.included[0]
    return {
        "plan": whole.plan.hex(),
        "number": whole.number,
        "parameters": whole.numbers,
        "minimum": 3,
        "p": P,
        "length": LENGTH,
        "registrar": ref.identity(REGISTRAR).hex(),
        "scope": SCOPE.hex(),
        "members": [
            {
                what: whole.secret(name, member).hex()
                for what, name in (("identity_secret", "member"), ("key_secret", "member key"))
            }
            for member in members
        ],
        "committee": whole.committee.hex(),
        "committee_digest": whole.digest.hex(),
        "devices": [
            {
                "identity_secret": device.secret("device").hex(),
                "random_secret": device.secret("random").hex(),
                "vector": device.vector,
                "label": device.label.hex(),
                "root": device.tree[0].hex(),
                "message": b"".join(device.parts).hex(),
                "digest": ref.digest(device.statement).hex(),
                "columns": [device.column(member).hex() for member in members],
            }
            for device in whole.devices
        ],
        "complaints": [
            whole.member_sign(member, "one-shot complaints", b"").hex() for member in members
        ],
        "false_complaint": whole.member_sign(1, "one-shot complaints", first).hex(),
        "included": [digest.hex() for digest in whole.included],
        "set_digest": whole.set_digest.hex(),
        "set_signatures": [whole.set_signature(member).hex() for member in members],
        "sums": [whole.sum(member).hex() for member in members],
        "total": whole.total,
    }


# What must be refused


def no_messages(whole: OneShot) -> list[tuple[str, bytes]]:
    """Return messages in the first device's name that the server refuses."""
    parts, other = (device.parts for device in whole.devices[:2])

    def changed(place: int, part: bytes) -> bytes:
        return b"".join([*parts[:place], part, *parts[place + 1 :]])

    def signed(key: bytes, proof: bytes) -> bytes:
        device = whole.devices[0]
        signature = ref.sign(device.secret("device"), device.statement_of(key, proof))
        return b"".join([*parts[:2], key, parts[3], proof, signature])

    body = b"".join(parts)
    flipped = [part[:-1] + bytes([part[-1] ^ 1]) for part in parts]
    size = len(parts[3]) // (whole.numbers.m - whole.numbers.a)
    expanded = pack(P, whole.devices[0].expanded(1))
    swapped = parts[3][size : 2 * size] + parts[3][:size] + parts[3][2 * size :]
    return [
        ("a byte short", body[:-1]),
        ("a byte long", body + b"\0"),
        ("nothing", b""),
        ("the identity is another device's", changed(0, other[0])),
        ("the identity is of low order", changed(0, bytes(32))),
        ("the enrolment is another device's", changed(1, other[1])),
        ("the enrolment is changed", changed(1, flipped[1])),
        ("the key is another one", changed(2, other[2])),
        ("the key is of low order", signed(bytes(32), parts[4])),
        ("the key has its unused bit set", signed(b"\xff" * 32, parts[4])),
        ("a share is changed", changed(3, flipped[3])),
        ("two shares are swapped", changed(3, swapped)),
        ("the shares are another device's", changed(3, other[3])),
        ("a share that should have been expanded is sent", changed(3, expanded + parts[3])),
        ("the proof is another device's", changed(4, other[4])),
        ("the proof has an element outside its lane", signed(parts[2], b"\xff" * len(parts[4]))),
        ("the signature is another device's", changed(5, other[5])),
        ("the signature is changed", changed(5, flipped[5])),
    ]


def no_shares(whole: OneShot) -> list[dict[str, Any]]:
    """Return messages of which member 3 complains, because its share is no packing."""
    (g, bits), length = packing(P), whole.width + whole.tests
    last = (length // g * bits) + (P ** (length % g) - 1).bit_length()
    share = whole.devices[0].share(3)
    cases = {
        "an element is p": (P - share[g - 1]) * P ** (g - 1),
        "a bit that pads the share is set": 1 << last,
    }
    messages = [(why, Device(whole, 0, added)) for why, added in cases.items()]
    return [
        {
            "comment": why,
            "message": b"".join(device.parts).hex(),
            "digest": (digest := ref.digest(device.statement)).hex(),
            "complaint": whole.member_sign(3, "one-shot complaints", digest).hex(),
        }
        for why, device in messages
    ]


def no_committees(whole: OneShot) -> list[tuple[str, bytes]]:
    """Return committees that a device refuses."""
    body, unsigned = whole.committee, whole.signed_committee
    head, end = unsigned[:52], unsigned[52:]
    first, second, *others = whole.entries
    rest = b"".join(others)
    numbers = [
        (why, whole.sealed(changed) if is_signed else changed + body[-64:])
        for why, is_signed, *header in (
            ("it is of another sum", False, 7, 5, 1, 1, 3),
            ("it assumes no corrupt member", False, 6, 5, 0, 1, 3),
            ("its threshold is that of other numbers", False, 6, 5, 1, 1, 2),
            ("it has a member more than entries", True, 6, 6, 1, 1, 3),
            ("its threshold is above m - D - A", True, 6, 5, 1, 1, 4),
            ("its members cannot agree", True, 6, 5, 1, 2, 2),
        )
        if (changed := whole.plan + ref.u32(*header) + end)
    ]
    return [
        ("a byte short", body[:-1]),
        ("a byte long", body + b"\0"),
        ("nothing", b""),
        ("its registrar did not sign", unsigned),
        ("another registrar signed", whole.sealed(unsigned, stream("nobody"))),
        ("it is of another plan", stream("another plan") + body[32:]),
        ("its first two members are swapped", head + second + first + rest + body[-64:]),
        ("a member is in it twice", whole.sealed(head + first + first[:32] + second[32:] + rest)),
        ("a key is in it twice", whole.sealed(head + first + second[:32] + first[32:] + rest)),
        *numbers,
    ]


def one_shot() -> Any:
    """Return packings, parameters and a whole sum, and what must be refused."""
    whole, larger = OneShot(Numbers(5, 1, 1, 3), 6, 4), OneShot(Numbers(9, 2, 2, 5), 7, 3)
    rows = [(7, None, 150, 150), (5, None, 200, 200), (100, None, 100, 100), (100, None, 200, 200)]
    committees = [
        {
            "members": m,
            "corrupt": c / 1000,
            "dropout": d / 1000,
            "numbers": numbers,
            "packed_secrets": numbers.t - numbers.a,
            "signatures": signatures(numbers),
        }
        for m, _, c, d in rows
        if (numbers := checked(m, m * c // 1000, m * d // 1000))
    ]
    draws = [
        {
            "members": m,
            "corrupt": c / 1000,
            "dropout": d / 1000,
            "population": n,
            "numbers": numbers,
        }
        for m, n, c, d in ((300, 1000, 100, 100), (50, 100, 100, 100), (200, 5000, 50, 100))
        if (numbers := drawn(m, c, d, n))
    ]
    packed = [
        {"p": p, "elements": row, "packed": pack(p, row).hex()}
        for p, length in (
            (521, 1),
            (521, 9),
            (1453, 6),
            (4129, 10),
            (65537, 4),
            (16777213, 3),
            (2**26 - 5, 3),
        )
        for row in ref.mask(stream(f"packing {p} {length}", 16), [(p, length)])
    ]
    malformed = [
        ("an element is p", 521, 1, (521).to_bytes(2, "little")),
        ("a bit that pads the row is set", 521, 1, (1024).to_bytes(2, "little")),
        ("a group of five is p to the fifth", 521, 5, (521**5).to_bytes(6, "little")),
        ("the last group is too large", 521, 6, (521 << 46).to_bytes(7, "little")),
        ("all bits are set", 65537, 3, b"\xff" * 7),
        ("an element is above p", 2**26 - 5, 1, b"\xff" * 3 + b"\x03"),
    ]
    infeasible = [
        ("four of seven must sign two sets", 7, 430, 290),
        ("no room for a secret", 7, 430, 145),
        ("nobody is left", 3, 340, 340),
    ]
    assert all(checked(m, m * c // 1000, m * d // 1000) is None for _, m, c, d in infeasible)
    sums = [whole.sum(member) for member in (1, 2)]
    member_sums = [
        ("a byte short", whole.signed_sum(1, sums[0][:-65])),
        ("a byte long", whole.signed_sum(1, sums[0][:-64] + b"\0")),
        ("another member's", sums[1]),
        ("another member's sum under its own signature", sums[1][:-64] + sums[0][-64:]),
        ("an element is outside its lane", whole.signed_sum(1, b"\xff" * (len(sums[0]) - 64))),
    ]
    return {
        "packings": packed,
        "no_packings": [
            {"comment": why, "p": p, "length": length, "packed": body.hex()}
            for why, p, length, body in malformed
        ],
        "committees": committees,
        "drawn_committees": draws,
        "infeasible_committees": [
            {"comment": why, "members": m, "corrupt": c / 1000, "dropout": d / 1000}
            for why, m, c, d in infeasible
        ],
        "one_shot_sums": [shown(whole), shown(larger)],
        "no_committees": [
            {"comment": why, "committee": body.hex()} for why, body in no_committees(whole)
        ],
        "no_messages": [
            {"comment": why, "message": body.hex()} for why, body in no_messages(whole)
        ],
        "no_member_sums": [{"comment": why, "sum": body.hex()} for why, body in member_sums],
        "no_shares": no_shares(whole),
    }
