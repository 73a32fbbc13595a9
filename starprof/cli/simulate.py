"""`starprof simulate`: what a job would do in other synchronisation modes, in simulated time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from starprof.cli.options import options_of
from starprof.errors import UsageError

if TYPE_CHECKING:
    from starprof.simulation import History, Mode, Until
    from starprof.simulation.scenarios import Scenario, Traits
    from starprof.simulation.training.base import Training

SCHEMA = 1
"""Version of what `--json` prints."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("simulate")(simulate)


def simulate(
    source: str | None = typer.Argument(
        None, help="Run file, or what `starprof analyze` reads: its ranks' own times are taken. Without it: synthetic."
    ),
    mode: list[str] = typer.Option(
        [], "--mode", metavar="MODE", help="Mode with its options, such as 'm-sync m=6'; may be given several times."
    ),
    kind: str = typer.Option("persistent", help="Synthetic stragglers; `--kind list` names the kinds."),
    workers: int = typer.Option(8, min=1, help="Synthetic workers."),
    slow: int = typer.Option(1, min=0, help="How many of them are slow."),
    factor: float = typer.Option(2.0, min=1.0, help="How many times slower they are."),
    iteration_ms: float = typer.Option(500.0, min=0.001, help="Own time of the others."),
    tail_index: float = typer.Option(1.5, min=1.001, help="Of heavy-tailed times."),
    exchange: str = typer.Option("free", help="How gradients travel: free, all-reduce or ps."),
    model_mb: float = typer.Option(25.0, min=0.0, help="Gradients of an iteration."),
    nic_gbit: float = typer.Option(10.0, min=0.001, help="Speed of each node's interface."),
    batch: int = typer.Option(32, min=1, help="Samples of a worker's iteration."),
    train: str | None = typer.Option(
        None, help="Train for real on handwritten digits: logistic, mlp, cnn or transformer."
    ),
    rate: float = typer.Option(0.1, min=1e-9, help="Learning rate of real training."),
    momentum: float = typer.Option(0.0, min=0.0, max=0.999, help="Of real training."),
    target: float = typer.Option(0.9, min=0.0, max=1.0, help="Accuracy of real training to reach."),
    phi: float = typer.Option(0.0, min=0.0, help="Gradient noise scale in samples, where training is not real."),
    staleness_cost: float = typer.Option(0.1, min=0.0, help="What an iteration of staleness costs, likewise."),
    iterations: float = typer.Option(500.0, min=1.0, help="Iterations of the training to simulate."),
    seed: int = typer.Option(0, help="Equal seeds give equal results."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
) -> None:
    """Play a job in several synchronisation modes side by side."""
    from starprof.simulation import simulate as play
    from starprof.simulation.scenarios import KINDS, Traits

    if kind == "list":
        print("\n".join(KINDS))
        return
    traits = Traits(
        iteration_s=iteration_ms / 1e3,
        slow=min(slow, workers),
        factor=factor,
        tail_index=tail_index,
        batch=batch,
        model_bytes=model_mb * 1e6,
        nic_bytes_per_s=nic_gbit * 1e9 / 8,
    )
    job = _synthetic(kind, workers, exchange, traits, seed) if source is None else _recorded(source, exchange, traits)
    modes = [_mode(text) for text in mode] or _default_modes(len(job.workers))
    training, until, goal = _training(train, rate, momentum, phi, staleness_cost, iterations, target)
    until = _bounded(until, job)
    rows = [
        _row(
            play(wanted, job.workers, training, until=until, exchange=job.exchange, cluster=job.cluster, seed=seed),
            goal,
        )
        for wanted in modes
    ]
    if as_json:
        settings = {"source": source, "workers": len(job.workers), "exchange": exchange, "seed": seed}
        print(json.dumps({"schema": SCHEMA, **settings, "target": goal, "modes": rows}, indent=2))
    else:
        _print_table(rows, "s to learn" if train is None else f"s to {target:.0%}")


def _training(
    train: str | None,
    rate: float,
    momentum: float,
    phi: float,
    staleness_cost: float,
    iterations: float,
    target: float,
) -> tuple[Training, Until, float]:
    """What is trained, until when, and what is to be reached."""
    from starprof.simulation import NoiseScale, Until

    if train is None:
        return NoiseScale(phi, staleness_cost), Until(progress=10 * iterations, learned=iterations), iterations
    return _real(train, rate, momentum), Until(progress=iterations), target


def _bounded(until: Until, job: Scenario) -> Until:
    """A mode that throws everything away ends too."""
    from dataclasses import replace

    assert until.progress is not None
    return replace(until, gradients=round(20 * until.progress + 1_000) * len(job.workers))


def _mode(text: str) -> Mode:
    from starprof.simulation import Mode

    name, *options = text.split()
    return Mode(name, options_of(options))


def _default_modes(workers: int) -> list[Mode]:
    from starprof.simulation import Mode

    most = max(1, workers - 1)
    return [
        Mode("ssgd"),
        Mode("asgd"),
        Mode("static-x", {"x": most}),
        Mode("dynamic-x"),
        Mode("ring-x", {"x": most}),
        Mode("m-sync", {"m": most}),
        Mode("m-sync-fold", {"m": most}),
        Mode("local-sgd", {"period": 8}),
    ]


def _synthetic(kind: str, workers: int, exchange: str, traits: Traits, seed: int) -> Scenario:
    from starprof.simulation.scenarios import scenario

    return scenario(kind, workers, exchange, traits, seed)


def _recorded(source: str, exchange: str, traits: Traits) -> Scenario:
    from starprof.cli.runs import run_as_shown
    from starprof.importers.load import load
    from starprof.simulation import Cluster, Node
    from starprof.simulation.recorded import workers_of
    from starprof.simulation.scenarios import EXCHANGES, Scenario, exchange_of

    if exchange not in EXCHANGES:
        raise UsageError(f"exchanges are {', '.join(EXCHANGES)}; not {exchange!r}")
    run = run_as_shown(Path(source)) if source.endswith(".starprof") else load([source])
    workers = workers_of(run, batch=traits.batch)
    names = [*dict.fromkeys(worker.node for worker in workers), "server"]
    nodes = tuple(Node(name, nic_bytes_per_s=traits.nic_bytes_per_s) for name in names)
    return Scenario(workers, exchange_of(exchange, traits), Cluster(nodes))


def _real(name: str, rate: float, momentum: float) -> Training:
    from starprof.demo.digits import digits, model
    from starprof.simulation import RealTraining

    return RealTraining(model(name), digits(), rate, momentum)


def _row(history: History, goal: float) -> dict[str, Any]:
    """What is told of one mode; None: not reached, or not known."""
    real = history.accuracy is not None
    reached = history.time_to_accuracy(goal) if real else history.time_to_learned(goal)
    last = history.steps[-1] if history.steps else None
    stale = history.staleness
    return {
        "mode": history.mode,
        "seconds_to_target": reached,
        "end_s": history.end_s,
        "stopped": history.stopped,
        "updates_per_s": history.updates_per_s,
        "iterations_per_s": history.progress_per_s,
        "iterations": last.progress if last else 0.0,
        "accuracy": history.accuracy,
        "mean_staleness": float(stale.mean()) if len(stale) else 0.0,
        "max_staleness": int(stale.max()) if len(stale) else 0,
        "dropped_share": history.dropped / max(1, len(history.iterations.worker)),
        "waiting_share": history.waiting_share,
        "straggler_share": history.straggler_share,
        "least_share_of_a_worker": min(history.shares.values(), default=0.0),
        "busy": {name: share for name, share in history.busy.items() if share > 0},
    }


def _print_table(rows: Sequence[dict[str, Any]], goal: str) -> None:
    """One line a mode, the first the one that others are compared with."""
    heads = ("it/s", "stale", "dropped", "waiting", "accuracy")
    print(f"{'mode':<24} {goal:>10} {'of first':>8} " + " ".join(f"{head:>8}" for head in heads))
    first = rows[0]["seconds_to_target"]
    for row in rows:
        reached, accuracy = row["seconds_to_target"], row["accuracy"]
        cells = (
            "-" if reached is None else f"{reached:.1f}",
            "-" if reached is None or not first else f"{reached / first:.2f}",
            f"{row['iterations_per_s']:.2f}",
            f"{row['mean_staleness']:.2f}",
            f"{row['dropped_share']:.1%}",
            f"{row['waiting_share']:.1%}",
            "-" if accuracy is None else f"{accuracy:.3f}",
        )
        print(f"{row['mode'][:24]:<24} {cells[0]:>10} " + " ".join(f"{cell:>8}" for cell in cells[1:]))
