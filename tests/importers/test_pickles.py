"""Pickles as data: what plain ones hold, and that no other one does anything at all."""

import math
import pickle
import pickletools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starprof.errors import InputError
from starprof.importers.nccl.pickles import read_pickle

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
)
KEYS = st.one_of(st.text(max_size=8), st.integers(-(2**70), 2**70))
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(KEYS, inner, max_size=5),
    ),
    max_leaves=40,
)
REFUSED = [
    op
    for op in pickletools.opcodes
    if op.name
    in {
        "GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "EXT1", "EXT2", "EXT4",
        "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER", "BYTEARRAY8", "EMPTY_SET", "ADDITEMS", "FROZENSET",
    }
]  # fmt: skip


@given(PLAIN, st.integers(0, 5))
def test_plain_data_comes_back_as_it_was(value, protocol):
    if protocol < 3 and _has_bytes(value):
        return  # bytes are a call in these protocols
    assert read_pickle(pickle.dumps(value, protocol), "dump") == value


def _has_bytes(value):
    if isinstance(value, dict):
        return any(_has_bytes(v) for v in value.values())
    return isinstance(value, bytes) or (isinstance(value, (list, tuple)) and any(map(_has_bytes, value)))


@pytest.mark.parametrize("op", REFUSED, ids=lambda op: op.name)
def test_an_instruction_that_is_no_plain_data_is_refused_by_name(op):
    with pytest.raises(InputError, match=f"instruction {op.name}$"):
        read_pickle(b"\x80\x02}" + op.code.encode("latin-1") + b"cbuiltins\neval\n.", "dump")


def test_a_pickle_that_would_call_something_is_refused_and_calls_nothing(tmp_path):
    touched = tmp_path / "touched"

    class Trap:
        def __reduce__(self):
            return touched.write_text, ("x",)

    for protocol in range(6):
        with pytest.raises(InputError):
            read_pickle(pickle.dumps({"entries": [Trap()]}, protocol), "dump")
    assert not touched.exists()


@given(st.binary(max_size=300))
def test_random_bytes_are_data_or_one_line(data):
    _data_or_one_line(data)


@given(st.lists(st.sampled_from([op.code.encode("latin-1") for op in pickletools.opcodes]), max_size=60), st.binary())
def test_random_instructions_are_data_or_one_line(codes, tail):
    _data_or_one_line(b"\x80\x04" + b"".join(codes) + tail + b".")


@settings(max_examples=200)
@given(PLAIN, st.data())
def test_a_damaged_pickle_is_data_or_one_line(value, data):
    whole = bytearray(pickle.dumps(value, 4))
    where = data.draw(st.integers(0, len(whole) - 1))
    whole[where] = data.draw(st.integers(0, 255))
    _data_or_one_line(bytes(whole[: data.draw(st.integers(0, len(whole)))]))


def _data_or_one_line(data):
    try:
        read_pickle(data, "dump")
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either is right


def test_a_cut_pickle_says_that_it_is_cut_off():
    with pytest.raises(InputError, match="dump_3 is cut off or damaged"):
        read_pickle(pickle.dumps(list(range(1000)), 2)[:-10], "dump_3")


def test_a_list_of_lists_of_lists_by_reference_stays_as_small_as_it_is():
    # Each level refers to the one before ten times: 10**40 leaves if anybody walked through them.
    bomb = b"\x80\x02]q\x00" + b"".join(
        b"](" + b"h" + bytes([n]) + (b"h" + bytes([n])) * 9 + b"eq" + bytes([n + 1]) for n in range(40)
    )
    assert len(read_pickle(bomb + b".", "dump")) == 10


def test_a_key_that_takes_for_ever_to_hash_is_refused():
    bomb = b"\x80\x02)q\x00" + b"".join(
        b"h" + bytes([n]) * 1 + b"h" + bytes([n]) + b"\x86q" + bytes([n + 1]) for n in range(60)
    )
    with pytest.raises(InputError):
        read_pickle(bomb + b"}h\x3cNs.", "dump")


def test_a_memo_number_takes_no_memory_by_its_size():
    assert read_pickle(b"\x80\x02Nr\xff\xff\xff\xff.", "dump") is None


def test_more_objects_than_a_dump_can_hold_are_refused():
    with pytest.raises(InputError, match="more than can be true"):
        read_pickle(b"\x80\x02]" + b"(" + b"}" * 1000 + b"e.", "dump", max_objects=100)


def test_endless_marks_are_refused():
    with pytest.raises(InputError, match="nested too deeply"):
        read_pickle(b"\x80\x02" + b"(" * 5000 + b".", "dump")


def test_a_text_that_claims_to_be_longer_than_the_file_is_cut_off():
    with pytest.raises(InputError, match="cut off"):
        read_pickle(b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"abc.", "dump")


def test_a_list_that_holds_itself_is_kept_as_it_is():
    own = []
    own.append(own)
    found = read_pickle(pickle.dumps(own, 4), "dump")
    assert found[0] is found


def test_infinities_and_not_a_number_survive():
    found = read_pickle(pickle.dumps([math.inf, -math.inf, math.nan], 4), "dump")
    assert found[:2] == [math.inf, -math.inf]
    assert math.isnan(found[2])
