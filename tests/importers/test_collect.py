"""From what the user names to files: folders, globs, archives, and what is refused."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from starprof.errors import InputError
from starprof.importers import collect as module
from starprof.importers.collect import collect
from starprof.importers.source import Source


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "logs"
    made.mkdir()
    return made


def names(paths, scratch):
    return [s.name for s in collect([str(p) for p in paths], scratch)]


def content(source):
    with source.open() as stream:
        return stream.read()


def tar_of(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_folder_is_searched_to_the_bottom_in_order_without_hidden_files(folder, scratch):
    (folder / "b" / "c").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in ("a.log", "b/c/d.log", ".hidden", ".git/config"):
        (folder / name).write_text("x")
    assert names([folder], scratch) == [f"{folder}/a.log", f"{folder}/b/c/d.log"]


def test_hidden_file_is_read_when_it_is_named(folder, scratch):
    (folder / ".hidden").write_text("x")
    assert names([folder / ".hidden"], scratch) == [f"{folder}/.hidden"]


def test_globs_match_files_and_folders_below(folder, scratch):
    (folder / "n1").mkdir()
    for name in ("r0.json", "r1.json", "n1/r2.json", ".r3.json", "note.txt"):
        (folder / name).write_text("x")
    assert names([f"{folder}/*.json"], scratch) == [f"{folder}/r0.json", f"{folder}/r1.json"]
    assert names([f"{folder}/**/*.json"], scratch) == [f"{folder}/{n}" for n in ("n1/r2.json", "r0.json", "r1.json")]


def test_relative_glob_is_taken_from_the_working_folder(folder, scratch, monkeypatch):
    (folder / "r0.json").write_text("x")
    monkeypatch.chdir(folder)
    assert names(["*.json"], scratch) == ["r0.json"]


def test_file_named_twice_is_read_once(folder, scratch):
    (folder / "a.log").write_text("x")
    (folder / "link.log").symlink_to(folder / "a.log")
    assert names([folder, folder / "a.log", f"{folder}/*.log"], scratch) == [f"{folder}/a.log"]


@pytest.mark.parametrize("pattern", ["missing.log", "*.none", "[", "**/[x", "**bad/*"])
def test_path_that_matches_nothing_is_one_line(folder, scratch, pattern):
    with pytest.raises(InputError) as refused:
        names([folder / pattern], scratch)
    assert "\n" not in str(refused.value)


def test_path_with_a_null_byte_is_one_line(scratch):
    with pytest.raises(InputError):
        collect(["a\0b"], scratch)


@pytest.mark.parametrize(
    ("suffix", "mode"), [("tar", "w"), ("tar.gz", "w:gz"), ("tar.bz2", "w:bz2"), ("tar.xz", "w:xz"), ("data", "w:gz")]
)
def test_tar_members_are_sources_named_with_their_archive(folder, scratch, suffix, mode):
    path = tar_of(folder / f"t.{suffix}", {"a/b/rank0.json": b"zero", "rank1.json": b"one", ".x": b"hidden"}, mode)
    sources = collect([str(path)], scratch)
    assert [s.name for s in sources] == [f"{path}!a/b/rank0.json", f"{path}!rank1.json"]
    assert [content(s) for s in sources] == [b"zero", b"one"]
    assert [s.base for s in sources] == ["rank0.json", "rank1.json"]


def test_zip_members_are_sources_and_gzip_within_is_unpacked(folder, scratch):
    path = folder / "t.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("deep/er/rank0.json.gz", gzip.compress(b"zero"))
        archive.mkdir("empty") if hasattr(archive, "mkdir") else None
    (source,) = collect([str(path)], scratch)
    assert (source.base, content(source), source.head) == ("rank0.json", b"zero", b"zero")


def test_member_names_that_climb_out_stay_names(folder, scratch):
    path = tar_of(folder / "t.tar", {"../../etc/passwd": b"mine", "/abs": b"too"})
    sources = collect([str(path)], scratch)
    assert [s.path.parent for s in sources] == [scratch, scratch]
    assert not (folder.parent / "etc").exists()


def test_links_and_devices_inside_a_tar_are_not_read(folder, scratch):
    path = folder / "t.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("dev", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    assert collect([str(path)], scratch) == []


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_files_that_are_no_tar_stay_files(folder, scratch, pack):
    (folder / "r0.json.packed").write_bytes(pack(b'{"traceEvents": []}'))
    assert names([folder / "r0.json.packed"], scratch) == [f"{folder}/r0.json.packed"]


def test_checkpoints_are_not_unpacked(folder, scratch):
    for name in ("epoch1.pt", "model.zip"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"\x80\x02.")
            archive.writestr("archive/data/0", b"0" * 100)
    (folder / "other.npz").write_bytes((folder / "epoch1.pt").read_bytes())
    assert names([folder], scratch) == [f"{folder}/{n}" for n in ("epoch1.pt", "model.zip", "other.npz")]
    assert names([folder / "epoch1.pt"], scratch) == [f"{folder}/epoch1.pt"]


@pytest.mark.parametrize("cut", [1, 100, 600])
@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.xz", "zip"])
def test_cut_archives_are_one_line_or_their_whole_members(folder, scratch, suffix, cut):
    path = folder / f"t.{suffix}"
    data = os.urandom(4000)
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", data)
    else:
        tar_of(path, {"a": data}, {"tar": "w", "tar.gz": "w:gz", "tar.xz": "w:xz"}[suffix])
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut] if suffix != "tar" else whole[: 512 + cut])
    said, read = "", []
    try:
        read = names([path], scratch)
    except InputError as refused:
        said = str(refused)
    assert read in ([str(path)], [f"{path}!a"]) if not said else (str(path) in said and "\n" not in said)


def test_zip_bomb_is_refused_before_it_fills_the_disk(folder, scratch, monkeypatch):
    monkeypatch.setattr(module, "MAX_RATIO", 16)
    path = folder / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(40 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(InputError, match="unpacks to more"):
        collect([str(path)], scratch)
    assert sum(f.stat().st_size for f in scratch.iterdir()) <= 16 << 20


def test_tar_header_cannot_make_us_read_it_whole(folder, scratch):
    import tracemalloc

    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 1 << 30
    with gzip.open(folder / "bomb.tar.gz", "wb", compresslevel=1) as packed:
        packed.write(info.tobuf())
        for _ in range(64):
            packed.write(bytes(1 << 20))
    tracemalloc.start()
    with pytest.raises(InputError, match="header"):
        collect([str(folder / "bomb.tar.gz")], scratch)
    assert tracemalloc.get_traced_memory()[1] < 1 << 25
    tracemalloc.stop()


def test_xz_cannot_choose_its_memory(folder, scratch):
    big = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "preset": 0}]
    packed = bytearray(lzma.compress(bytes(2000), format=lzma.FORMAT_XZ, filters=[{**big[0], "dict_size": 1 << 20}]))
    packed[15] = 40  # the largest dictionary there is; the header's checksum no longer holds
    (folder / "t.tar.xz").write_bytes(bytes(packed))
    assert names([folder / "t.tar.xz"], scratch) == [f"{folder}/t.tar.xz"]


def test_zip_packed_with_lzma_is_refused(folder, scratch):
    with zipfile.ZipFile(folder / "t.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"x" * 100)
    with pytest.raises(InputError, match="not supported"):
        collect([str(folder / "t.zip")], scratch)


def test_encrypted_zip_is_one_line(folder, scratch):
    path = folder / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", b"secret")
    raw = bytearray(path.read_bytes())
    raw[6] |= 1  # flag bit 0 of the local header and of the directory
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(bytes(raw))
    with pytest.raises(InputError, match="can't be unpacked"):
        collect([str(path)], scratch)


def test_link_loops_end(folder, scratch):
    (folder / "deep").mkdir()
    (folder / "deep" / "up").symlink_to(folder)
    (folder / "deep" / "again").symlink_to(folder / "deep")
    (folder / "self").symlink_to(folder / "self")
    (folder / "deep" / "a.log").write_text("x")
    assert names([folder], scratch) == [f"{folder}/deep/a.log"]
    assert names([f"{folder}/**/*.log"], scratch) == [f"{folder}/deep/a.log"]


def test_folder_that_is_named_by_a_link_is_read(folder, scratch, tmp_path):
    (folder / "a.log").write_text("x")
    (tmp_path / "latest").symlink_to(folder)
    assert names([tmp_path / "latest"], scratch) == [f"{tmp_path}/latest/a.log"]


def test_pipes_and_devices_are_refused_when_named_and_passed_over_in_folders(folder, scratch):
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "a.log").write_text("x")
    assert names([folder], scratch) == [f"{folder}/a.log"]
    for path in (folder / "pipe", "/dev/zero", folder / "zero"):
        with pytest.raises(InputError, match="neither a file nor a folder"):
            collect([str(path)], scratch)


def test_file_without_end_that_says_it_is_empty_is_not_opened():
    assert Source("status", Path("/proc/self/status")).head == b""


@pytest.fixture
def not_root():
    """Root may read everything: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_unreadable_file_is_one_line_with_the_reason(folder, scratch, request):
    path = folder / "a.log"
    path.write_text("x")
    path.chmod(0)
    (source,) = collect([str(path)], scratch)
    request.getfixturevalue("not_root")
    with pytest.raises(InputError, match="Permission denied"):
        _ = source.head


def test_unreadable_folder_is_one_line(folder, scratch, request):
    folder.chmod(0)
    request.getfixturevalue("not_root")
    with pytest.raises(InputError, match="can't be read"):
        collect([str(folder)], scratch)


def test_file_that_vanishes_is_one_line(folder, scratch):
    path = folder / "a.log"
    path.write_text("x")
    (source,) = collect([str(path)], scratch)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        _ = source.head


def test_too_many_files_are_refused(folder, scratch, monkeypatch):
    monkeypatch.setattr(module, "MAX_FILES", 10)
    for i in range(12):
        (folder / f"{i}.log").write_text("x")
    for path in (folder, f"{folder}/*.log"):
        with pytest.raises(InputError, match="more than 10 files"):
            collect([str(path)], scratch)
    tar_of(folder.parent / "t.tar", {str(i): b"x" for i in range(12)})
    with pytest.raises(InputError, match="more than 10 files"):
        collect([str(folder.parent / "t.tar")], scratch)


def test_a_folder_in_an_archive_can_be_named(tmp_path):
    with tarfile.open(tmp_path / "jobs.tar.gz", "w:gz") as archive:
        for name in ("all/first/a", "all/second/b", "all/second/c", "all/secondary/d"):
            (tmp_path / "member").write_text(name)
            archive.add(tmp_path / "member", name)
    (tmp_path / "scratch").mkdir()
    found = collect([f"{tmp_path}/jobs.tar.gz!all/second"], tmp_path / "scratch")
    assert [source.base for source in found] == ["b", "c"]
    assert [source.path.read_text() for source in found] == ["all/second/b", "all/second/c"]


def test_several_parts_of_one_archive_are_all_read(tmp_path):
    with zipfile.ZipFile(tmp_path / "jobs.zip", "w") as archive:
        for name in ("first/a", "second/b", "third/c"):
            archive.writestr(name, name)
    (tmp_path / "scratch").mkdir()
    found = collect([f"{tmp_path}/jobs.zip!{part}" for part in ("first", "third/c")], tmp_path / "scratch")
    assert [source.path.read_text() for source in found] == ["first/a", "third/c"]


def test_a_part_that_an_archive_does_not_hold_is_an_error(tmp_path):
    with zipfile.ZipFile(tmp_path / "jobs.zip", "w") as archive:
        archive.writestr("first/a", "x")
    (tmp_path / "scratch").mkdir()
    with pytest.raises(InputError, match="holds no second"):
        collect([f"{tmp_path}/jobs.zip!second"], tmp_path / "scratch")
