"""The bytes of a message and of its columns: strict sizes, the Merkle tree, and the signature."""

from dataclasses import replace
from hashlib import sha256
from itertools import product

import pytest

from secagg.keys import Identity
from secagg.oneshot.message import (
    Column,
    DeviceMessage,
    FaultyMessageError,
    Layout,
    check_message,
    make_message,
    merkle_levels,
    merkle_path,
    own_secrets,
    root_of_path,
    tree_depth,
)
from secagg.ring import Vector
from tests.secagg.conftest import Script
from tests.secagg.oneshot.conftest import RING, Round, assemble


def test_a_message_has_the_stated_size_and_comes_back(whole: Round) -> None:
    session, layout = whole.session, Layout.of(whole.session)
    for message in whole.messages.values():
        body = message.pack()
        assert len(body) == layout.message_bytes
        assert DeviceMessage.unpack(body, session) == message
        sizes = [len(column) for column in message.columns(session)]
        assert sizes == [layout.column_bytes(member) for member in whole.members]
        levels = merkle_levels(message.encrypted_shares(session))
        for member, column in enumerate(message.columns(session), 1):
            assert message.column(session, member, levels) == column
            assert message.column(session, member) == column
    shares, proof = session.sharing.share_bytes, session.sharing.proof_bytes
    assert layout.message_bytes == 32 + 64 + 32 + 7 * shares + proof + 64
    assert layout.column_bytes(2) == 32 + 64 + 32 + 4 * 32 + proof + 64
    assert layout.column_bytes(3) == layout.largest_column == layout.column_bytes(2) + shares


@pytest.mark.parametrize("change", [-1, 1])
def test_a_message_of_another_size_is_refused(whole: Round, change: int) -> None:
    body = whole.messages[0].pack() + b"\0"
    with pytest.raises(ValueError, match="a message has"):
        DeviceMessage.unpack(body[: len(body) - 1 + change], whole.session)
    with pytest.raises(ValueError, match="a message has"):
        DeviceMessage.unpack(b"", whole.session)


def test_parts_that_are_not_valid_are_refused(whole: Round) -> None:
    message, session = whole.messages[0], whole.session
    for wrong, reason in (
        (replace(message, identity=bytes(32)), "an identity is of low order"),
        (replace(message, key=bytes(32)), "a public key is of low order"),
        (replace(message, key=b"\xff" * 32), "unused bit"),
        (replace(message, proof=b"\xff" * len(message.proof)), "outside its lane"),
    ):
        with pytest.raises(ValueError, match=reason):
            DeviceMessage.unpack(wrong.pack(), session)


def test_every_byte_of_a_message_is_signed(whole: Round) -> None:
    """Guards: each part in `Opening.statement`, and the enrolment in `check_message`."""
    message, session = whole.messages[0], whole.session
    check_message(session, message)
    for name in ("identity", "enrolment", "key", "shares", "proof", "signature"):
        part = getattr(message, name)
        for place in (0, len(part) - 1):
            changed = part[:place] + bytes([part[place] ^ 1]) + part[place + 1 :]
            with pytest.raises(FaultyMessageError, match=r"not enrolled|not signed"):
                check_message(session, replace(message, **{name: changed}))


@pytest.mark.parametrize("member", [1, 9])
def test_every_byte_of_a_column_is_signed(whole: Round, member: int) -> None:
    """Guards: the same, for a member; and that an altered share has another root."""
    message, session = whole.messages[0], whole.session
    column = Column.unpack(message.column(session, member), Layout.of(session), member)
    assert check_message(session, column) == check_message(session, message)
    for name in ("identity", "enrolment", "key", "share", "path", "proof", "signature"):
        part = getattr(column, name)
        for place in {0, len(part) - 1} if part else ():
            changed = part[:place] + bytes([part[place] ^ 1]) + part[place + 1 :]
            with pytest.raises(FaultyMessageError, match=r"not enrolled|not signed"):
                check_message(session, replace(column, **{name: changed}))
    with pytest.raises(FaultyMessageError, match="not signed"):
        check_message(session, replace(column, member=4))


def test_shares_in_another_order_are_not_signed(whole: Round) -> None:
    message, session = whole.messages[0], whole.session
    first, second, *others = message.encrypted_shares(session)[session.parameters.corrupt :]
    with pytest.raises(FaultyMessageError, match="not signed"):
        check_message(session, replace(message, shares=b"".join([second, first, *others])))


@pytest.mark.parametrize("leaves", [1, 2, 3, 7, 8, 9, 100])
def test_a_path_leads_to_the_root_from_its_place_only(leaves: int) -> None:
    shares = [sha256(bytes([place])).digest() for place in range(leaves)]
    levels = merkle_levels(shares)
    root = levels[-1]
    for index in {0, leaves // 2, leaves - 1}:
        path = merkle_path(levels, index)
        assert len(path) == 32 * tree_depth(leaves)
        assert root_of_path(shares[index], index, path) == root
        assert root_of_path(shares[index] + b"\0", index, path) != root
        for other in range(leaves):
            if other != index:
                assert root_of_path(shares[index], other, path) != root


def test_a_leaf_is_never_a_node() -> None:
    shares = [b"a" * 32, b"b" * 32]
    leaves, root = merkle_levels(shares)
    assert merkle_levels([leaves])[-1] != root


def test_a_message_depends_on_its_random_bytes_and_the_vector_in_every_secret() -> None:
    """Two runs of one copy of a device make the same bytes, or independent polynomials."""
    whole = assemble(devices=1)
    session, identity = whole.session, whole.identities[0]
    enrolment = whole.enrolment(identity.public)

    def made(drawn: bytes, vector: Vector) -> DeviceMessage:
        return make_message(session, identity, enrolment, vector, Script(drawn))

    vector, other = whole.vector(0), whole.vector(1)
    message = made(b"a" * 32, vector)
    assert made(b"a" * 32, vector) == message
    assert len({message.key, made(b"b" * 32, vector).key, made(b"a" * 32, other).key}) == 3
    packed = [session.sharing.pack(each[0]) for each in (vector, other)]
    seeds = product((b"a" * 32, b"b" * 32), (bytes(32), b"\1" * 32), packed)
    streams = [own_secrets(*each)[1] for each in seeds]
    assert len({RING.lanes[0].uniform(stream).tobytes() for stream in streams}) == 8


def test_a_vector_of_another_ring_and_a_wrong_enrolment_are_the_callers_mistakes() -> None:
    whole = assemble(devices=1)
    identity, vector = whole.identities[0], whole.vector(0)
    enrolment = whole.enrolment(identity.public)
    wrong = (vector[0][:-1],)
    with pytest.raises(ValueError, match="lane 0"):
        make_message(whole.session, identity, enrolment, wrong, whole.rng)
    with pytest.raises(ValueError, match="an enrolment has 64 bytes"):
        make_message(whole.session, identity, b"", vector, whole.rng)


def test_without_a_registry_a_message_has_no_enrolment() -> None:
    whole = assemble(devices=1)
    session = replace(whole.session, registry=None)
    message = make_message(session, Identity.of(b"i" * 32), b"", RING.zero(), whole.rng)
    assert DeviceMessage.unpack(message.pack(), session) == message
    assert Layout.of(session).message_bytes == Layout.of(whole.session).message_bytes - 64
    check_message(session, message)
