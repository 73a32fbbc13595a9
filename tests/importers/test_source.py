"""One file: its head, its unpacked content, its lines, and the bounds on them."""

import gzip

import pytest

from starprof.errors import InputError
from starprof.importers.source import HEAD_BYTES, Source


def made(tmp_path, data, **options):
    path = tmp_path / "file.log.gz"
    path.write_bytes(data)
    return Source(str(path), path, **options)


def test_head_is_the_first_part_unpacked(tmp_path):
    data = bytes(range(256)) * 1000
    assert made(tmp_path, data).head == data[:HEAD_BYTES]
    assert made(tmp_path, gzip.compress(data)).head == data[:HEAD_BYTES]


def test_head_of_an_empty_file_is_empty(tmp_path):
    assert made(tmp_path, b"").head == b""
    assert made(tmp_path, gzip.compress(b"")).head == b""


def test_name_without_folders_archive_and_gz(tmp_path):
    assert made(tmp_path, b"").base == "file.log"
    assert Source("a/b.tar!c/d.json.gz", tmp_path).base == "d.json"


def test_head_of_a_cut_gzip_file_is_what_is_left(tmp_path):
    import os

    data = os.urandom(100_000)
    head = made(tmp_path, gzip.compress(data)[:50_000]).head
    assert 0 < len(head) < HEAD_BYTES
    assert data.startswith(head)


@pytest.mark.parametrize(
    "data",
    [b"\x1f\x8b", b"\x1f\x8b\x08\x00garbage", gzip.compress(b"x" * 100)[:-4]],
    ids=["magic only", "garbage", "cut"],
)
def test_damaged_gzip_is_one_line(tmp_path, data):
    with pytest.raises(InputError, match=r"cut off or damaged|can't be read"), made(tmp_path, data).open() as stream:
        stream.read()


def test_gzip_bomb_ends_at_the_bound(tmp_path):
    source = made(tmp_path, gzip.compress(bytes(1 << 24)), max_bytes=1 << 20)
    with pytest.raises(InputError, match="larger than"), source.open() as stream:
        stream.read()


def test_lines_come_without_ends_and_with_bad_bytes_replaced(tmp_path):
    assert list(made(tmp_path, b"a\r\nb\xff\n\nc").text_lines()) == ["a", "b\ufffd", "", "c"]


def test_line_without_end_is_refused(tmp_path):
    with pytest.raises(InputError, match="no text file"):
        list(made(tmp_path, b"x" * 3000).text_lines(max_line_bytes=1000))


def test_missing_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"), Source("gone.log", tmp_path / "gone.log").open():
        pass
