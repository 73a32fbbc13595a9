"""Who waited for whom: modes over time, whose gradients went into the updates, and what the switches brought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from starprof.reports import words
from starprof.reports.averagings import averagings, sentence
from starprof.reports.contributions import (
    STALENESS_EDGES,
    Mode,
    Parts,
    influence,
    modes,
    parts,
    step_times,
)
from starprof.reports.facts import Matrix
from starprof.reports.markup import Section, chart, table, text
from starprof.reports.material import Material
from starprof.reports.sections.heatmap import TALL_FROM
from starprof.reports.synchronised import SIDE_STEPS, Switch, Synchronised, synchronised, told_in_short

BINS_AT_MOST = 300
BINS_AT_LEAST = 24
STEPS_IN_BIN = 2
CELLS_AT_MOST = 240_000
"""Of the strip: with 1,024 ranks a bin is some 4 pixels wide."""

LEAST_SHARE = 0.001
EVEN_ENOUGH = 0.8
"""Of the mean share of the updates: whoever has more than this is not worth a sentence."""

MARKS_AT_MOST = 40
SWITCHES_AT_MOST = 100
RANKS_AT_MOST = 24
MODES_AT_MOST, MODES_WITH_RANKS = 24, 6
OPEN_UP_TO = 16

READING = (
    "Strip: each rank's part in the updates, by the weights of its gradients; filled is an even part or more, empty "
    "none. In native steps everybody has an even part."
)
OBSERVED = (
    f"Before and after are medians of up to {SIDE_STEPS} steps of every rank on each side of the switch. That is what "
    "was observed, no proof that the switch did it: the ranks themselves may have become faster or slower. And a step "
    "of one mode is not worth a step of another: compare the progress, and how well the model learns."
)
WHAT_MODES_TELL = (
    "Progress counts a native step as 1 and a round as the sum of its weights. Stale: share of the gradients that were "
    "computed on parameters so many updates older than those they were applied to."
)
WHAT_NOISE_TELLS = (
    "With updates of m batches a training needs about 1 + scale/m times as many of them as without noise: the smaller "
    "the scale against the number of ranks, the less is lost by leaving some of them out."
)
NOISE_SHOWN_FROM = 20
"""Updates from which its movement is told."""

WHAT_PARTS_TELL = (
    "In updates: share of the updates with a gradient of the rank. Data used: share of its batches whose gradient went "
    "into an update; the rest was skipped to catch up, or came too late. Data that is not used biases the model where "
    "ranks have different data."
)


def render(material: Material) -> Section | None:
    """Picture, modes, switches and ranks; None when control never did anything."""
    sync = synchronised(material.run)
    if sync is None or not sync.stretches:
        return None
    told = modes(sync)
    edges = _edges(sync)
    spec = _spec(material, sync, edges)
    body = (
        f'<p class="big">{text(told_in_short(sync))}</p>{_picture()}'
        f"{_modes(told)}{_averagings(sync)}{_noise(material)}{_switches(sync.switches)}"
        f"{_ranks(material, told, parts(sync))}"
    )
    return Section("synchronisation", "Synchronisation", body, spec)


def _edges(sync: Synchronised) -> Matrix:
    """Bins of equal time: so long that every rank ends some steps in them, also under the slowest mode."""
    durations = sync.end_s - sync.begin_s
    known = durations[np.isfinite(durations)]
    usual_s = float(np.percentile(known, 90)) if known.size else 1.0
    most = min(BINS_AT_MOST, max(CELLS_AT_MOST // max(len(sync.run.ranks), 1), BINS_AT_LEAST))
    bins = int(np.clip(sync.length_s / max(STEPS_IN_BIN * usual_s, 1e-9), BINS_AT_LEAST, most))
    return np.linspace(0.0, max(sync.length_s, 1e-9), bins + 1)


def _spec(material: Material, sync: Synchronised, edges: Matrix) -> dict[str, Any]:
    part = influence(sync, edges)
    codes = np.where(np.isfinite(part), 1 + np.rint(254 * np.nan_to_num(part)), 0).astype(np.uint8)
    median, slowest = step_times(sync, edges)
    held = [(number, s) for number, s in enumerate(sync.switches, 1) if s.version is not None]
    return {
        "kind": "synchronisation",
        "ranks": [rank.rank for rank in material.run.ranks],
        "culprits": material.culprits,
        "tallFrom": TALL_FROM,
        "end": round(float(edges[-1]), 3),
        "median": material.pack.array(median / 1e3),
        "slowest": material.pack.array(slowest / 1e3),
        "part": {**material.pack.array(codes), "shape": list(codes.shape)},
        "switches": [
            [round(s.at_s, 3), str(number), f"{s.to_mode}, {s.asked_by}"] for number, s in held[:MARKS_AT_MOST]
        ],
    }


def _picture() -> str:
    keys = (
        '<span class="key peers-line">median step time of the ranks</span>'
        '<span class="key line-0">own time of the slowest rank</span>'
        '<span class="scale js" id="synchronisation-scale"></span>'
    )
    described = "Step time over time with the switches of the mode, and each rank's part in the updates"
    return f'<div class="controls">{keys}</div>{chart("synchronisation", described)}<p class="note">{text(READING)}</p>'


def _modes(told: tuple[Mode, ...]) -> str:
    """One row a mode; columns in which nothing happened are left out."""
    left = len(told) - MODES_AT_MOST
    told = _longest(told, MODES_AT_MOST)
    rounds = [mode for mode in told if mode.recorded]
    columns: list[tuple[str, Sequence[object]]] = [
        ("mode", [mode.name for mode in told]),
        ("time", [words.seconds(mode.seconds) for mode in told]),
        ("updates", [_updates(mode) for mode in told]),
        ("progress/s", [_number(mode.progress) for mode in told]),
        ("gradients", ["all" if mode.native else _number(mode.gradients) for mode in told]),
    ]
    for at in range(len(STALENESS_EDGES)):
        if any(mode.stale[at] > 0 for mode in rounds):
            shares = [_share(float(mode.stale[at])) if mode.recorded else "" for mode in told]
            columns.append((f"stale {_class(at)}", shares))
    if any(mode.staleness_max > 0 for mode in rounds):
        columns.append(("most", [mode.staleness_max if mode.recorded else "" for mode in told]))
    if any(mode.again for mode in rounds):
        columns.append(("reduced again", [_share(mode.again) if mode.recorded else "" for mode in told]))
    if any(mode.not_finite for mode in rounds):
        columns.append(("not finite", [mode.not_finite if mode.recorded else "" for mode in told]))
    rows = zip(*(cells for _, cells in columns), strict=True)
    inner = table([name for name, _ in columns], list(rows), numeric=range(1, len(columns)))
    more = f" {left} modes of a shorter time are not shown." if left > 0 else ""
    return f'<h3>Modes</h3>{inner}<p class="note">{text(WHAT_MODES_TELL + more)}</p>'


def _averagings(sync: Synchronised) -> str:
    """Where ranks have stepped on their own, what was averaged instead of gradients."""
    return "".join(f'<p class="note">{text(sentence(told))}</p>' for told in averagings(sync)[:MODES_AT_MOST])


def _noise(material: Material) -> str:
    """The gradient noise scale as it was at the end, and how it has moved."""
    seen = material.run.sync_noise
    if seen is None:
        return ""
    # A column in which nothing is known need not be of numbers.
    seen = seen.sort_values("version", kind="stable").astype({"scale": float, "low": float, "high": float})
    scale, low, high = (float(seen[name].iloc[-1]) for name in ("scale", "low", "high"))
    if scale != scale:
        told = f"The gradient noise scale is not known: no signal was seen in {len(seen)} updates."
    else:
        to = "or more" if high != high else f"to {_number(high)}"
        told = (
            f"Gradient noise scale at the end: {_number(scale)} batches of one rank (95 %: {_number(low)} {to}), of "
            f"{len(seen)} updates that were looked at."
        )
    known = seen["scale"].to_numpy(np.float64)
    known = known[np.isfinite(known)]
    if len(known) >= NOISE_SHOWN_FROM:
        quarter = len(known) // 4
        told += f" A quarter into them it was {_number(float(known[quarter]))}."
    return f'<p class="note">{text(f"{told} {WHAT_NOISE_TELLS}")}</p>'


def _longest(told: tuple[Mode, ...], at_most: int) -> tuple[Mode, ...]:
    """Those that ran longest, in their order."""
    kept = sorted(range(len(told)), key=lambda at: -told[at].seconds)[:at_most]
    return tuple(told[at] for at in sorted(kept))


def _updates(mode: Mode) -> str:
    """How many, and of how many the record is looked at, if not of all."""
    part = f" ({mode.recorded:,} recorded)" if not mode.native and mode.recorded < mode.updates else ""
    return f"{mode.updates:,}{part}"


def _class(at: int) -> str:
    first = STALENESS_EDGES[at]
    if at + 1 == len(STALENESS_EDGES):
        return f"{first}+"
    last = STALENESS_EDGES[at + 1] - 1
    return str(first) if last == first else f"{first}-{last}"


def _number(value: float) -> str:
    return words.UNKNOWN if value != value else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _share(value: float) -> str:
    return "< 0.1 %" if 0 < value < LEAST_SHARE else words.percent(value)


def _switches(switches: tuple[Switch, ...]) -> str:
    if not switches:
        return ""
    headers = ("", "at", "from update", "from", "to", "asked by", "took", "step before", "step after", "why")
    rows = [
        (
            number,
            words.seconds(s.at_s),
            "did not come about" if s.version is None else f"{s.version:,}",
            s.from_mode,
            s.to_mode,
            s.asked_by,
            words.milliseconds(s.took_us),
            words.milliseconds(s.before_us),
            words.milliseconds(s.after_us),
            s.reason,
        )
        for number, s in enumerate(switches[:SWITCHES_AT_MOST], 1)
    ]
    left = len(switches) - len(rows)
    more = f'<p class="note">{left} more switches are in the run file.</p>' if left else ""
    return (
        f'<h3>Switches</h3>{table(headers, rows, numeric=(0, 1, 2, 6, 7, 8))}{more}<p class="note">{text(OBSERVED)}</p>'
    )


def _ranks(material: Material, told: tuple[Mode, ...], part: Parts) -> str:
    """Contributions and data coverage under every mode; those with the least part where not all ranks fit."""
    rounds = tuple(mode for mode in told if mode.recorded)
    shown = _longest(rounds, MODES_WITH_RANKS)
    tables = "".join(_ranks_under(material, mode, part, told.index(mode)) for mode in shown)
    if not tables or not material.run.ranks:
        return ""
    left = len(material.run.ranks) - RANKS_AT_MOST
    more = f" {left} ranks with a larger part are not shown." if left > 0 else ""
    if len(rounds) > len(shown):
        more += f" Nor are {len(rounds) - len(shown)} modes of a shorter time."
    rows = len(shown) * min(len(material.run.ranks), RANKS_AT_MOST)
    opened = " open" if rows <= OPEN_UP_TO else ""
    return (
        f"{_least(material, told, part)}<details{opened}><summary>Each rank's part</summary>{tables}"
        f'<p class="note">{text(WHAT_PARTS_TELL + more)}</p></details>'
    )


def _least(material: Material, told: tuple[Mode, ...], part: Parts) -> str:
    """The rank that went into the least share of the updates of a mode, where that is not everybody's share."""
    rounds = [at for at, mode in enumerate(told) if mode.recorded]
    with np.errstate(invalid="ignore", divide="ignore"):
        against = part.contributed[:, rounds] / part.contributed[:, rounds].mean(axis=0)
    if not np.isfinite(against).any() or float(np.nanmin(against)) > EVEN_ENOUGH:
        return ""
    row, place = np.unravel_index(int(np.nanargmin(against)), against.shape)
    at = rounds[int(place)]
    used = float(part.used[row, at])
    data = f"; {_share(used)} of its batches were used" if np.isfinite(used) else ""
    share = _share(float(part.contributed[row, at]))
    rank = material.run.ranks[int(row)].rank
    told_so = f"The least part: rank {rank} under {told[at].name}, in {share} of the updates{data}."
    return f'<p class="note">{text(told_so)}</p>'


def _ranks_under(material: Material, mode: Mode, part: Parts, at: int) -> str:
    ranks = material.run.ranks
    order = np.argsort(part.contributed[:, at], kind="stable") if len(ranks) > RANKS_AT_MOST else np.arange(len(ranks))
    order = order[:RANKS_AT_MOST]
    headers, columns = ["rank"], [[ranks[row].rank for row in order]]
    for title, values, say in (
        ("in updates", part.contributed, _share),
        ("data used", part.used, _share),
        ("skipped", part.skipped, _share),
        ("waits a step", part.waited_us, words.milliseconds),
        ("updates a step", part.lag, _number),
    ):
        known = values[order, at]
        if np.isfinite(known).any():
            headers.append(title)
            columns.append([say(float(value)) if np.isfinite(value) else words.UNKNOWN for value in known])
    marked = [place for place, row in enumerate(order) if row in material.culprits]
    rows = list(zip(*columns, strict=True))
    return table(headers, rows, numeric=range(len(headers)), marked=marked, caption=mode.name)
