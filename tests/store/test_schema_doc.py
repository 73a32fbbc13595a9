"""docs/schema.md says what is really in the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from starprof.model.schema import TABLES
from starprof.store.rollup import roll_up
from starprof.store.runfile import BOOKKEEPING, RunFile
from starprof.store.schema_doc import EXAMPLES, ROLLED_UP, render

DOCUMENT = Path(__file__).parents[2] / "docs" / "schema.md"


@pytest.fixture(scope="module")
def empty_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFile]:
    with RunFile.open(tmp_path_factory.mktemp("doc") / "x.starprof") as run:
        yield run


def test_the_committed_document_is_what_the_schema_renders_to() -> None:
    assert DOCUMENT.read_text() == render(), "run python -m starprof.store.schema_doc > docs/schema.md"


@pytest.mark.parametrize("query", [query for _, query in EXAMPLES], ids=[title[:30] for title, _ in EXAMPLES])
def test_the_examples_are_answered(empty_run: RunFile, query: str) -> None:
    assert empty_run.query(query) == []
    assert query in DOCUMENT.read_text()


def test_every_column_of_the_bookkeeping_tables_is_named() -> None:
    for table, columns in BOOKKEEPING.items():
        assert f"| `{table}` | {', '.join(f'`{c}`' for c in columns)} |" in ROLLED_UP


def test_every_sampled_table_can_be_rolled_up_as_documented(empty_run: RunFile) -> None:
    for table in TABLES:
        if table.sampled:
            roll_up(empty_run, table, raw_s=0, fine_s=0)
            names = [d for (d,) in empty_run.query(f"SELECT column_name FROM (DESCRIBE {table.name}_rollup)")]
            assert {"width_s", "mono_ns", "samples", "covered_us"} < set(names)
