"""What a step consists of: stacked bars per rank that always add up to the step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from starprof.model.rundata import RunData
from starprof.model.schema import STEP_SPANS
from starprof.reports import facts, words
from starprof.reports.facts import Matrix
from starprof.reports.markup import Section, chart, table, text
from starprof.reports.material import Material

BARS_AT_MOST = 16
ORDER = tuple(name for name in STEP_SPANS if name not in ("blocked_us", "unaccounted_us"))
SPANS = (*ORDER, "unaccounted_us", "blocked_us")
"""Own work first and waiting last: bars start alike, and where the pale part begins is where the rank arrived."""

LABELS = {
    "data_wait_us": "waiting for data",
    "h2d_us": "host to device",
    "forward_us": "forward",
    "backward_us": "backward",
    "optimizer_us": "optimizer",
    "gc_us": "garbage collector",
    "checkpoint_us": "checkpoint",
    "eval_us": "evaluation",
    "compile_us": "compile",
    "user_us": "user spans",
    "unaccounted_us": "unaccounted",
    "blocked_us": "in collectives",
}
WITH_ROUNDS = {"blocked_us": "waiting for others"}
"""Labels of runs that were in rounds, where ranks wait for their release, not in a collective."""

SHOWN_FROM = 0.002  # of a step: smaller spans are drawn but not worth a place in the legend or the table


def render(material: Material) -> Section | None:
    """Bars of the culprits, the extremes and the median rank; the page can add any other. None without steps."""
    run = material.run
    if not np.isfinite(facts.column(run, "dur_us")).any():
        return None
    rows, left_out = facts.telling_rows(run, material.verdict, BARS_AT_MOST)
    everything = np.ones(len(run.steps.steps), dtype=bool)
    pictures = [(f"In {material.window_words}", material.window)] if material.windowed else []
    pictures.append(("Whole run", everything))
    windows: list[dict[str, Any]] = []
    means = []
    for name, inside in pictures:
        means.append(span_means(material, inside))
        windows.append({"name": name, "spans": material.pack.array(means[-1] / 1e3)})
    spec = {
        "kind": "anatomy",
        "spans": [{"key": name.removesuffix("_us"), "label": label} for name, label in labels_of(material.run).items()],
        "ranks": [rank.rank for rank in run.ranks],
        "shown": rows,
        "culprits": material.culprits,
        "windows": windows,
        "legendFrom": SHOWN_FROM,
    }
    return Section("anatomy", "What a step consists of", _body(material, means[0], rows, left_out, windows), spec)


def labels_of(run: RunData) -> dict[str, str]:
    """What the spans are called, in the order of the bars."""
    labels = LABELS if run.sync_steps is None else {**LABELS, **WITH_ROUNDS}
    return {name: labels[name] for name in SPANS}


def span_means(material: Material, inside: NDArray[np.bool_]) -> Matrix:
    """Mean microseconds of every span per rank, shape (R, len(SPANS)); each row adds up to the mean step.

    Means, because medians of parts do not add up. What no span covers, also where a span was not measured, is
    counted as unaccounted.
    """
    run = material.run
    duration = facts.column(run, "dur_us")[:, inside]
    recorded = np.isfinite(duration)
    count = np.maximum(recorded.sum(axis=1), 1)
    parts = np.empty((len(run.ranks), len(SPANS)))
    for at, name in enumerate(SPANS):
        values = facts.column(run, name)[:, inside]
        parts[:, at] = np.where(recorded, np.nan_to_num(values), 0.0).sum(axis=1) / count
    total = np.where(recorded, duration, 0.0).sum(axis=1) / count
    rest = SPANS.index("unaccounted_us")
    parts[:, rest] = np.maximum(total - np.delete(parts, rest, axis=1).sum(axis=1), 0.0)
    return parts


def _body(material: Material, means: Matrix, rows: list[int], left_out: int, windows: list[dict[str, Any]]) -> str:
    pale = (
        "time in collectives: waiting for others and the transfer. In synchronous training the culprit has the least "
        "of it."
    )
    if material.run.sync_steps is not None:
        pale = (
            "waiting for others: in native steps in collectives, where the culprit has the least of it, and in rounds "
            "for the release by a round, where nobody waits for the culprit."
        )
    notes = f"Mean step of each rank, split by what it did; every bar adds up to the step. The pale part is {pale}"
    if left_out:
        notes += f" Shown are the culprits, the extremes and the median rank; {left_out} more can be added."
    switch = "".join(
        f'<label><input type="radio" name="window" value="{at}"{" checked" if not at else ""}>'
        f"<span>{text(window['name'])}</span></label>"
        for at, window in enumerate(windows)
    )
    choose = f'<fieldset class="switch js"><legend>Steps</legend>{switch}</fieldset>' if len(windows) > 1 else ""
    adder = (
        '<label class="adder js">Add rank <input type="number" id="anatomy-add" min="0" inputmode="numeric"></label>'
        if left_out
        else ""
    )
    return (
        f'<div class="controls">{choose}{adder}</div>'
        '<div class="swatches js" id="anatomy-legend"></div>'
        f"{chart('anatomy', 'Stacked bars of the spans of a step per rank')}"
        f'<p class="note">{text(notes)}</p>{_numbers(material, means, rows)}'
    )


def _numbers(material: Material, means: Matrix, rows: list[int]) -> str:
    """The same as a table, for readers without the chart."""
    shares = means / np.maximum(means.sum(axis=1, keepdims=True), 1e-9)
    told = [at for at in range(len(SPANS)) if shares[rows, at].max(initial=0.0) >= SHOWN_FROM]
    labels = labels_of(material.run)
    headers = ["rank", *(labels[SPANS[at]] for at in told), "step"]
    body = [
        [material.run.ranks[row].rank, *(words.milliseconds(means[row, at]) for at in told), words.milliseconds(total)]
        for row, total in zip(rows, means[rows].sum(axis=1), strict=True)
    ]
    marked = [at for at, row in enumerate(rows) if row in material.culprits]
    inner = table(headers, body, numeric=range(len(headers)), marked=marked)
    return f"<details><summary>The numbers</summary>{inner}</details>"
