"""The handshake and the frames of a connection, without a connection."""

import contextlib
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.errors import TransportError
from starprof.wire.frames import TAG_BYTES, ClientProof, Frames, RejectedError, ServerProof, Service, Tagger

HERE = Service(b"TST1", "the test")


def proven(client, server):
    """Both sides' frames after a handshake."""
    reply, server_frames = server.admit(client.answer(server.greeting))
    return client.check(reply), server_frames


@given(key=st.binary(min_size=1, max_size=200), data=st.binary(max_size=500))
def test_tag_is_the_beginning_of_hmac_sha256(key, data):
    assert Tagger(key).tag(data) == hmac.digest(key, data, hashlib.sha256)[:TAG_BYTES]


@given(payloads=st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=8), cut=st.integers(1, 50))
def test_frames_arrive_as_sent_however_the_bytes_are_cut(payloads, cut):
    here, there = Frames(b"a", b"b"), Frames(b"b", b"a")
    data = b"".join(here.seal(kind, payload) for kind, payload in payloads)
    got = []
    for at in range(0, len(data), cut):
        there.feed(data[at : at + cut])
        while (frame := there.next()) is not None:
            got.append(frame)
    assert got == payloads


@given(at=st.integers(0, 20 + TAG_BYTES), bit=st.integers(0, 7))
def test_any_changed_bit_is_noticed(at, bit):
    here, there = Frames(b"a", b"b"), Frames(b"b", b"a")
    data = bytearray(here.seal(7, b"sixteen bytes ..") + bytes(1 << 10))
    data[at] ^= 1 << bit
    there.feed(data)
    with contextlib.suppress(TransportError):
        assert there.next() is None  # the length grew: the rest has not come


def test_both_sides_prove_themselves_and_agree_on_keys():
    here, there = proven(ClientProof(HERE, b"secret", "there"), ServerProof(HERE, b"secret"))
    there.feed(here.seal(1, b"to the server"))
    here.feed(there.seal(2, b"to the client"))
    assert there.next() == (1, b"to the server")
    assert here.next() == (2, b"to the client")


def test_a_proof_for_one_service_is_none_for_another():
    other = Service(b"TST2", "another")
    server = ServerProof(HERE, b"secret")
    answer = ClientProof(other, b"secret", "there").answer(other.magic + server.greeting[len(HERE.magic) :])
    with pytest.raises(TransportError, match="did not know the secret"):
        server.admit(answer)


def test_another_version_is_told_from_a_wrong_secret():
    with pytest.raises(RejectedError, match="not the test, or of another version"):
        ClientProof(HERE, b"secret", "there").answer(b"HTTP" + bytes(32))
    with pytest.raises(RejectedError, match="is it the test"):
        proven(ClientProof(HERE, b"another", "there"), _Trusting(HERE, b"secret"))


class _Trusting(ServerProof):
    """Admits whoever comes, to see what the client makes of its proof."""

    def admit(self, answer):
        return bytes(32), Frames(b"a", b"b")
