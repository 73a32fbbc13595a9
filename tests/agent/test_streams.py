"""Numbers and packing of rows on their way into the spool."""

import math
import struct

from hypothesis import given
from hypothesis import strategies as st

from starprof.agent.buffer import RowBuffer, Streams
from starprof.model.schema import BY_NAME, INT_NULL, TABLES, Type, packed_cells

CPU = BY_NAME["cpu_sample"]
GPU = BY_NAME["gpu_sample"]


def rows_of(table, *rows):
    buffer = RowBuffer()
    for row in rows:
        buffer.add(table, row)
    return buffer.take()


def cells(frame):
    return list(struct.Struct(frame.table.struct_format).iter_unpack(frame.payload))


def test_each_table_has_a_stream_numbered_without_holes():
    streams = Streams("n0-7-99")
    row = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    (first,) = streams.frames(rows_of(CPU, row, row))
    streams.commit()
    (second,) = streams.frames(rows_of(CPU, row))

    assert (first.stream, first.seq, first.rows) == ("n0-7-99/cpu_sample", 0, 2)
    assert (second.stream, second.seq, second.rows) == ("n0-7-99/cpu_sample", 2, 1)


def test_rows_that_did_not_reach_the_spool_take_no_number():
    streams = Streams("n0-7-99")
    row = (0, 1, 2, 3, 4, 5, 6, 7, 8)
    streams.frames(rows_of(CPU, row, row))
    (again,) = streams.frames(rows_of(CPU, row))

    assert again.seq == 0


def test_text_tables_go_as_json():
    (frame,) = Streams("s").frames(rows_of(BY_NAME["unavailable"], [0, "gpu", "no driver"]))

    assert frame.json_rows() == [[0, "gpu", "no driver"]]


@given(st.sampled_from([t for t in TABLES if t.packed]), st.data())
def test_packing_equals_the_schemas_own_with_null_for_none(table, data):
    number = st.integers(-(2**62), 2**62)
    kinds = {Type.INT: st.none() | st.just(INT_NULL) | number, Type.FLOAT: st.none() | st.floats(allow_nan=False)}
    row = data.draw(st.tuples(*(kinds[column.type] for column in table.columns)))
    (frame,) = Streams("s").frames(rows_of(table, row))

    expected = packed_cells(table, row)
    for cell, wanted in zip(cells(frame)[0], expected, strict=True):
        assert cell == wanted or (math.isnan(cell) and math.isnan(wanted))


def test_a_buffer_gives_each_row_once():
    buffer = RowBuffer()
    buffer.add(CPU, (0,) * 9)

    assert len(buffer.take()[CPU.code]) == 1
    assert buffer.take() == {}
