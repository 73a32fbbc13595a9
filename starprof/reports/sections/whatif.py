"""What-if analysis of an op trace: what the steps would take with parts of the job as they should be."""

from __future__ import annotations

from collections.abc import Iterable

from starprof.analysis.settings import DEFAULT
from starprof.analysis.whatif import Replay, Shares, Slowdown, on_one_clock, op_trace, replay_of, shares
from starprof.reports import words
from starprof.reports.markup import Section, facts, table, text
from starprof.reports.material import Material

ROWS_AT_MOST = 24
SHOWN_FROM = 0.0005
"""Operation types that slow the job down by less are summed up in a line."""

READING = (
    "Each step is replayed from who waits for whom. S is the slowdown that would be left if only this part were as it "
    "was and everything else took what its kind usually takes: 1 is none, below 1 it is faster than the others. The "
    "interval is that of the mean over the steps (95 %)."
)


def render(material: Material) -> Section | None:
    """S of the job, of ranks, stages, links, operation types and phases, and what fixing the worst ranks brings."""
    trace = op_trace(material.run)
    replay = replay_of(trace) if trace is not None else None
    if replay is None or len(replay.workers.rank) < 2:
        return None
    replay = on_one_clock(replay, DEFAULT.replay).told
    found = shares(replay)
    body = (
        f'<p class="note">{text(READING)}</p>{_job(found)}{_cost(material)}'
        f"<h3>Ranks</h3>{_ranks(material, replay, found)}"
        f"<h3>Pipeline stages</h3>{_table('stage', found.by_stage.items())}"
        f"<h3>Types of operations</h3>{_types(found)}"
        f"<h3>Phases of the step</h3>{_table('phase', _sorted(found.by_phase.items()))}"
    )
    if found.by_link:
        named = ((f"{stage} and the next", slowdown) for stage, slowdown in found.by_link.items())
        body += f"<h3>Links between stages</h3>{_table('stage', named)}"
    return Section("whatif", "What if", body)


def _job(found: Shares) -> str:
    recovered = (
        f"{words.percent(share)} with the {f'worst {count} ranks' if count > 1 else 'worst rank'}"
        for count, share in found.recovered.items()
        if share == share
    )
    return facts(
        (
            ("S of the job", _interval(found.slowdown)),
            ("mean step, measured", words.seconds(float(found.measured_us.mean()) / 1e6)),
            ("replayed, without launch delays", words.seconds(float(found.now_us.mean()) / 1e6)),
            ("ideal", words.seconds(float(found.ideal_us.mean()) / 1e6)),
            ("launch delays add", words.percent(found.launch.mean - 1.0)),
            ("of the slowdown is recovered", ", ".join(recovered)),
            ("with the last stage ideal", _share(found.recovered_by_last_stage)),
        )
    )


def _cost(material: Material) -> str:
    """What the main finding costs, with its interval, in GPU hours and money where a price was given."""
    cost = material.verdict.cost
    if cost.seconds <= 0 or cost.seconds_interval is None:
        return ""
    low, high = (words.seconds(max(0.0, end)) for end in cost.seconds_interval)
    rows = [("the verdict's loss", f"{words.seconds(cost.seconds)} ({low} to {high})")]
    if cost.money is not None:
        rows.append(("at the given price", words.money(cost)))
    else:
        rows.append(("GPU hours", f"{cost.gpu_hours:.3g}"))
    return facts(rows)


def _share(share: float) -> str:
    return words.percent(share) if share == share else ""


def _interval(slowdown: Slowdown) -> str:
    low, high = slowdown.interval
    return f"{slowdown.mean:.3f} ({low:.3f} to {high:.3f})"


def _ranks(material: Material, replay: Replay, found: Shares) -> str:
    """The worst ranks; a rank's S is the lower of its pipeline's and its stage's."""
    workers = replay.workers
    blamed = {rank for finding in material.verdict.findings for rank in finding.ranks}
    shown = [int(row) for row in found.worst[:ROWS_AT_MOST]]
    rows = [
        (
            int(workers.rank[row]),
            int(workers.dp[row]),
            int(workers.pp[row]),
            f"{float(found.worker[row]):.3f}",
            _interval(found.by_pipeline[int(workers.dp[row])]),
        )
        for row in shown
    ]
    marked = [at for at, row in enumerate(shown) if int(workers.rank[row]) in blamed]
    head = ("rank", "pipeline", "stage", "S of the rank", "S of its pipeline")
    left = len(found.worst) - len(shown)
    note = f'<p class="note">{left} more ranks cost less.</p>' if left else ""
    return table(head, rows, numeric=range(len(head)), marked=marked) + note


def _types(found: Shares) -> str:
    telling = [(name, s) for name, s in found.by_type.items() if abs(s.mean - 1.0) >= SHOWN_FROM]
    rest = len(found.by_type) - len(telling)
    note = f'<p class="note">{rest} more types cost less than {words.percent(SHOWN_FROM)}.</p>' if rest else ""
    return (_table("operation", _sorted(telling)) if telling else "") + note


def _sorted(pairs: Iterable[tuple[int | str, Slowdown]]) -> list[tuple[int | str, Slowdown]]:
    return sorted(pairs, key=lambda pair: -pair[1].mean)


def _table(name: str, pairs: Iterable[tuple[int | str, Slowdown]]) -> str:
    rows = [(part, _interval(slowdown)) for part, slowdown in pairs]
    return table((name, "S (95 % interval)"), rows[:ROWS_AT_MOST], numeric=(1,))
