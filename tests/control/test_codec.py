"""Messages of the round protocol as bytes: what goes in comes out, and nothing else gets in."""

import json
from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from starprof.control.codec import MESSAGES, decode, encode, encode_briefly
from starprof.errors import TransportError
from starprof.sync.policies import Gradient
from starprof.sync.protocol.messages import Arrive, Close, Go, ToCoordinator, ToRank
from starprof.sync.transfers import Sent

st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))

ARRIVE = Arrive(1, Gradient(1, 7, 6), 6)
VALUES = [None, True, 0, -1, 2**63, 1.5, "", "Go", [], [[]], {}, [1, 2], ["Gradient", 1, 2, 3, 4]]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
@given(data=st.data())
def test_every_message_comes_out_as_it_went_in(message, data):
    made = data.draw(st.builds(message))
    back = decode(encode(made))
    assert back == made
    assert type(back) is message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
@given(data=st.data())
def test_every_message_comes_out_of_its_brief_form_as_it_went_in(message, data):
    made = data.draw(st.builds(message))
    back = decode(encode_briefly(made))
    assert back == made
    assert type(back) is message


@pytest.mark.parametrize("message", [ARRIVE, replace(ARRIVE, iterations=9), Go(1, 2, 3, kept=False)], ids=repr)
def test_what_comes_in_every_step_has_a_brief_form_that_no_other_bytes_mean(message):
    brief = encode_briefly(message)
    assert not brief.startswith(b"[")
    assert decode(brief) == message
    for other in (brief[:-1], brief + b"\0", brief[:1], brief[:1] + b"?" + brief[2:]):
        with pytest.raises(TransportError):
            decode(other)


@pytest.mark.parametrize(
    "message",
    [
        Arrive(1, Gradient(2, 7, 6), 6),
        Arrive(1, Gradient(1, 7, 6), 6, -(2**63)),
        Arrive(1, Gradient(1, 7, 6), 6, 5, (Sent(2, 1000),)),
    ],
    ids=repr,
)
def test_what_the_brief_form_has_no_place_for_goes_in_the_other(message):
    assert encode_briefly(message) == encode(message)


def test_a_go_whose_kept_is_neither_yes_nor_no_is_refused():
    with pytest.raises(TransportError):
        decode(encode_briefly(Go(1, 2, 3, kept=True))[:-1] + b"\x02")


def test_all_that_ranks_and_coordinator_say_can_be_sent():
    assert {*get_args(ToRank), *get_args(ToCoordinator)} == set(MESSAGES)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.__name__)
@given(data=st.data())
def test_a_field_of_another_kind_is_refused_or_means_the_same(message, data):
    """One field replaced by anything: either no message, or one that is sent as exactly this."""
    values = json.loads(encode(data.draw(st.builds(message))))
    place = data.draw(st.integers(0, len(values) - 1))
    values[place] = data.draw(st.sampled_from(VALUES))
    try:
        back = decode(json.dumps(values).encode())
    except TransportError:
        return
    assert json.loads(encode(back)) == values


@given(data=st.binary(max_size=100))
def test_garbage_is_refused(data):
    with pytest.raises(TransportError):
        decode(data)


@pytest.mark.parametrize("count", [-1, 1])
def test_a_message_with_a_field_too_many_or_too_few_is_refused(count):
    values = json.loads(encode(ARRIVE))
    values = values[:count] if count < 0 else [*values, 0]
    with pytest.raises(TransportError, match="not well formed"):
        decode(json.dumps(values).encode())


@pytest.mark.parametrize(
    "text",
    [
        '["Go",1,2,3,1]',
        '["Go",1,2,3.0,true]',
        '["Go",1,2,9223372036854775808,true]',
        '["Gradient",1,2,3,4]',
        '["Close",1,0,0,[],[NaN]]',
        '["Close",1,0,0,[[0,0,0,1]],[1e999],[],false,0,0,[]]',
        '["Close",1,0,0,[[0,0,0,1]],[Infinity],[],false,0,0,[]]',
        "[" * 100_000,
        "1" * 10_000,
    ],
    ids=lambda t: t[:40],
)
def test_what_looks_like_a_message_is_refused(text):
    with pytest.raises(TransportError):
        decode(text.encode())


@pytest.mark.parametrize(
    "message",
    [
        Go(1, 2**63, 0, True),
        Go(1, 2, 0, 1),
        Arrive(1, Gradient(1, 2**63, 6), 6),
        Arrive(1, Gradient(1, 0.5, 6), 6),
        Close(1, 0, 0, (), (float("nan"),)),
        Close(1, 0, 0, (1,), (1.0,)),
        Gradient(0, 0, 0),
        "Go",
    ],
    ids=repr,
)
def test_what_is_no_message_is_not_sent(message):
    with pytest.raises(TransportError):
        encode(message)
    with pytest.raises(TransportError):
        encode_briefly(message)


def test_a_close_of_many_ranks_is_short():
    close = Close(3, 1000, 0, tuple(Gradient(r, 1000, 1000) for r in range(64)), (1 / 64,) * 64, tuple(range(64)))
    assert len(encode(close)) < 64 * 40
    assert len(fields(close)) > 5


def test_equal_weights_are_told_once():
    many = tuple(Gradient(rank, 0, 2) for rank in range(100))
    close = Close(1, 2, 0, many, (0.01,) * 100)
    assert decode(encode(close)) == close
    assert encode(close).count(b"0.01") == 1
    other = replace(close, weights=(0.02, *close.weights[1:]))
    assert decode(encode(other)) == other


@pytest.mark.parametrize("weights", ['{"n":0,"x":1.0}', '{"n":1e9,"x":1.0}', '{"n":99999999,"x":1}', '{"n":2}', '"x"'])
def test_weights_that_make_no_sense_are_refused(weights):
    data = encode(Close(1, 2, 0, (Gradient(0, 0, 2),) * 2, (0.5, 0.5)))
    assert b'{"n":2,"x":0.5}' in data
    with pytest.raises(TransportError):
        decode(data.replace(b'{"n":2,"x":0.5}', weights.encode()))
