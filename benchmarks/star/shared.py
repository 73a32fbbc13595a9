"""What resources add: jobs that share nodes with others (`sharing.py`), with and without the plans (`managing.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from blocks import Estimate, Record, blocks_of, final, mean_over, pooled, ratio_to
from cells import GRADIENTS, LONGEST, NOISE_INTERVAL
from design import Cell
from managing import Desk
from methods import CHOOSERS, Controlling
from scenarios import BATCH, TYPICAL_S
from sharing import MAIN, SHARED, shared_place
from tasks import TASKS, phi_of, task_of, training_of

from starprof.decision.choice.situation import NoiseScale
from starprof.simulation import Job, Mode, Until, simulate_jobs

EXCHANGE = "ps"
WHOLE = "star whole"
METHODS: dict[str, tuple[bool, bool] | None] = {
    "ssgd": None,
    "asgd": None,
    "star": None,
    "ssgd prevention": (True, False),
    WHOLE: (True, True),
    "star no reallocation": (True, False),
    "star no prevention": (False, True),
}
"""Whether shards and workers are moved, and whether jobs beside ours are delayed; None: nobody looks after nodes."""


def design(seeds: int) -> Iterator[Cell]:
    """All cells; a place keeps its task."""
    for seed in range(seeds):
        for at, scenario in enumerate(SHARED):
            for method in METHODS:
                yield Cell(list(TASKS)[at % len(TASKS)], scenario, EXCHANGE, method, seed)


def run(cell: Cell) -> Record:
    """One training beside other jobs, and what it has come to."""
    place, task = shared_place(cell.scenario), task_of(cell.task)
    plans = METHODS[cell.method]
    desk = None if plans is None else Desk(place, *plans)
    controller = _controller(cell, desk) if cell.method.startswith("star") else None
    until = Until(
        progress=task.progress,
        at_s=LONGEST * task.progress * TYPICAL_S,
        gradients=GRADIENTS * len(place.workers) * task.progress,
    )
    mode = Mode("asgd" if cell.method == "asgd" else "ssgd")
    main = Job(mode, place.workers, training_of(cell.task), until, place.exchange, controller=controller, name=MAIN)
    history, *beside = simulate_jobs([main, *place.neighbours], place.cluster, manager=desk, seed=cell.seed)
    return {
        "cell": cell.name,
        **{name: getattr(cell, name) for name in Cell.__slots__},
        "end_s": round(history.end_s, 4),
        "stopped": history.stopped,
        "straggling": round(history.straggler_share, 5),
        "stale_mean": round(float(history.staleness.mean()), 3) if len(history.staleness) else 0.0,
        "choice_ms": 0.0,
        "beside_per_s": mean(one.progress_per_s for one in beside),
        "moves": desk.moves if desk else 0,
        "delays": desk.delays if desk else 0,
        "refusals": len(desk.refusals) if desk else 0,
        "curve": [[round(e.at_s, 3), round(e.accuracy, 4)] for e in history.evaluations],
        "switches": [[round(at_s, 2), mode] for at_s, mode in history.switches],
    }


def _controller(cell: Cell, desk: Desk | None) -> Controlling:
    phi = phi_of(cell.task, BATCH)
    noise = NoiseScale(phi / NOISE_INTERVAL, phi * NOISE_INTERVAL)
    return Controlling(CHOOSERS["star"], EXCHANGE, noise, BATCH, task_of(cell.task).momentum, desk=desk)


def tell(records: Sequence[Record]) -> Iterator[str]:
    """Two tables: means over the places, and every place."""
    blocks = pooled(blocks_of(records))
    for block in blocks:  # what `pooled` does not know of
        for method, record in block.by_method.items():
            those = [r for r in records if (r["scenario"], r["method"]) == (block.scenario, method)]
            record.update({name: mean(r[name] for r in those) for name in ("beside_per_s", "moves", "delays")})
    seen = [block for block in blocks if block.scenario != "nothing"]
    yield "| | stragglers, % | 95 % | time of the whole training, of SSGD's | 95 % | speed of the jobs beside |"
    yield "|" + "---|" * 6
    for method in METHODS:
        straggling = mean_over(seen, lambda b, m=method: 100.0 * b.by_method[m]["straggling"])
        whole = mean_over(seen, lambda b, m=method: _of_ssgd(b.by_method, m, "end_s"), log=True)
        speed = mean_over(seen, lambda b, m=method: _of_ssgd(b.by_method, m, "beside_per_s"), log=True)
        if straggling and whole and speed:
            yield (
                f"| {method} | {straggling.value:.1f} | {_ends(straggling, 1)} | {whole.value:.2f} "
                f"| {_ends(whole, 2)} | {speed.value:.2f} |"
            )
    yield ""
    yield "| scarce | task | method | stragglers | whole | to accuracy | points | beside | moves | delays | modes |"
    yield "|" + "---|" * 11
    for block in blocks:
        for method in (m for m in METHODS if m in block.by_method):
            record = block.by_method[method]
            points = 100.0 * (final(record) - final(block.by_method["ssgd"]))
            reached = ratio_to(method, "ssgd")(block)
            modes = ", ".join(dict.fromkeys(mode.partition(" ")[0] for _, mode in record["switches"])) or "-"
            yield (
                f"| {block.scenario} | {block.task} | {method} | {100.0 * record['straggling']:.1f} % "
                f"| {_of_ssgd(block.by_method, method, 'end_s'):.2f} | {reached:.2f} | {points:+.1f} "
                f"| {_of_ssgd(block.by_method, method, 'beside_per_s'):.2f} | {record['moves']:.0f} "
                f"| {record['delays']:.0f} | {modes} |"
            )


def _of_ssgd(by_method: dict[str, Any], method: str, name: str) -> float:
    return float(by_method[method][name] / by_method["ssgd"][name])


def _ends(found: Estimate, digits: int) -> str:
    return f"{found.low:.{digits}f} to {found.high:.{digits}f}"
