"""`starprof ctl JOB status|mode|freeze|unfreeze|history`: look into a running job's synchronisation, and change it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from starprof.cli.options import options_of
from starprof.errors import StarprofError, UsageError

MAX_UPDATES = 1_000


class Do(Enum):
    """What can be asked for."""

    STATUS = "status"
    MODE = "mode"
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"
    HISTORY = "history"
    DRAIN = "drain"


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("ctl")(ctl)


def ctl(
    job: Path = typer.Argument(help="Run file of a running job (NAME.starprof), or the folder of its control socket."),
    do: Do = typer.Argument(help="What to do."),
    mode: str | None = typer.Argument(None, help="With `mode`: its name, or native."),
    option: list[str] = typer.Option(
        [], "--option", help="With `mode`: an option of it, such as m=3; may be repeated."
    ),
    reason: str = typer.Option("", "--reason", help="With `mode`: why, for the record."),
    last: int = typer.Option(20, "--last", min=1, max=MAX_UPDATES, help="With `history`: how many updates."),
    host: str = typer.Option("", "--host", help="With `drain`: the node."),
    run: str = typer.Option("", "--run", metavar="SYSTEM", help="With `drain`: run it, with slurm or kubernetes."),
    as_json: bool = typer.Option(False, "--json", help="Print the coordinator's answer as one JSON object."),
) -> None:
    """See and change how a running job synchronises."""
    from starprof.control.controlsocket import folder_of

    if mode is None and do is Do.MODE:
        raise UsageError("which mode? `native`, or the name of another one")
    if do is not Do.MODE and (mode is not None or option or reason):
        raise UsageError(f"{do.value} takes no mode, option or reason")
    if do is Do.DRAIN:
        _drain(host, run)
        return
    question: dict[str, Any] = {"do": do.value}
    if do is Do.HISTORY:
        question["last"] = last
    folder = folder_of(job)
    if mode is not None:
        options = options_of(option)
        question |= {"mode": mode, "options": options, "reason": reason}
        _check(folder, mode, options)
    answer = _ask(folder, question)
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        from starprof.reports.plain import printable

        for line in _LINES[do](answer):
            print(printable(line))


def _ask(folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    from starprof.control.controlsocket import ask

    answer = ask(folder, question)
    if answer.pop("ok", False) is not True:
        what = str(answer.get("error", "the coordinator refused"))
        raise UsageError(what) if answer.get("usage") else StarprofError(what)
    return answer


def _drain(host: str, run: str) -> None:
    import os
    import shlex
    import subprocess

    from starprof.advisor.handover import RUNNABLE, drain_texts, running_under

    if not host:
        raise UsageError("which node? give --host")
    if run and run not in RUNNABLE:
        raise UsageError(f"--run is {' or '.join(RUNNABLE)}: anything else is for you to run")
    texts = drain_texts(host, os.environ)
    for system, commands in texts.items():
        here = " (this shell's)" if system == running_under(os.environ) else ""
        print(f"{system}{here}:")
        for command in commands:
            print(f"  {command}")
    for command in RUNNABLE[run](texts[run]) if run else ():
        done = subprocess.run(shlex.split(command), check=False)
        if done.returncode:
            raise StarprofError(f"{command!r} failed with {done.returncode}")


def _check(folder: Path, name: str, options: dict[str, object]) -> None:
    """Refuse what can't be before anything is asked for."""
    from starprof.control import modes

    ranks = [rank["rank"] for rank in _ask(folder, {"do": "status"})["ranks"] if rank["state"] not in {"lost", "left"}]
    modes.mode(name, options, ranks)


def _status_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    yield f"mode     {_named(answer['mode'], answer['options'])}{_on_its_way(answer)}"
    last = answer["last_switch"]
    if last is not None:
        yield f"since    version {last['version']}, {_time(last)}, asked for by {last['asked_by']}{_because(last)}"
    yield from _refusals(answer)
    if answer["frozen_by"]:
        yield f"frozen   by {answer['frozen_by']}"
    if answer.get("operator"):
        yield f"operator {answer['operator']} has chosen this mode: no advisor changes it until unfreeze"
    if answer.get("advisor"):
        yield f"advisor  {_advisor(answer['advisor'])}"
    if answer["refused"]:
        yield f"native   for good: {answer['refused']}"
    yield f"updates  {answer['updates']} in rounds, {answer['rounds_per_s']:.1f} per second; epoch {answer['epoch']}"
    for group in answer.get("held_by", ()):
        yield f"held     the coordinator may not leave a rank's group, whose limits hold all ranks: {group}"
    noise = answer.get("noise")
    if noise is not None:
        yield f"noise    {_noise(noise)}"
    yield from _shard_lines(answer)
    yield ""
    yield f"{'rank':>5}  {'state':<12}  {'behind':>6}  {'last arrival':>12}  part in rounds"
    for rank in answer["ranks"]:
        arrival = "-" if rank["last_arrival_s"] is None else f"{rank['last_arrival_s']:.1f} s ago"
        part = f"{100 * rank['share']:.0f} %" if answer["updates"] else "-"
        more_ms = 1e3 * rank["extra_transfer_s"]
        slow = f"  late: its data takes {more_ms:.0f} ms longer in a reduction" if more_ms else ""
        yield f"{rank['rank']:>5}  {rank['state']:<12}  {rank['lag']:>6}  {arrival:>12}  {part:>6}{slow}"


def _advisor(told: str) -> str:
    """What the advisor says that it is doing."""
    try:
        state = json.loads(told)
        words = f"{state['authority']}: {state['phase']} for {state['since_s']:.0f} s"
        if state["ranks"]:
            words += f", ranks {state['ranks']} late on {', '.join(state['hosts'])}; gain expected {state['predicted']}"
        return words + (f", measured {state['measured']}" if state["measured"] else "")
    except (ValueError, KeyError, TypeError):
        return "says nothing that makes sense"


def _shard_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    """Of a parameter server."""
    for shard in answer.get("shards", ()):
        behind = f", {shard['behind']} entries behind" if shard["behind"] else ""
        yield f"shard    {shard['shard']} at {shard['at']}, {shard['state']}{behind}"
    stale = answer.get("staleness", {})
    if stale:
        told = ", ".join(f"{count} of {old}" for old, count in stale.items())
        yield f"stale    gradients by their age in updates: {told}; {answer['dropped']} dropped"


def _mode_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    yield f"mode {_named(answer['mode'], answer['options'])}{_on_its_way(answer)}"
    if answer["wish"] != "native":
        yield from _refusals(answer)


def _freeze_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    yield "the mode stays as it is" if answer["frozen_by"] else "the mode may be changed"


def _history_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    for switch in answer["switches"]:
        before, after = (_named(switch[end], switch[f"{end}_options"]) for end in ("from", "to"))
        yield (
            f"{_time(switch)}  {before} -> {after} from version {switch['version']}, asked for by "
            f"{switch['asked_by']}{_because(switch)}, after {switch['took_s']:.1f} s"
        )
    for update in answer["updates"]:
        parts = zip(update["contributors"], update["weights"], update["staleness"], strict=True)
        made_of = ", ".join(f"{rank} ({weight:.3g}{f', {old} old' * (old > 0)})" for rank, weight, old in parts)
        steps = max(update["steps"], default=0)
        of = f"mean of states after {steps} steps" if steps else "of"
        yield f"{_time(update)}  version {update['version']}  {update['mode']}  {of} {made_of or 'nothing'}"


_LINES: dict[Do, Callable[[Mapping[str, Any]], Iterable[str]]] = {
    Do.STATUS: _status_lines,
    Do.MODE: _mode_lines,
    Do.FREEZE: _freeze_lines,
    Do.UNFREEZE: _freeze_lines,
    Do.HISTORY: _history_lines,
}


def _named(name: str, options: Mapping[str, object]) -> str:
    told = ", ".join(f"{option}={json.dumps(value)}" for option, value in options.items())
    return f"{name} ({told})" if told else name


def _noise(noise: Mapping[str, Any]) -> str:
    """The gradient noise scale; without a signal so far there is no upper end."""
    scale, high = (noise[name] for name in ("scale", "high"))
    found = "not known yet" if scale is None else f"{scale:.3g} batches of one rank"
    to = "more" if high is None else f"{high:.3g}"
    return f"{found} (gradient noise scale; 95 %: {noise['low']:.3g} to {to}, of {noise['updates']} updates)"


def _on_its_way(answer: Mapping[str, Any]) -> str:
    wish = _named(answer["wish"], answer["wish_options"])
    if answer["state"] == "gathering":
        return f"; not all ranks have said hello yet, then {wish}"
    return "" if wish == _named(answer["mode"], answer["options"]) else f"; on the way to {wish}"


def _refusals(answer: Mapping[str, Any]) -> Iterable[str]:
    """Why the job stays with native steps; looked at again by its ranks now and then."""
    for refusal in answer.get("refusals", ()):
        for reason in refusal["reasons"]:
            yield f"native   rank {refusal['rank']} stays with native steps: {reason}"


def _because(switch: Mapping[str, Any]) -> str:
    return f" ({switch['reason']})" if switch["reason"] else ""


def _time(at: Mapping[str, Any]) -> str:
    return datetime.fromtimestamp(at["at_unix_s"]).astimezone().strftime("%H:%M:%S")
