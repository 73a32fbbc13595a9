"""`starprof train-predictor [RUN...]`: a predictor of iteration times from recorded and generated runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from starprof.errors import StarprofError, UsageError

if TYPE_CHECKING:
    from starprof.decision.prediction.history import Series
    from starprof.decision.prediction.modelfile import Model


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("train-predictor")(train_predictor)


def train_predictor(
    runs: list[Path] = typer.Argument(None, metavar="[RUN]...", help="Run files of your own jobs."),
    output: Path = typer.Option(Path("predictor.safetensors"), "-o", "--output", metavar="FILE", help="Model file."),
    generated: int = typer.Option(80, "--generated", min=0, help="Generated runs to learn from as well."),
    epochs: int = typer.Option(8, "--epochs", min=1, help="Passes over all examples."),
    baselines_only: bool = typer.Option(False, "--baselines-only", help="Train no network; needs no torch."),
    seed: int = typer.Option(0, "--seed", help="Of generated runs and of the network's first weights."),
    as_json: bool = typer.Option(False, "--json", help="Print the results as JSON."),
    force: bool = typer.Option(False, "--force", help="Overwrite the file if it exists."),
) -> None:
    """Learn to predict iteration times; one run in four is held out and decides which predictor is used."""
    from starprof.decision.prediction import generated as generator
    from starprof.decision.prediction import modelfile
    from starprof.decision.prediction.learn import learn
    from starprof.reports.write import check_target

    check_target(output, force=force)
    recorded = [series for path in runs or [] if (series := _series(path)) is not None]
    if not recorded and not generated:
        raise UsageError("there is nothing to learn from: name run files, or allow generated ones")
    about = f"{len(recorded)} recorded and {generated} generated runs, seed {seed}"
    sources = [recorded, generator.runs(generated, seed)]
    model = learn(sources, about, epochs=0 if baselines_only else epochs, seed=seed)
    try:
        modelfile.save(output, model)
    except OSError as error:
        raise StarprofError(f"can't write {output}: {error.strerror or error}") from error
    print(f"Wrote {output}", file=sys.stderr)
    if as_json:
        print(json.dumps({"schema": 1, "used": dict(model.used), **model.about}, indent=2))
    else:
        sys.stdout.write(_table(model))


def _series(path: Path) -> Series | None:
    """A recorded run's times; None, with a word on it, where it is too short."""
    from starprof.cli.runs import run_as_shown
    from starprof.decision.prediction.history import ROLLOUT, WINDOW, series_of
    from starprof.reports.plain import printable

    series = series_of(run_as_shown(path))
    if series is None or series.values.shape[1] < WINDOW + ROLLOUT:
        why = f"{WINDOW + ROLLOUT} steps with times are needed after warm-up"
        print(f"starprof: {printable(str(path))} is left out: {why}", file=sys.stderr)
        return None
    return series


def _table(model: Model) -> str:
    """How good each predictor was on the runs that were held out."""
    lines = [f"{'predictor':<12}{'ahead':>6}{'error':>9}{'accuracy':>10}{'precision':>11}{'recall':>8}"]
    for name, of in model.about["held_out"].items():
        for one in of:
            used = "  used" if model.used[one["horizon"]] == name else ""
            lines.append(
                f"{name:<12}{one['horizon']:>6}{one['error']:>8.1%}{one['accuracy']:>10.1%}"
                f"{one['precision']:>11.1%}{one['recall']:>8.1%}{used}"
            )
    lines.append(f"From {model.about['trained_on']}. Tags are of workers over 20 % slower than the quickest.")
    return "\n".join(lines) + "\n"
