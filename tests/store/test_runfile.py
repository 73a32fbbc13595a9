"""Run files: what they are, what is refused, and that an older one is brought up to date."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import starprof.store
from starprof.errors import RunFileError
from starprof.model.schema import BY_NAME, SCHEMA_VERSION, TABLES
from starprof.store.query import load_run
from starprof.store.runfile import RunFile, RunFileLocked, arrow_rows, table_ddl


def make_version_0(path: Path) -> None:
    """A file as the layout before the first release had it, with one step record."""
    with duckdb.connect(path) as connection:
        for table in TABLES:
            if table.name not in ("operation", "collective", "link_test"):
                connection.execute(table_ddl(table))
        connection.execute("ALTER TABLE run DROP COLUMN source_format")
        connection.execute("ALTER TABLE run DROP COLUMN timing")
        connection.execute("ALTER TABLE step DROP COLUMN user_us")
        connection.execute("ALTER TABLE step DROP COLUMN hook_ns")
        connection.execute("CREATE TABLE meta (key VARCHAR, value VARCHAR)")
        connection.execute("CREATE TABLE ledger (stream VARCHAR, next_seq BIGINT, last_mono_ns BIGINT)")
        connection.execute("INSERT INTO meta VALUES ('format', 'starprof'), ('schema_version', '0')")
        connection.execute("INSERT INTO step (attempt, rank, step, start_mono_ns, dur_us) VALUES (0, 1, 2, 3, 4)")


def test_a_new_file_has_every_table_of_the_schema_with_its_columns(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        columns = run.query("""
            SELECT table_name, list(column_name ORDER BY column_index) FROM duckdb_columns()
            WHERE database_name = 'run' GROUP BY 1""")
    found = {name: tuple(names) for name, names in columns}
    assert {t.name: t.names for t in TABLES}.items() <= found.items()


def test_the_storage_version_is_pinned(run_file: Path) -> None:
    RunFile.open(run_file).close()
    with duckdb.connect(run_file, read_only=True) as connection:
        (tags,) = connection.execute("SELECT tags FROM duckdb_databases() WHERE path IS NOT NULL").fetchone()
    assert tags["storage_version"].startswith("v1.2.0")


def test_tables_have_no_keys_and_no_indexes(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        assert run.query("SELECT * FROM duckdb_constraints() WHERE database_name = 'run'") == []
        assert run.query("SELECT * FROM duckdb_indexes()") == []


def test_appended_rows_are_matched_by_column_name(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        run.append("step", pa.table({"rank": [3], "step": [7]}))
        assert run.query("SELECT attempt, rank, step FROM step") == [(None, 3, 7)]


def test_a_failed_transaction_leaves_nothing(run_file: Path) -> None:
    with RunFile.open(run_file) as run:

        def half_way() -> None:
            with run.transaction():
                run.append("step", pa.table({"rank": [3]}))
                run.append("step", pa.table({"nonsense": [3]}))

        with pytest.raises(RunFileError, match="nonsense"):
            half_way()
        assert run.query("SELECT count(*) FROM step") == [(0,)]


def test_replace_swaps_only_rows_with_equal_keys(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        run.append("ledger", arrow_rows("ledger", [("a", 1, None), ("b", 2, None)]))
        run.replace("ledger", arrow_rows("ledger", [("b", 5, 9), ("c", 1, None)]), keys=["stream"])
        assert run.query("SELECT * FROM ledger ORDER BY stream") == [("a", 1, None), ("b", 5, 9), ("c", 1, None)]


def test_single_rows_cannot_be_inserted(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        with pytest.raises(ValueError, match="Arrow batch only"):
            run.bulk("INSERT INTO step (rank) VALUES (1)")
        with pytest.raises(ValueError, match="not a SELECT"):
            run.query("INSERT INTO step (rank) SELECT 1")


def test_no_module_of_the_store_goes_past_the_run_file() -> None:
    """DuckDB is reached through `RunFile` alone, and nothing inserts row by row."""
    folder = Path(starprof.store.__file__).parent
    for path in folder.glob("*.py"):
        source = path.read_text()
        assert "executemany" not in source
        assert not re.search(r"INSERT INTO [^;]*\bVALUES\s*\(", source), path
        if path.name != "runfile.py":
            assert not re.search(r"^\s*(import|from) duckdb", source, re.MULTILINE), path


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello" * 1000)
    for opened in (RunFile.open, RunFile.open_read_only):
        with pytest.raises(RunFileError, match=r"notes.txt was not written by starprof$"):
            opened(path)


def test_a_database_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with duckdb.connect(path) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    before = path.read_bytes()
    for opened in (RunFile.open, RunFile.open_read_only):
        with pytest.raises(RunFileError, match="not a run that starprof recorded"):
            opened(path)
    assert path.read_bytes() == before


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match="does not exist"):
        RunFile.open_read_only(tmp_path / "none.starprof")


def test_a_newer_schema_asks_for_an_upgrade(run_file: Path) -> None:
    with RunFile.open(run_file) as run:
        run.set_meta({"schema_version": str(SCHEMA_VERSION + 1)})
    with pytest.raises(RunFileError, match="upgrade starprof"):
        RunFile.open_read_only(run_file)


def test_a_file_in_use_names_the_process_that_has_it(run_file: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from starprof.store.runfile import RunFile
run = RunFile.open(Path({str(run_file)!r}))
print("open", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "open\n"
        for opened in (RunFile.open, RunFile.open_read_only):
            with pytest.raises(RunFileLocked, match=f"in use by process {holder.pid}"):
                opened(run_file)
    finally:
        holder.communicate()
    RunFile.open(run_file).close()


def test_an_older_file_is_migrated_when_it_is_opened_for_writing(run_file: Path) -> None:
    make_version_0(run_file)
    with RunFile.open(run_file) as run:
        assert run.schema_version == SCHEMA_VERSION
        assert run.meta()["schema_version"] == str(SCHEMA_VERSION)
        assert run.query("SELECT rank, step, dur_us, user_us, hook_ns FROM step") == [(1, 2, 4, None, None)]
        run.append("step", arrow_rows("step", [list(range(len(BY_NAME["step"].columns)))]))


def test_reading_an_older_file_changes_nothing_and_shows_missing_columns_as_null(run_file: Path) -> None:
    make_version_0(run_file)
    before = run_file.read_bytes()
    run = load_run(run_file)
    assert run.steps["dur_us"].tolist() == [[4.0]]
    assert str(run.steps["user_us"].tolist()) == "[[nan]]"
    assert run_file.read_bytes() == before


@pytest.mark.root
def test_a_full_disk_is_said_and_what_was_committed_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        path = disk / "job.starprof"
        with RunFile.open(path) as run, run.transaction():
            run.append("step", pa.table({"rank": [1, 2, 3]}))
        noise = pa.table({"rank": [hash((1, i)) for i in range(1_000_000)]})

        def overfill() -> None:
            with RunFile.open(path) as run, run.transaction():
                run.append("step", noise)

        with pytest.raises(RunFileError, match="no space left"):
            overfill()
        with RunFile.open(path) as run:
            assert run.query("SELECT rank FROM step") == [(1,), (2,), (3,)]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
