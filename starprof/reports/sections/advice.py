"""What to do: the advice with its steps, their commands, and how all modes compare."""

from __future__ import annotations

from starprof.decision.advice import Advice, ModeRow, Step
from starprof.errors import NoDataError
from starprof.reports.advised import MODE_HEADERS, advice_of, cost_words, mode_cells, saved_words, telling_modes
from starprof.reports.markup import Section, facts, table, text
from starprof.reports.material import Material

MODES_AT_MOST = 24
WHAT_MODES_TELL = (
    "Against native steps: share of the time for the same training progress, with its 95 % interval from how steps "
    "differ and from what the gradient noise scale may be. Stale: oldest gradient, in updates. Risk: from 0 to 1, how "
    "far a mode is from synchronous steps over all data, a measure and no loss in points; the second one where every "
    "rank always has the same part of the data."
)


def render(material: Material) -> Section | None:
    """The advice; None when the run holds nothing to make one from, and when nothing was judged by steps."""
    try:
        advice = advice_of(material.run, material.verdict)
    except NoDataError:
        return None
    body = (
        f'<p class="big">{text(advice.headline)}</p><p>{text(advice.why)}</p>'
        f'<p class="note">{text(f"Now: {cost_words(advice)}.")}</p>'
        f"{''.join(_step(number, step) for number, step in enumerate(advice.steps, 1))}"
        f"{_refused(advice)}{_modes(advice)}"
    )
    return Section("advice", "What to do", body)


def _step(number: int, step: Step) -> str:
    known = [
        ("cause", step.cause),
        ("ranks", ", ".join(map(str, step.ranks))),
        ("nodes", ", ".join(step.nodes)),
        ("verify", step.verify),
    ]
    lines = "\n".join(text(command) for command in step.commands)
    commands = f'<pre class="commands">{lines}</pre>' if lines else ""
    what = f"{number}. {step.what}"
    return f"<h3>{text(what)}</h3>{_saves(step)}<p>{text(step.how)}</p>{commands}{facts(known)}"


def _saves(step: Step) -> str:
    """What it saves, and when it can be done."""
    if step.kind == "record":
        return ""
    saves = f"Saves {saved_words(step.saves)} of the time. " if step.saves.share > 0 else ""
    when = "Can be done while the job runs." if step.at_once else "With the next start."
    return f"<p><strong>{text(saves + when)}</strong></p>"


def _advised(row: ModeRow, advice: Advice) -> bool:
    """Whether a step moves the job to this mode."""
    return any(command.startswith(row.command) for step in advice.steps for command in step.commands)


def _refused(advice: Advice) -> str:
    if not advice.refused:
        return ""
    reasons = "".join(f"<li>{text(reason)}</li>" for reason in advice.refused)
    return f"<h3>Why no other mode can be had</h3><ul>{reasons}</ul>"


def _modes(advice: Advice) -> str:
    shown = telling_modes(advice.modes, MODES_AT_MOST)
    if not shown:
        return ""
    rows = [mode_cells(row) for row in shown]
    first = [at for at, row in enumerate(shown) if _advised(row, advice)]
    inner = table(MODE_HEADERS, rows, numeric=range(1, len(MODE_HEADERS) - 1), marked=first)
    notes = "".join(f'<p class="note">{text(note)}</p>' for note in (WHAT_MODES_TELL, *advice.cautions))
    return f"<details><summary>All modes, against native steps</summary>{inner}{notes}</details>"
