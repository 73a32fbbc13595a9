"""docs/verdict.md is the contract of the JSON form: it names every field, verdict, kind and cause, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

from starprof.analysis.placement import NodeEffect, Placement, Together
from starprof.model import causes
from starprof.model.jobs import JobVerdict, to_json
from starprof.model.verdict import VERDICT_SCHEMA, FindingKind, Verdict, VerdictKind

DOC = (Path(__file__).parents[2] / "docs" / "verdict.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> set[str]:
    """The code in the first column of the tables below a heading."""
    part = DOC.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)` \|", part, flags=re.MULTILINE))


def fields(value: Any, path: str = "") -> set[str]:
    """Paths of all fields of a JSON object: `cost.seconds`, `findings[].kind`."""
    if isinstance(value, dict) and not path.endswith("role"):
        found = {f"{path}.{name}" if path else name for name in value}
        return found.union(*(fields(v, f"{path}.{name}" if path else name) for name, v in value.items()))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return fields(value[0], f"{path}[]")
    return set()


def test_every_field_is_documented_and_no_other(verdict: Verdict):
    documented = first_cells("The object") | first_cells("A finding")
    assert documented == fields(verdict.to_json())


def test_every_field_of_several_jobs_is_documented_and_no_other(verdict: Verdict):
    told = to_json([JobVerdict("a", ("a.log",), verdict)], {"b": "empty"})
    told["jobs"][0]["verdict"] = None
    assert first_cells("Several jobs") == fields(told)


def test_every_field_of_a_placement_is_documented_and_no_other():
    effect = NodeEffect("n1", 5, 1.2, 1.1, 1.3, 0.001, "slow")
    told = Placement("slow-nodes", 9, 1, (effect,), (Together(("a", "b"), True, (("a",),)),), "")
    assert first_cells("Placement") == fields(told.to_json())


def test_every_documented_field_has_a_type_and_a_meaning():
    rows = re.findall(r"^\| `[^`]+` \|(.*)\|$", DOC.split("## Verdicts")[0], flags=re.MULTILINE)
    for row in rows:
        kind, _unit, meaning = (cell.strip() for cell in row.split("|"))
        assert kind
        assert meaning


def test_every_verdict_kind_and_cause_is_documented_and_no_other():
    assert first_cells("Verdicts") == set(get_args(VerdictKind))
    assert first_cells("Kinds") == set(get_args(FindingKind))
    assert first_cells("Causes") == causes.ALL


def test_the_documented_version_is_the_one_that_is_printed():
    assert f"version of this form: {VERDICT_SCHEMA}" in DOC
