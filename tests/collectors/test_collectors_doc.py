from pathlib import Path

from starprof.collectors.registry import COLLECTORS
from starprof.model.schema import BY_NAME

DOC = (Path(__file__).parents[2] / "docs" / "collectors.md").read_text()
ROWS = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in DOC.splitlines() if line.startswith("| `")]


def test_every_collector_is_documented_and_nothing_else():
    assert [row[0] for row in ROWS] == [entry.name for entry in COLLECTORS]


def test_the_tables_that_it_names_exist():
    named = {table.strip(" `") for row in ROWS for table in row[1].split(",")}
    assert named <= BY_NAME.keys()


def test_each_class_carries_the_name_it_is_registered_under():
    assert {entry.name: entry.create().name for entry in COLLECTORS} == {e.name: e.name for e in COLLECTORS}
