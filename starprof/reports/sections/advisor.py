"""What the live advisor did, or would have done: every stage of each of its actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from starprof.reports.markup import Section, table, text
from starprof.reports.material import Material

ROWS_AT_MOST = 100
HEADERS = ("after", "action", "what", "mode", "late", "expected", "dry run", "measured", "steps", "why")
READING = (
    "Gains are time for the same progress before over that after: 2 is twice as fast. Expected: by the chooser, from "
    "the steps before. Dry run: the mode's own policy over the recorded times of the ranks. Measured: the job's own "
    "steps, before and after; where the fault itself changed meanwhile that is in it."
)


def render(material: Material) -> Section | None:
    """All stages, oldest first; None where there was no advisor, or it had nothing to say."""
    actions = material.run.advisor_actions
    if actions is None or not len(actions):
        return None
    ordered = actions.sort_values("mono_ns", kind="stable")
    begun_ns = _begun_ns(material, ordered)
    rows = [_row(row, begun_ns) for row in ordered.tail(ROWS_AT_MOST).to_dict("records")]
    body = (
        f'<p class="big">{text(headline(ordered))}</p><p class="note">{text(READING)}</p>'
        f"{table(HEADERS, rows, numeric=(0, 1, 5, 6, 7, 8))}"
    )
    return Section("advisor", "The live advisor", body)


def headline(actions: pd.DataFrame) -> str:
    """One sentence."""
    count = {stage: int((actions["stage"] == stage).sum()) for stage in ("proposed", "kept", "returned", "guard")}
    would = int(actions["stage"].isin(["would", "suggested"]).sum())
    if not count["proposed"]:
        return f"The advisor would have moved the job: {would} times said." if would else "The advisor moved nothing."
    times = f"{count['proposed']} time{'s' * (count['proposed'] != 1)}"
    kept = actions[actions["stage"] == "kept"]["measured_gain"].dropna()
    gain = f", measured {', '.join(f'{value:.2f}x' for value in kept)}" if len(kept) else ""
    guarded = f"; {count['guard']} times back because the training did not do well" if count["guard"] else ""
    return f"The advisor moved the job {times}; kept {count['kept']}{gain}; back {count['returned']}{guarded}."


def _begun_ns(material: Material, actions: pd.DataFrame) -> int:
    starts = material.run.steps.columns.get("start_mono_ns")
    known = np.array([]) if starts is None else starts[starts > 0]
    return int(known.min()) if known.size else int(actions["mono_ns"].iloc[0])


def _row(row: dict[Any, Any], begun_ns: int) -> list[object]:
    number = int(row["action"])
    return [
        f"{(int(row['mono_ns']) - begun_ns) / 1e9:.1f} s",
        number or "",
        row["stage"],
        _known(row["mode"]),
        _known(row["ranks"]) and f"{row['ranks']} on {_known(row['hosts'])}",
        _gain(row, "predicted_gain", "predicted_low", "predicted_high"),
        _gain(row, "dry_gain"),
        _gain(row, "measured_gain", "measured_low", "measured_high"),
        "" if pd.isna(row["steps"]) else int(row["steps"]),
        _known(row["reason"]),
    ]


def _known(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _gain(row: dict[Any, Any], middle: str, low: str = "", high: str = "") -> str:
    if pd.isna(row[middle]):
        return ""
    interval = f" ({row[low]:.2f} to {row[high]:.2f})" if low and not pd.isna(row[low]) else ""
    return f"{row[middle]:.2f}x{interval}"
