"""Advice on a run: made with what control can carry out, and written for the terminal and the report alike."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from starprof.control.modes import NOT_CARRIED_OUT
from starprof.decision.advice import Advice, ModeRow, Saving, Step, advise
from starprof.model.rundata import RunData
from starprof.model.verdict import Verdict
from starprof.reports import words
from starprof.reports.plain import printable, to_encoding
from starprof.reports.terminal import BOLD, DIM, GREEN, RED, YELLOW, Terminal

MODES_AT_MOST = 8
STEPS_AT_MOST = 8
TITLES = {"act": ("Act", RED), "nothing": ("Nothing to do", GREEN), "record": ("Record more", YELLOW)}
MODE_HEADERS = ("mode", "time saved", "least", "most", "update", "stale", "risk", "risk, fixed data", "")


def advice_of(run: RunData, verdict: Verdict) -> Advice:
    """What to do about a run, of what this version can do.

    Raises:
        NoDataError: the run holds nothing that any advice could be made from.
    """
    return advise(run, verdict, NOT_CARRIED_OUT)


def saved_words(saving: Saving) -> str:
    """What a step saves: "38 % (36 % to 41 %)"."""
    if saving.low is None or saving.high is None:
        return words.percent(saving.share)
    return f"{words.percent(saving.share)} ({words.percent(saving.low)} to {words.percent(saving.high)})"


def cost_words(advice: Advice) -> str:
    """What slowness costs now."""
    now = advice.now
    told = f"{words.seconds(now.seconds)}, {words.percent(now.share)} of the job's time"
    if now.share_low is not None and now.share_high is not None:
        told += f" ({words.percent(now.share_low)} to {words.percent(now.share_high)})"
    return f"{told}; mode at the end: {now.mode}"


def mode_name(row: ModeRow) -> str:
    """A mode with its options, those that are lists left out."""
    told = ", ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in row.options.items()
        if not isinstance(value, (list, tuple))
    )
    return f"{row.mode} ({told})" if told else row.mode


def mode_cells(row: ModeRow) -> tuple[str, ...]:
    """A mode's line in a table, see `MODE_HEADERS`; negative savings are losses."""
    return (
        mode_name(row),
        *(words.UNKNOWN if gain is None else _saved(gain) for gain in (row.gain, row.low, row.high)),
        words.UNKNOWN if row.update_s is None else words.milliseconds(row.update_s * 1e6),
        words.UNKNOWN if row.max_staleness is None else str(row.max_staleness),
        *(words.UNKNOWN if r is None else f"{r:.2f}" for r in (row.accuracy_risk, row.accuracy_risk_fixed)),
        f"not to be had: {row.barred}" if row.barred else "",
    )


def _saved(gain: float) -> str:
    share = 1.0 - 1.0 / gain if gain > 0 else float("-inf")
    return "loses all" if share < -9 else f"{100 * share:.0f} %"


def telling_modes(rows: Sequence[ModeRow], at_most: int) -> list[ModeRow]:
    """The best modes; of several that are the same thing here only the first."""
    shown: dict[object, ModeRow] = {}
    for row in rows:
        same = (row.mode,) if row.gain is None else (row.gain, row.low, row.update_s, row.barred)
        shown.setdefault(same, row)
    return list(shown.values())[:at_most]


def render(advice: Advice, terminal: Terminal) -> str:
    """The advice as text: the answer, what to do, and how the modes compare."""
    width = max(40, min(terminal.width, 110))
    title, color = TITLES[advice.do]
    out = [terminal.paint(line, BOLD, color) for line in _wrapped(f"{title.upper()}: {advice.headline}", width)]
    out += _wrapped(advice.why, width)
    out += [terminal.paint(line, DIM) for line in _wrapped(f"{advice.run}: {cost_words(advice)}", width)]
    for number, step in enumerate(advice.steps[:STEPS_AT_MOST], 1):
        out += ["", terminal.paint(_cut(f"{number}. {step.what}{_about(step)}", width), BOLD)]
        out += _step(step, width)
    if len(advice.steps) > STEPS_AT_MOST:
        out.append(f"... and {len(advice.steps) - STEPS_AT_MOST} more")
    out += _refused(advice, width, terminal)
    if advice.modes:
        out += ["", terminal.paint("Modes, against native steps", BOLD), *_modes(advice, width, terminal)]
    if advice.cautions:
        out += ["", terminal.paint("Before you believe it", BOLD)]
        out += [line for caution in advice.cautions for line in _wrapped(caution, width, "   ")]
    return to_encoding("\n".join(out) + "\n", terminal.encoding)


def _wrapped(content: str, width: int, indent: str = "", label: str = "") -> list[str]:
    return textwrap.wrap(
        printable(content),
        width,
        initial_indent=f"{indent}{label:<10}" if label else indent,
        subsequent_indent=indent + " " * (10 if label else 0),
        break_on_hyphens=False,
    )


def _cut(content: str, width: int) -> str:
    return printable(content)[:width].rstrip()


def _about(step: Step) -> str:
    """Cause, and when it can be done."""
    when = "while it runs" if step.at_once else "with the next start" if step.kind != "record" else ""
    told = ", ".join(part for part in (step.cause, when) if part)
    return f" ({told})" if told else ""


def _step(step: Step, width: int) -> Iterator[str]:
    if step.saves.share > 0 and step.kind != "record":
        yield from _wrapped(saved_words(step.saves) + " of the time", width, "   ", "saves")
    yield from _wrapped(step.how, width, "   ", "how")
    for command in step.commands:
        # Never broken: it is there to be copied.
        yield f"      {printable(command)}"
    if step.verify:
        yield from _wrapped(step.verify, width, "   ", "verify")


def _refused(advice: Advice, width: int, terminal: Terminal) -> Iterable[str]:
    if not advice.refused:
        return
    yield ""
    yield terminal.paint("Why no other mode can be had", BOLD)
    for reason in advice.refused:
        yield from _wrapped(reason, width, "   ")


def _modes(advice: Advice, width: int, terminal: Terminal) -> Iterator[str]:
    shown = [row for row in telling_modes(advice.modes, len(advice.modes)) if not row.barred][:MODES_AT_MOST]
    yield terminal.paint(
        _cut(f"   {'mode':<31} {'time saved':>10} {'least':>9} {'most':>9} {'stale':>6} {'risk':>5}", width), DIM
    )
    for row in shown:
        name, saved, least, most, _update, stale, risk, *_rest = mode_cells(row)
        yield _cut(f"   {name:<31.31} {saved:>10} {least:>9} {most:>9} {stale:>6} {risk:>5}", width)
    barred = sum(bool(row.barred) for row in advice.modes)
    if barred:
        yield _cut(f"   {barred} more can't be had or are not advised; --json and the HTML report say why", width)
