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
LANES: list[ref.Lane] = [(257, 5), (65537, 3), (16777213, 1)]
DEVICES = range(4)


def coins(key: bytes, sizes: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the coins of each lane, given p and number: 8-byte words modulo p."""
    encryptor = Cipher(AES(key), CTR(bytes(16))).encryptor()
    return [
        [int.from_bytes(encryptor.update(bytes(8)), "little") % p for _ in range(count)]
        for p, count in sizes
    ]


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
    """A committee and devices with all their secrets, from which every message follows."""

    numbers: Numbers
    number: int = 6

    @property
    def members(self) -> range:
        return range(1, self.numbers.m + 1)

    @property
    def rho(self) -> int:
        return self.numbers.t - self.numbers.a

    @cached_property
    def plan(self) -> bytes:
        return stream("one-shot plan")

    def secret(self, what: str, of: int, size: int = 32) -> bytes:
        return stream(f"one-shot {what} {of}", size)

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
        signed = ref.statement("one-shot committee", self.plan, self.number, self.signed_committee)
        return self.signed_committee + ref.sign(REGISTRAR, signed)

    @cached_property
    def digest(self) -> bytes:
        return ref.digest(b"blindtally one-shot committee v1\0", self.signed_committee)

    # The devices

    def identity(self, device: int) -> bytes:
        return ref.identity(self.secret("device", device))

    def label(self, device: int) -> bytes:
        name = b"blindtally one-shot message v1\0"
        return ref.digest(name, self.digest, self.identity(device))

    def vector(self, device: int) -> list[list[int]]:
        return ref.mask(self.secret("vector", device, 16), LANES)

    def drawn(self, device: int, name: str) -> bytes:
        """Return a secret that the device draws: `key` is that of E, `stream` that of blinds."""
        packed = b"".join(
            pack(p, row) for (p, _), row in zip(LANES, self.vector(device), strict=True)
        )
        random, label = self.secret("random", device), self.label(device)
        return ref.digest(f"blindtally one-shot {name} v1\0".encode(), random, label, packed)

    def agreed(self, device: int, member: int) -> bytes:
        key = ref.key_public(self.secret("member key", member))
        return ref.agree(self.drawn(device, "key"), key)

    def expanded(self, device: int, member: int) -> list[list[int]]:
        """Return the elements by lane of the share of a member up to A."""
        purpose = ref.info("one-shot expansion", 0, member)
        key = ref.derive(self.agreed(device, member), self.label(device), purpose)[:16]
        return ref.mask(key, [(p, self.width((p, n)) + tests(p, self.numbers)) for p, n in LANES])

    def width(self, lane: ref.Lane) -> int:
        """Return the number of columns of a lane, without blinds."""
        return -(-lane[1] // self.rho)

    @property
    def nodes(self) -> list[int]:
        return [*range(-1, -self.rho - 1, -1), *range(1, self.numbers.a + 1)]

    def polynomials(self, device: int) -> list[list[dict[int, int]]]:
        """Return by lane the values at the nodes of all columns, and then of the blinds."""
        rho = self.rho
        sizes = [(p, rho * tests(p, self.numbers)) for p, _ in LANES]
        draws = ref.mask(self.drawn(device, "stream"), sizes)
        expanded = [self.expanded(device, member) for member in self.members[: self.numbers.a]]
        result = []
        for lane, ((p, n), elements, blinds) in enumerate(
            zip(LANES, self.vector(device), draws, strict=True)
        ):
            width, r = self.width((p, n)), tests(p, self.numbers)
            padded = elements + [0] * (width * rho - n)
            rows = [[padded[column * rho + i] for column in range(width)] for i in range(rho)]
            rows = [row + blinds[i * r : (i + 1) * r] for i, row in enumerate(rows)]
            columns = zip(*rows, *(share[lane] for share in expanded), strict=True)
            result.append([dict(zip(self.nodes, column, strict=True)) for column in columns])
        return result

    def share(self, device: int, member: int) -> list[list[int]]:
        """Return the elements by lane of the share of `member`."""
        return [
            [ref.interpolate(f, member, p) for f in of_lane]
            for (p, _), of_lane in zip(LANES, self.polynomials(device), strict=True)
        ]

    def encrypted_share(self, device: int, member: int) -> bytes:
        """Return the bytes that are sent: none for members up to A."""
        if member <= self.numbers.a:
            assert self.share(device, member) == self.expanded(device, member)
            return b""
        secret = self.agreed(device, member)
        elements = self.share(device, member)
        body = b"".join(pack(p, row) for (p, _), row in zip(LANES, elements, strict=True))
        info = ref.info("one-shot share", 0, member)
        pad = ref.derive(secret, self.label(device), info, len(body))
        return bytes(x ^ y for x, y in zip(body, pad, strict=True))

    def opening(self, device: int) -> tuple[bytes, bytes, list[bytes], list[bytes]]:
        """Return E, the root, the encrypted shares and their paths."""
        shares = [self.encrypted_share(device, member) for member in self.members]
        root, paths = root_and_paths(shares)
        return ref.key_public(self.drawn(device, "key")), root, shares, paths

    def proof(self, device: int) -> bytes:
        key, root, _, _ = self.opening(device)
        seed = ref.digest(b"blindtally one-shot coins v1\0", self.label(device), key, root)
        sizes = [(p, self.width((p, n)) * tests(p, self.numbers)) for p, n in LANES]
        body = b""
        for (p, n), beta, of_lane in zip(
            LANES, coins(seed, sizes), self.polynomials(device), strict=True
        ):
            width, r = self.width((p, n)), tests(p, self.numbers)
            tau = [
                (sum(beta[k * r + b] * of_lane[k][x] for k in range(width)) + of_lane[width + b][x])
                % p
                for x in self.nodes
                for b in range(r)
            ]
            body += pack(p, tau)
        return body

    def statement(self, device: int) -> bytes:
        key, root, _, _ = self.opening(device)
        payload = key + root + ref.digest(self.proof(device))
        return ref.statement("one-shot message", self.label(device), 0, payload)

    def parts(self, device: int) -> list[bytes]:
        """Return the parts of a message."""
        key, _, shares, _ = self.opening(device)
        public = self.identity(device)
        enrolment = ref.sign(REGISTRAR, ref.statement("enrolment", SCOPE, 0, public))
        signature = ref.sign(self.secret("device", device), self.statement(device))
        return [public, enrolment, key, b"".join(shares), self.proof(device), signature]

    def column(self, device: int, member: int) -> bytes:
        public, enrolment, key, _, proof, signature = self.parts(device)
        _, _, shares, paths = self.opening(device)
        share, path = shares[member - 1], paths[member - 1]
        return public + enrolment + key + share + path + proof + signature

    # The members

    def member_sign(self, member: int, what: str, payload: bytes) -> bytes:
        statement = ref.statement(what, self.digest, member, payload)
        return ref.sign(self.secret("member", member), statement)

    @cached_property
    def included(self) -> list[bytes]:
        return sorted(ref.digest(self.statement(device)) for device in DEVICES)

    @cached_property
    def set_digest(self) -> bytes:
        return ref.digest(b"blindtally one-shot set v1\0", self.digest, *self.included)

    def set_signature(self, member: int) -> bytes:
        name = b"blindtally v1 one-shot set\0"
        statement = name + self.digest + ref.u32(member) + self.set_digest
        return ref.sign(self.secret("member", member), statement)

    def sum(self, member: int) -> bytes:
        body = b""
        for lane, (p, n) in enumerate(LANES):
            shares = [self.share(device, member)[lane] for device in DEVICES]
            body += pack(
                p, [sum(column) % p for column in zip(*shares, strict=True)][: self.width((p, n))]
            )
        return body + self.member_sign(member, "one-shot sum", self.set_digest + body)

    @property
    def total(self) -> list[list[int]]:
        result = [[0] * n for _, n in LANES]
        for device in DEVICES:
            result = ref.combine(result, self.vector(device), LANES, 1)
        return result


def shown(whole: OneShot) -> dict[str, Any]:
    """Return a whole sum, inputs first, in the order of the protocol."""
    members, first = whole.members, whole.included[0]
    return {
        "plan": whole.plan.hex(),
        "number": whole.number,
        "parameters": whole.numbers,
        "minimum": 3,
        "lanes": LANES,
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
                "identity_secret": whole.secret("device", device).hex(),
                "random_secret": whole.secret("random", device).hex(),
                "vector": whole.vector(device),
                "label": whole.label(device).hex(),
                "root": whole.opening(device)[1].hex(),
                "message": b"".join(whole.parts(device)).hex(),
                "digest": ref.digest(whole.statement(device)).hex(),
                "columns": [whole.column(device, member).hex() for member in members],
            }
            for device in DEVICES
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
    parts = whole.parts(0)
    other = whole.parts(1)

    def changed(place: int, part: bytes) -> bytes:
        return b"".join([*parts[:place], part, *parts[place + 1 :]])

    body = b"".join(parts)
    flipped = [part[:-1] + bytes([part[-1] ^ 1]) for part in parts]
    size = len(parts[3]) // (whole.numbers.m - whole.numbers.a)
    expanded = b"".join(
        pack(p, row) for (p, _), row in zip(LANES, whole.expanded(0, 1), strict=True)
    )
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
        ("the key is of low order", changed(2, bytes(32))),
        ("the key has its unused bit set", changed(2, b"\xff" * 32)),
        ("a share is changed", changed(3, flipped[3])),
        ("two shares are swapped", changed(3, swapped)),
        ("the shares are another device's", changed(3, other[3])),
        ("a share that should have been expanded is sent", changed(3, expanded + parts[3])),
        ("the proof is another device's", changed(4, other[4])),
        ("the proof has an element outside its lane", changed(4, b"\xff" * len(parts[4]))),
        ("the signature is another device's", changed(5, other[5])),
        ("the signature is changed", changed(5, flipped[5])),
    ]


def no_committees(whole: OneShot) -> list[tuple[str, bytes]]:
    """Return committees that a device refuses."""
    body, unsigned = whole.committee, whole.signed_committee
    start = 32 + 20
    twice = unsigned[:start] + whole.entries[0] + b"".join(whole.entries[:1] + whole.entries[2:])
    numbers = [
        (why, whole.plan + ref.u32(*changed) + body[start:])
        for why, changed in (
            ("it is of another sum", (7, 5, 1, 1, 3)),
            ("it assumes no corrupt member", (6, 5, 0, 1, 3)),
            ("its threshold is that of other numbers", (6, 5, 1, 1, 2)),
            ("it has a member more than entries", (6, 6, 1, 1, 3)),
            ("its threshold is above m - D - A", (6, 5, 1, 1, 4)),
            ("its members cannot agree", (6, 5, 1, 2, 2)),
        )
    ]
    forged = ref.sign(
        stream("nobody"), ref.statement("one-shot committee", whole.plan, 6, unsigned)
    )
    return [
        ("a byte short", body[:-1]),
        ("a byte long", body + b"\0"),
        ("nothing", b""),
        ("its registrar did not sign", unsigned),
        ("another registrar signed", unsigned + forged),
        ("it is of another plan", stream("another plan") + body[32:]),
        (
            "its first two members are swapped",
            body[:start] + whole.entries[1] + whole.entries[0] + body[start + 256 :],
        ),
        ("a member is in it twice", twice + body[-64:]),
        *numbers,
    ]


def with_exact_numbers(case: Any) -> Any:
    """Return a case with its integers of 2^53 or more as text, which JavaScript would round."""
    if isinstance(case, dict):
        return {key: with_exact_numbers(value) for key, value in case.items()}
    if isinstance(case, list | tuple):
        return [with_exact_numbers(value) for value in case]
    return str(case) if isinstance(case, int) and case >= 2**53 else case


def one_shot() -> Any:
    """Return packings, parameters and a whole sum, and what must be refused."""
    whole = OneShot(Numbers(5, 1, 1, 3))
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
            (257, 1),
            (257, 9),
            (4099, 10),
            (65537, 4),
            (16777213, 3),
            (2**31 - 1, 3),
            (2**45 + 59, 2),
        )
        for row in ref.mask(stream(f"packing {p} {length}", 16), [(p, length)])
    ]
    malformed = [
        ("an element is p", 257, 1, (257).to_bytes(2, "little")),
        ("a bit that pads the row is set", 257, 1, (512).to_bytes(2, "little")),
        ("a group of six is p to the sixth", 257, 6, (257**6).to_bytes(7, "little")),
        ("the last group is too large", 257, 7, (257 << 49).to_bytes(8, "little")),
        ("all bits are set", 65537, 3, b"\xff" * 7),
        ("an element is above p", 2**45 + 59, 1, b"\xff" * 5 + b"\x3f"),
    ]
    infeasible = [
        ("four of seven must sign two sets", 7, 430, 290),
        ("no room for a secret", 7, 430, 145),
        ("nobody is left", 3, 340, 340),
    ]
    assert all(checked(m, m * c // 1000, m * d // 1000) is None for _, m, c, d in infeasible)
    sums = [whole.sum(member) for member in (1, 2)]
    member_sums = [
        ("a byte short", sums[0][:-1]),
        ("a byte long", sums[0] + b"\0"),
        ("another member's", sums[1]),
        ("another member's sum under its own signature", sums[1][:-64] + sums[0][-64:]),
        ("an element is outside its lane", b"\xff" * (len(sums[0]) - 64) + sums[0][-64:]),
    ]
    cases = {
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
        "one_shot_sums": [shown(whole)],
        "no_committees": [
            {"comment": why, "committee": body.hex()} for why, body in no_committees(whole)
        ],
        "no_messages": [
            {"comment": why, "message": body.hex()} for why, body in no_messages(whole)
        ],
        "no_member_sums": [{"comment": why, "sum": body.hex()} for why, body in member_sums],
    }
    return with_exact_numbers(cases)
