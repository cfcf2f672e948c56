"""The bytes of members' messages: strict sizes, and one order of digests."""

import pytest

from secagg.oneshot.member_messages import ComplaintList, MemberSum, unpack_digests
from tests.secagg.oneshot.conftest import Round

LOW_DIGEST, HIGH_DIGEST = bytes(32), b"\1" * 32


def test_messages_come_back(whole: Round) -> None:
    whole.check()
    whole.agree(whole.set_of())
    whole.release()
    for complaints in (whole.complaints[3], ComplaintList((LOW_DIGEST, HIGH_DIGEST), bytes(64))):
        assert ComplaintList.unpack(complaints.pack()) == complaints
    assert MemberSum.unpack(whole.sums[3].pack(), whole.session) == whole.sums[3]
    assert "packed" not in repr(whole.sums[3])  # it must not reach a log
    assert unpack_digests(b"".join(whole.set_of())) == tuple(whole.set_of())
    assert unpack_digests(b"") == ()


@pytest.mark.parametrize(
    "body", [LOW_DIGEST[:-1], HIGH_DIGEST + LOW_DIGEST, LOW_DIGEST + LOW_DIGEST]
)
def test_digests_in_another_form_are_refused(body: bytes) -> None:
    for read, sent in ((unpack_digests, body), (ComplaintList.unpack, body + bytes(64))):
        with pytest.raises(ValueError, match="digests"):
            read(sent)


def test_messages_of_another_size_are_refused(whole: Round) -> None:
    with pytest.raises(ValueError, match="too short for a signature"):
        ComplaintList.unpack(bytes(63))
    size = whole.session.sharing.sum_bytes + 64
    for wrong in (size - 1, size + 1, 0):
        with pytest.raises(ValueError, match=f"a member's sum has {size} bytes"):
            MemberSum.unpack(bytes(wrong), whole.session)
